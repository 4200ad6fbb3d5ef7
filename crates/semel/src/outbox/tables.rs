//! The outbox's tables: their versions, and strict order.

use crate::migration::{Goal, MigrationPlan, Tables, Versions};
use crate::store::{ErrorKind, Fate, Migrated, StoreError};
use crate::tx::driver::Dialect;

/// The version of the tables that [`migrate`] leads to. This build also works with the next one.
pub const VERSION: u32 = 1;

pub(crate) const TABLES: Tables = Tables {
    what: "outbox",
    meta: "semel_outbox_meta",
    last: |dialect| match dialect {
        // MySQL commits every DDL statement by itself.
        Dialect::Mysql => "semel_outbox_parked",
        Dialect::Postgres | Dialect::Sqlite => "semel_outbox",
    },
    resumable: false,
    migrate: "semel migrate --outbox URL",
    versions: |dialect| match dialect {
        Dialect::Postgres => &POSTGRES,
        Dialect::Mysql => &MYSQL,
        Dialect::Sqlite => &SQLITE,
    },
};

const POSTGRES: Versions = Versions { create: include_str!("sql/postgres.sql"), upgrades: &[], oldest: 1 };
const MYSQL: Versions = Versions { create: include_str!("sql/mysql.sql"), upgrades: &[], oldest: 1 };
const SQLITE: Versions = Versions { create: include_str!("sql/sqlite.sql"), upgrades: &[], oldest: 1 };

/// Creates the outbox's tables in the database at this URL if they are missing; otherwise leaves them as they are. If
/// several processes migrate at once, one of them does it.
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
    Ok(TABLES.migrate(url, Goal::Expand, "").await?.migrated())
}

/// Like [`migrate`], and removes what only older versions of semel use. Call it when none of them is running any more.
pub async fn contract(url: &str) -> Result<Migrated, StoreError> {
    Ok(TABLES.migrate(url, Goal::Contract, "").await?.migrated())
}

/// What [`migrate`], or with `contract` [`contract`], would do. Changes nothing.
pub async fn plan_migration(url: &str, contract: bool) -> Result<MigrationPlan, StoreError> {
    TABLES.migrate(url, Goal::Plan { contract }, "").await
}

/// Switches strict order on or off in the outbox at this URL: PostgreSQL itself then keeps the commit order of each
/// key. Creates missing tables, as [`migrate`] does.
///
/// A polled outbox publishes the events of a key in the order in which they were appended. That is the order of commits
/// if each event is appended while the row it is about is locked (see [`append_tx`](super::append_tx)). With strict
/// order, a trigger locks the event's key until the transaction ends, so it is always the order of commits: a
/// transaction that appends first and locks the row later cannot overtake another; PostgreSQL ends it as a deadlock
/// (40P01; run it again).
/// `docs/outbox.md` has the cost.
///
/// Only for PostgreSQL. In MySQL and MariaDB an append locks the counter of its partition until the commit, SQLite has
/// one writer, and a relay that reads PostgreSQL's log follows the order of commits.
///
/// Switching waits for open transactions that have appended, for at most the URL's `statement_timeout` (10 s). Appends
/// that come meanwhile wait behind it.
pub async fn strict_order(url: &str, on: bool) -> Result<Migrated, StoreError> {
    let sql = strict_order_schema(dialect(url)?, on)?;
    Ok(TABLES.migrate(url, Goal::Expand, sql).await?.migrated())
}

/// The SQL that [`strict_order`] runs, for your own migrations.
pub fn strict_order_schema(dialect: Dialect, on: bool) -> Result<&'static str, StoreError> {
    match dialect {
        Dialect::Postgres if on => Ok(include_str!("sql/postgres_strict_order.sql")),
        Dialect::Postgres => Ok(include_str!("sql/postgres_strict_order_off.sql")),
        Dialect::Mysql | Dialect::Sqlite => Err(StoreError::new(
            ErrorKind::Misconfigured,
            Fate::NotApplied,
            "strict order is only for PostgreSQL: MySQL, MariaDB and SQLite keep the commit order anyway; leave it out",
        )),
    }
}

/// The kind of database that a URL names, if it can hold an outbox.
pub fn dialect(url: &str) -> Result<Dialect, StoreError> {
    TABLES.dialect(url)
}

/// The SQL that creates the tables, in this dialect. Run it once, with your migrations, or let [`migrate`] do it.
pub fn schema(dialect: Dialect) -> &'static str {
    (TABLES.versions)(dialect).create
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_one_that_migrating_leads_to() {
        for dialect in [Dialect::Postgres, Dialect::Mysql, Dialect::Sqlite] {
            assert_eq!((TABLES.versions)(dialect).current(), VERSION);
        }
    }

    /// Services in other languages bring their own SQLite, and Debian 12 has 3.40: `unixepoch('subsec')` came with
    /// 3.42.
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
