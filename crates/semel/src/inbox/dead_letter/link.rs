//! Connections for the dead letter store's own transactions.

use super::any_tx::LetterOperation;
use crate::store::{ErrorKind, Fate, StoreError};
use crate::tx::driver::{Dialect, DriverError, DriverErrorKind};

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

pub(super) enum Connection {
    #[cfg(feature = "postgres")]
    Postgres(postgres::Postgres),
    #[cfg(feature = "mysql")]
    Mysql(mysql::Mysql),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlite::Sqlite),
}

impl Connection {
    pub(super) fn new(dialect: Dialect, url: &str) -> Result<Self, StoreError> {
        match dialect {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => Ok(Self::Postgres(postgres::Postgres::new(url)?)),
            #[cfg(feature = "mysql")]
            Dialect::Mysql => Ok(Self::Mysql(mysql::Mysql::new(url)?)),
            #[cfg(feature = "sqlite")]
            Dialect::Sqlite => Ok(Self::Sqlite(sqlite::Sqlite::new(url)?)),
            // Unreachable: a URL of a database that is not built in was refused before.
            #[allow(unreachable_patterns)]
            _ => Err(StoreError::new(
                ErrorKind::Misconfigured,
                Fate::NotApplied,
                "this build has no inbox for this kind of database; build it with the matching feature",
            )),
        }
    }

    /// Where the tables are, for messages.
    pub(super) fn location(&self) -> String {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "the search_path of this database".to_owned(),
            #[cfg(feature = "mysql")]
            Self::Mysql(mysql) => mysql.server().to_owned(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(sqlite) => sqlite.path().display().to_string(),
        }
    }

    /// Runs an operation in a transaction, and commits unless it fails. If cancelled, the outcome is unknown.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        operation: impl LetterOperation<T>,
    ) -> Result<T, StoreError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.run(operation).await,
            #[cfg(feature = "mysql")]
            Self::Mysql(mysql) => mysql.run(operation).await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(sqlite) => sqlite.run(operation).await,
        }
    }
}

/// Maps the error of a statement. Nothing was committed.
fn explain(error: DriverError) -> StoreError {
    let kind = match error.kind() {
        DriverErrorKind::NoTables => {
            let message = "the inbox's tables are missing from this database, or some of them; create them with \
                           `semel migrate --inbox URL`";
            return StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message).with_source(error);
        }
        DriverErrorKind::Unreadable => ErrorKind::Corrupt,
        DriverErrorKind::Serialization | DriverErrorKind::Busy => ErrorKind::Busy,
        _ => ErrorKind::Unavailable,
    };
    StoreError::new(kind, Fate::NotApplied, error.to_string())
}
