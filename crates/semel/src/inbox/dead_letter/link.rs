//! Transactions of our own in the database that a URL names.

use std::future::Future;

use crate::store::{ErrorKind, Fate, StoreError};
use crate::tx::driver::{Dialect, DriverError, DriverErrorKind};
use crate::tx::script::Port;

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

pub(super) enum Link {
    #[cfg(feature = "postgres")]
    Postgres(postgres::Postgres),
    #[cfg(feature = "mysql")]
    Mysql(mysql::Mysql),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlite::Sqlite),
}

impl Link {
    pub(super) fn new(dialect: Dialect, url: &str) -> Result<Self, StoreError> {
        match dialect {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => Ok(Self::Postgres(postgres::Postgres::new(url)?)),
            #[cfg(feature = "mysql")]
            Dialect::Mysql => Ok(Self::Mysql(mysql::Mysql::new(url)?)),
            #[cfg(feature = "sqlite")]
            Dialect::Sqlite => Ok(Self::Sqlite(sqlite::Sqlite::new(url)?)),
            // What is not built in was refused when the URL was read.
            #[allow(unreachable_patterns)]
            _ => Err(StoreError::new(
                ErrorKind::Misconfigured,
                Fate::NotApplied,
                "this build has no inbox for such a database",
            )),
        }
    }

    /// Where that is, for people.
    pub(super) fn place(&self) -> String {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "the search_path of this database".to_owned(),
            #[cfg(feature = "mysql")]
            Self::Mysql(mysql) => mysql.server().to_owned(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(sqlite) => sqlite.path().display().to_string(),
        }
    }

    /// Plays a script in a transaction, and commits it unless the script fails. Cancelled, nothing is known of it.
    pub(super) async fn play<T, F>(
        &self,
        script: impl FnOnce(Port) -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, DriverError>> + Send,
    {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.play(script).await,
            #[cfg(feature = "mysql")]
            Self::Mysql(mysql) => mysql.play(script).await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(sqlite) => sqlite.play(script).await,
        }
    }
}

/// What a statement ran into. Nothing was committed.
fn explain(error: DriverError) -> StoreError {
    let kind = match error.kind() {
        DriverErrorKind::NoTables => {
            let message = "the inbox's tables, or some of them, are not in this database; make them with `semel migrate \
                           --inbox URL`";
            return StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message).with_source(error);
        }
        DriverErrorKind::Unreadable => ErrorKind::Corrupt,
        DriverErrorKind::Serialization | DriverErrorKind::Busy => ErrorKind::Busy,
        _ => ErrorKind::Unavailable,
    };
    StoreError::new(kind, Fate::NotApplied, error.to_string())
}
