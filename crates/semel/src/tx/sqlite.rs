//! semel's tables in the application's own SQLite database: how they get there, and who else reads them. What runs in
//! its transactions is [`blocking`](crate::blocking).

use rusqlite::{Connection, OptionalExtension};

use super::driver::{DriverError, DriverErrorKind};

mod reader;
mod sweep;

pub use reader::SqliteReader;
pub use sweep::sweep;

/// The tables in the application's database, as one text.
pub const SQL: &str = include_str!("sql/sqlite.sql");

/// The version this build reads and writes.
pub const VERSION: u32 = 1;

/// Creates or upgrades semel's tables (all called `semel_…`) in the application's own database, and returns the
/// version they had: 0 where there were none. Inside a transaction it becomes part of it.
pub fn migrate(connection: &Connection) -> Result<u32, DriverError> {
    let wrong = |error: rusqlite::Error| DriverError::of(DriverErrorKind::Other, error.to_string());
    if !connection.is_autocommit() {
        return bring_up(connection);
    }
    connection.execute_batch("BEGIN IMMEDIATE").map_err(wrong)?;
    let before = bring_up(connection);
    let end = if before.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = connection.execute_batch(end).map_err(wrong);
    let before = before?;
    ended.map(|()| before)
}

fn bring_up(connection: &Connection) -> Result<u32, DriverError> {
    let wrong = |error: rusqlite::Error| DriverError::of(DriverErrorKind::Other, error.to_string());
    let there = connection
        .query_row("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'semel_tx'", [], |_| Ok(()))
        .optional()
        .map_err(wrong)?;
    if there.is_none() {
        connection.execute_batch(SQL).map_err(wrong)?;
        return Ok(0);
    }
    let version: u32 =
        connection.query_row("SELECT version FROM semel_tx", [], |row| row.get(0)).map_err(wrong)?;
    // The next version only adds to it.
    if version > VERSION + 1 {
        let message = format!(
            "semel's tables in this database were created by a newer semel (version {version}, this build knows \
             {VERSION}); upgrade semel"
        );
        return Err(DriverError::new(DriverErrorKind::Other, message));
    }
    Ok(version)
}
