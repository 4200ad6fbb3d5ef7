//! The outbox: events appended in the caller's own transaction, so that they are told if and only if it commits.
//!
//! ```text
//!  begin ─▶ once_tx(intent, …) ─▶ your rows ─▶ append_tx(event) ─▶ commit ─▶ … ─▶ relay ─▶ broker
//! ```
//!
//! A row in a table instead of a message to a broker: a crash between commit and publishing loses nothing, and a
//! rollback tells nobody. What the relay makes of it is its own matter; what it is given is in [`append_tx`]'s hands.
//! Services in other languages insert into `semel_outbox` themselves: the columns are in the [`schema`].
//!
//! **Append last**: after you hold the row that the event is about, just before the commit. Events of a key are published in
//! the order in which they were appended, and only a lock on that row makes this the order of commits. See [`append_tx`].

mod append;
mod event;

pub use append::{APPEND_EVENTS_MAX, AppendError, Appended, Duplicates, append_all_tx, append_tx};
#[cfg(feature = "sqlite")]
pub use append::{append_all_now, append_now};
pub use event::{Event, EventError, HEADERS_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, VALUE_BYTES_MAX};

#[cfg(feature = "sqlite")]
pub use crate::tx::migrations::sqlite_path;

use crate::store::{ErrorKind, Fate, Migrated, StoreError};
use crate::tx::driver::Dialect;
use crate::tx::migrations::Tables;

/// The version of the tables that this build reads and writes.
pub const VERSION: u32 = 1;

const TABLES: Tables = Tables {
    what: "outbox",
    meta: "semel_outbox_meta",
    last: |dialect| match dialect {
        // There every statement commits by itself.
        Dialect::Mysql => "semel_outbox_parked",
        Dialect::Postgres | Dialect::Sqlite => "semel_outbox",
    },
    steps: |dialect| match dialect {
        Dialect::Postgres => &[include_str!("sql/postgres.sql")],
        Dialect::Mysql => &[include_str!("sql/mysql.sql")],
        Dialect::Sqlite => &[include_str!("sql/sqlite.sql")],
    },
};

/// The outbox's tables in the database a URL names: made if they are not there, otherwise left as they are. Of several
/// that do so at once, one does it.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let dir = tempfile::tempdir().unwrap();
/// let url = format!("sqlite:{}", dir.path().join("app.db").display());
/// assert_eq!(semel::outbox::migrate(&url).await?.before, 0);
/// assert_eq!(semel::outbox::migrate(&url).await?.before, 1);
/// # Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
pub async fn migrate(url: &str) -> Result<Migrated, StoreError> {
    TABLES.migrate(url).await
}

/// Whether PostgreSQL itself keeps the order of a key: switched on or off, in the outbox a URL names. Tables that are not
/// there are made, as [`migrate`] does.
///
/// A polled outbox publishes the events of a key in the order in which they were appended. That is the order of commits
/// where an event is appended while the row it is about is locked (see [`append_tx`]). Switched on, a trigger takes a lock on
/// the event's key until the transaction has ended, so that it is the order of commits in any case: a transaction that
/// appends first and locks the row later does not overtake another, it is ended by PostgreSQL as a deadlock (40P01; run it
/// again). What it costs is in `docs/outbox.md`.
///
/// Only for PostgreSQL. In MySQL and MariaDB an append holds the counter of its part until the commit, SQLite has one
/// writer, and a relay that reads PostgreSQL's log goes by the order of commits.
///
/// Switching waits for transactions that are appending, for as long as `statement_timeout` in the URL says (10 s), and
/// appends that come meanwhile wait behind it.
pub async fn strict_order(url: &str, on: bool) -> Result<Migrated, StoreError> {
    let sql = strict_order_schema(dialect(url)?, on)?;
    TABLES.migrate_and(url, sql).await
}

/// What [`strict_order`] runs, for your own migrations.
pub fn strict_order_schema(dialect: Dialect, on: bool) -> Result<&'static str, StoreError> {
    match dialect {
        Dialect::Postgres if on => Ok(include_str!("sql/postgres_strict_order.sql")),
        Dialect::Postgres => Ok(include_str!("sql/postgres_strict_order_off.sql")),
        Dialect::Mysql | Dialect::Sqlite => Err(StoreError::new(
            ErrorKind::Misconfigured,
            Fate::NotApplied,
            "strict order is for PostgreSQL: MySQL, MariaDB and SQLite keep the order of commits without it; leave it out",
        )),
    }
}

/// Which kind of database a URL names, if an outbox can be in it.
pub fn dialect(url: &str) -> Result<Dialect, StoreError> {
    TABLES.dialect(url)
}

/// The tables, for that dialect. Run it once, with your migrations, or let [`migrate`] do it.
pub fn schema(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => include_str!("sql/postgres.sql"),
        Dialect::Mysql => include_str!("sql/mysql.sql"),
        Dialect::Sqlite => include_str!("sql/sqlite.sql"),
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    /// Services in other languages bring their own SQLite, and Debian 12 has 3.40: `unixepoch('subsec')` came with 3.42.
    #[test]
    fn rows_can_be_inserted_by_an_older_sqlite() {
        let tables = schema(Dialect::Sqlite);
        assert!(!tables.contains("subsec"), "{tables}");
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection.execute_batch(tables).unwrap();
        connection
            .execute_batch(
                "INSERT INTO semel_outbox (topic, type, key, payload) VALUES ('t', 'e', 'k', x'7b7d')",
            )
            .unwrap();
        let late = "SELECT abs(made_at - unixepoch('subsec') * 1000) FROM semel_outbox";
        let late: f64 = connection.query_row(late, [], |row| row.get(0)).unwrap();
        assert!(late < 60_000.0, "the default is not the time in milliseconds: {late}");
    }
}
