//! semel's own transactions in the application's database: dead letters and sagas are kept there.
//!
//! | module | what it decides |
//! |---|---|
//! | `any_tx` | a transaction on whichever database it is, and what is done in one |
//! | `many` | one statement for many rows |
//! | `pool` | how many sessions there are, and which is used again |
//! | `postgres`, `mysql` | a session, one transaction |
//! | `sqlx_postgres` | a connection of the application's pool, one transaction |
//! | `sqlite` | one thread, one connection; transactions that wait together share a commit |
//! | `sqlite_guard` | what somebody else's work may not do there |

use crate::migration::Tables;
use crate::store::{ErrorKind, Fate, StoreError};
use crate::tx::driver::{Dialect, DriverError, DriverErrorKind};

mod any_tx;
#[cfg(feature = "saga")]
mod many;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod pool;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(all(feature = "sqlite", feature = "saga"))]
mod sqlite_guard;
#[cfg(all(feature = "sqlx-postgres", feature = "saga"))]
mod sqlx_postgres;

#[cfg(feature = "saga")]
pub(crate) use any_tx::AnyTx;
pub(crate) use any_tx::{OwnTx, TxOperation};
#[cfg(feature = "saga")]
pub(crate) use many::{ManySql, MysqlMany};
#[cfg(all(feature = "sqlite", feature = "saga"))]
pub(crate) use sqlite_guard::guarded;
#[cfg(all(feature = "sqlite", feature = "saga-test"))]
pub(crate) use sqlite_guard::install as install_guard;

/// A database that has tables of semel's. Transactions are begun, committed and rolled back here.
pub(crate) struct Database {
    tables: Tables,
    driver: Driver,
}

enum Driver {
    #[cfg(feature = "postgres")]
    Postgres(Box<postgres::Postgres>),
    #[cfg(all(feature = "sqlx-postgres", feature = "saga"))]
    SqlxPostgres(sqlx_postgres::SqlxPostgres),
    #[cfg(feature = "mysql")]
    Mysql(Box<mysql::Mysql>),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlite::Sqlite),
}

impl Database {
    /// The database at `url`, which has these tables. Connects with the first transaction; `sessions` run at the same
    /// time at most.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(unused_variables))]
    pub(crate) fn new(tables: Tables, url: &str, sessions: usize) -> Result<Self, StoreError> {
        let driver = match tables.dialect(url)? {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => Driver::Postgres(Box::new(postgres::Postgres::new(url, sessions)?)),
            #[cfg(feature = "mysql")]
            Dialect::Mysql => Driver::Mysql(Box::new(mysql::Mysql::new(url, sessions)?)),
            #[cfg(feature = "sqlite")]
            Dialect::Sqlite => Driver::Sqlite(sqlite::Sqlite::new(url)?),
            // Unreachable: a URL of a database that is not built in was refused before.
            #[allow(unreachable_patterns)]
            _ => {
                return Err(StoreError::new(
                    ErrorKind::Misconfigured,
                    Fate::NotApplied,
                    "this build does not know this kind of database; build it with the matching feature",
                ));
            }
        };
        Ok(Self { tables, driver })
    }

    /// The same database over a pool of the application's. `table`: the one that its connections have to see.
    #[cfg(all(feature = "sqlx-postgres", feature = "saga"))]
    pub(crate) fn over(&self, pool: sqlx::PgPool, table: Option<(&str, i64)>) -> Result<Self, StoreError> {
        let Driver::Postgres(postgres) = &self.driver else {
            return Err(crate::migration::wrong(
                "this journal is not on PostgreSQL, so a pool of PostgreSQL cannot run its steps".to_owned(),
            ));
        };
        let driver = sqlx_postgres::SqlxPostgres::new(pool, postgres.options(), table);
        Ok(Self { tables: self.tables, driver: Driver::SqlxPostgres(driver) })
    }

    /// Where the tables are, for messages.
    pub(crate) fn location(&self) -> String {
        match &self.driver {
            #[cfg(feature = "postgres")]
            Driver::Postgres(_) => "the search_path of this database".to_owned(),
            #[cfg(all(feature = "sqlx-postgres", feature = "saga"))]
            Driver::SqlxPostgres(_) => "the search_path of this database".to_owned(),
            #[cfg(feature = "mysql")]
            Driver::Mysql(mysql) => mysql.server().to_owned(),
            #[cfg(feature = "sqlite")]
            Driver::Sqlite(sqlite) => sqlite.path().display().to_string(),
        }
    }

    /// Runs an operation in a transaction, and commits unless it fails. If cancelled, the outcome is unknown.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        operation: impl TxOperation<T>,
    ) -> Result<T, StoreError> {
        let explain = |error| explain(&self.tables, error);
        match &self.driver {
            #[cfg(feature = "postgres")]
            Driver::Postgres(postgres) => postgres.run(operation, explain).await,
            #[cfg(all(feature = "sqlx-postgres", feature = "saga"))]
            Driver::SqlxPostgres(pool) => pool.run(operation, explain).await,
            #[cfg(feature = "mysql")]
            Driver::Mysql(mysql) => mysql.run(operation, explain).await,
            #[cfg(feature = "sqlite")]
            Driver::Sqlite(sqlite) => sqlite.run(operation).await?.map_err(explain),
        }
    }
}

/// Maps the error of a statement. Nothing was committed.
fn explain(tables: &Tables, error: DriverError) -> StoreError {
    let kind = match error.kind() {
        DriverErrorKind::NoTables => {
            let message = format!(
                "tables of semel's ({}) are missing from this database; create them with `{}`",
                tables.what, tables.migrate
            );
            return StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message).with_source(error);
        }
        DriverErrorKind::Unreadable => ErrorKind::Corrupt,
        DriverErrorKind::Serialization | DriverErrorKind::Busy => ErrorKind::Busy,
        _ => ErrorKind::Unavailable,
    };
    StoreError::new(kind, Fate::NotApplied, error.to_string())
}
