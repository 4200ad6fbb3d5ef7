//! Once inside a `rusqlite` transaction on the application's own database: ordinary functions, no runtime.

use rusqlite::{Connection, OptionalExtension};

use super::driver::{DriverError, DriverErrorKind};
use super::error::TxError;
use super::once::{Once, TxReply};
use super::stored_value::Remember;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::Intent;

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
    if version > VERSION {
        let message = format!(
            "semel's tables in this database were created by a newer semel (version {version}, this build knows \
             {VERSION}); upgrade semel"
        );
        return Err(DriverError::new(DriverErrorKind::Other, message));
    }
    Ok(version)
}

/// Runs `work` in the transaction open on `tx` unless the intent was committed before; then replays its outcome. The
/// same as [`once_tx`](super::once_tx()), for a synchronous driver.
///
/// ```
/// use rusqlite::{Connection, TransactionBehavior};
/// use semel::intent::fingerprint::Recipe;
/// use semel::{Intent, Key, Operation, Scope, tx::sqlite};
///
/// fn pay(db: &mut Connection, key: &str, cents: i64) -> Result<i64, Box<dyn std::error::Error>> {
///     let intent =
///         Intent::new(Scope::tenant("acme")?, Operation::new("payment.create")?, Key::new(key)?);
///     let asked = Recipe::default().value(&("EUR", cents))?;
///
///     let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
///     let payment = sqlite::once_tx(&tx, &intent, asked, |tx| {
///         tx.execute("INSERT INTO payment (cents) VALUES (?1)", [cents])?;
///         Ok::<_, rusqlite::Error>(tx.last_insert_rowid())
///     })?;
///     tx.commit()?;
///     Ok(payment.value)
/// }
///
/// let mut db = Connection::open_in_memory()?;
/// db.execute_batch("CREATE TABLE payment (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL)")?;
/// sqlite::migrate(&db)?;
/// assert_eq!(pay(&mut db, "order-1001", 4200)?, 1);
/// assert_eq!(pay(&mut db, "order-1001", 4200)?, 1);
/// assert_eq!(db.query_row("SELECT count(*) FROM payment", [], |row| row.get::<_, i64>(0))?, 1);
/// assert!(pay(&mut db, "order-1001", 9900).is_err(), "the same key for another amount");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// SQLite has one writer. In an immediate transaction that is the caller, and this call does not wait. In a deferred
/// one this call becomes the writer first, and waits for another one: as long as the connection's busy timeout says,
/// then up to [`Once::wait`]; after that [`TxError::Busy`]. A deferred transaction that has read something before,
/// and was overtaken by a writer since, cannot become one: [`TxError::Retry`].
pub fn once_tx<T, E>(
    tx: &Connection,
    intent: &Intent,
    fingerprint: Fingerprint,
    work: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<TxReply<T>, TxError<E>>
where
    T: Remember,
{
    Once::new(intent, fingerprint).run_now(tx, work)
}
