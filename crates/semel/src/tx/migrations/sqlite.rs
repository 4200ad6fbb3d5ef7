//! In the caller's SQLite file, in one transaction.

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::{Tables, sqlite_path};
use crate::store::sqlite::error::SqliteError;
use crate::store::sqlite::open::{full_path, in_thread};
use crate::store::{Fate, StoreError};
use crate::tx::driver::Dialect;

/// How long to wait for another writer.
const BUSY: std::time::Duration = std::time::Duration::from_secs(5);

pub(super) async fn bring_up(tables: &Tables, url: &str) -> Result<u32, StoreError> {
    let (path, tables) = (full_path(sqlite_path(url))?, *tables);
    in_thread(move || {
        let explain = |error: rusqlite::Error| SqliteError::from(error).explain(&path, Fate::NotApplied);
        let mut connection = Connection::open(&path).map_err(explain)?;
        connection.busy_timeout(BUSY).map_err(explain)?;
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(explain)?;
        let there = |table: &str| {
            let query = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1";
            tx.query_row(query, [table], |_| Ok(())).optional().map(|found| found.is_some())
        };
        let version = match there(tables.meta).map_err(explain)? {
            true => {
                let query = format!("SELECT version FROM {}", tables.meta);
                tx.query_row(&query, [], |row| row.get(0)).optional().map_err(explain)?
            }
            false => None,
        };
        let whole = there((tables.last)(Dialect::Sqlite)).map_err(explain)?;
        let before = tables.found_version(Dialect::Sqlite, version, whole, &path.display().to_string())?;
        for step in tables.missing(Dialect::Sqlite, before) {
            tx.execute_batch(step).map_err(explain)?;
        }
        tx.commit().map_err(explain)?;
        Ok(before)
    })
    .await
}
