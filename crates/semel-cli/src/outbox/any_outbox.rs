//! The outbox at a URL, in any of the databases.

use std::time::Duration;

use semel::outbox::{dialect, sqlite_path};
#[cfg(feature = "mysql")]
use semel::relay::poll::mysql::MysqlOutbox;
#[cfg(feature = "postgres")]
use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::poll::sqlite::SqliteOutbox;
use semel::relay::{
    EventDetail, EventFilter, EventSummary, MissingPrivilege, OutboxReaderError, Parked, Rebase,
};
use semel::tx::driver::Dialect;
use uuid::Uuid;

/// An outbox in one of the databases.
pub(crate) enum AnyOutbox {
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresOutbox>),
    #[cfg(feature = "mysql")]
    Mysql(Box<MysqlOutbox>),
    Sqlite(Box<SqliteOutbox>),
}

/// Batch size, lease and retry delay that a relay gives its outbox reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) batch_events: usize,
    pub(crate) batch_bytes: usize,
    pub(crate) lease: Duration,
    pub(crate) retry_after: Duration,
}

macro_rules! each {
    ($this:ident, $outbox:ident => $work:expr) => {
        match $this {
            #[cfg(feature = "postgres")]
            Self::Postgres($outbox) => $work,
            #[cfg(feature = "mysql")]
            Self::Mysql($outbox) => $work,
            Self::Sqlite($outbox) => $work,
        }
    };
}

impl AnyOutbox {
    /// Opens it for the `semel outbox` commands.
    pub(crate) async fn open(url: &str) -> Result<Self, OutboxReaderError> {
        Self::opened(url, None).await
    }

    /// Opens it for a relay.
    pub(crate) async fn open_with(url: &str, bounds: &Bounds) -> Result<Self, OutboxReaderError> {
        Self::opened(url, Some(bounds)).await
    }

    async fn opened(url: &str, bounds: Option<&Bounds>) -> Result<Self, OutboxReaderError> {
        macro_rules! bounded {
            ($options:expr) => {
                match bounds {
                    None => $options,
                    Some(bounds) => $options
                        .batch_max(bounds.batch_events, bounds.batch_bytes)
                        .lease(bounds.lease)
                        .retry_after(bounds.retry_after),
                }
            };
        }
        match dialect(url)? {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => {
                let outbox = bounded!(PostgresOutbox::options(url)?).open().await?;
                Ok(Self::Postgres(Box::new(outbox)))
            }
            #[cfg(feature = "mysql")]
            Dialect::Mysql => Ok(Self::Mysql(Box::new(bounded!(MysqlOutbox::new(url)?)))),
            // `dialect` has refused databases that are not in this build.
            _ => Ok(Self::Sqlite(Box::new(bounded!(SqliteOutbox::new(sqlite_path(url)))))),
        }
    }

    pub(crate) async fn check(&self) -> Result<Vec<MissingPrivilege>, OutboxReaderError> {
        each!(self, outbox => outbox.check().await)
    }

    pub(crate) async fn list(&self, listing: &EventFilter) -> Result<Vec<EventSummary>, OutboxReaderError> {
        each!(self, outbox => outbox.list(listing).await)
    }

    pub(crate) async fn find(&self, id: Uuid) -> Result<Option<EventDetail>, OutboxReaderError> {
        each!(self, outbox => outbox.find(id).await)
    }

    pub(crate) async fn parked(
        &self,
        key: Option<&str>,
        events_max: usize,
    ) -> Result<Vec<Parked>, OutboxReaderError> {
        each!(self, outbox => outbox.parked(key, events_max).await)
    }

    pub(crate) async fn retry(&self, key: Option<&str>) -> Result<u64, OutboxReaderError> {
        each!(self, outbox => outbox.retry(key).await)
    }

    pub(crate) async fn skip(&self, id: Uuid, topic: Option<&str>) -> Result<bool, OutboxReaderError> {
        each!(self, outbox => match topic {
            Some(topic) => outbox.skip_on(id, topic).await,
            None => outbox.skip(id).await,
        })
    }

    /// Takes the URL, because an outbox with the wrong lineage cannot be opened.
    pub(crate) async fn rebase(url: &str, rebase: Rebase) -> Result<(), OutboxReaderError> {
        match dialect(url)? {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => PostgresOutbox::rebase(url, rebase).await,
            #[cfg(feature = "mysql")]
            Dialect::Mysql => MysqlOutbox::new(url)?.rebase(rebase).await,
            _ => SqliteOutbox::new(sqlite_path(url)).rebase(rebase).await,
        }
    }
}
