//! [`tx::upsert`](crate::tx::upsert).

use rusqlite::Connection;

use super::ready;
use crate::tx::driver::{DriverError, Sql, Value};
use crate::tx::upsert::{self, Inserted, Updated};

/// [`upsert::insert`].
pub fn insert(mut tx: &Connection, sql: &Sql, values: Vec<Value>) -> Result<Inserted, DriverError> {
    ready(upsert::insert(&mut tx, sql, values))
}

/// [`upsert::update`].
pub fn update(mut tx: &Connection, sql: &Sql, values: Vec<Value>) -> Result<Updated, DriverError> {
    ready(upsert::update(&mut tx, sql, values))
}
