//! The source of a relay, whichever database it is in.

use std::time::Duration;

#[cfg(feature = "mysql")]
use semel::relay::poll::mysql::MysqlSource;
#[cfg(feature = "postgres")]
use semel::relay::poll::postgres::PostgresSource;
use semel::relay::poll::sqlite::SqliteSource;
use semel::relay::{Batch, Lag, Pruned, Reached, Settled, Source, SourceError};

use crate::outbox::AnyOutbox;

/// A relay's share of an outbox.
pub(super) enum AnySource {
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresSource>),
    #[cfg(feature = "mysql")]
    Mysql(Box<MysqlSource>),
    Sqlite(Box<SqliteSource>),
}

impl AnyOutbox {
    pub(super) fn source(&self) -> AnySource {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(outbox) => AnySource::Postgres(Box::new(outbox.source())),
            #[cfg(feature = "mysql")]
            Self::Mysql(outbox) => AnySource::Mysql(Box::new(outbox.source())),
            Self::Sqlite(outbox) => AnySource::Sqlite(Box::new(outbox.source())),
        }
    }
}

macro_rules! each {
    ($this:ident, $source:ident => $work:expr) => {
        match $this {
            #[cfg(feature = "postgres")]
            Self::Postgres($source) => $work,
            #[cfg(feature = "mysql")]
            Self::Mysql($source) => $work,
            Self::Sqlite($source) => $work,
        }
    };
}

impl Source for AnySource {
    async fn next(&mut self) -> Result<Option<Batch>, SourceError> {
        each!(self, source => source.next().await)
    }

    async fn take_all(&mut self) -> Result<bool, SourceError> {
        each!(self, source => source.take_all().await)
    }

    async fn resume(&mut self, reached: Option<&Reached>) -> Result<(), SourceError> {
        each!(self, source => source.resume(reached).await)
    }

    async fn done(&mut self, settled: &[Settled]) -> Result<(), SourceError> {
        each!(self, source => source.done(settled).await)
    }

    async fn keep(&mut self) -> Result<(), SourceError> {
        each!(self, source => source.keep().await)
    }

    fn keep_in(&self) -> Duration {
        each!(self, source => source.keep_in())
    }

    fn holds(&self) -> bool {
        each!(self, source => source.holds())
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, SourceError> {
        each!(self, source => source.prune(older_than).await)
    }

    async fn lag(&mut self) -> Result<Lag, SourceError> {
        each!(self, source => source.lag().await)
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        each!(self, source => source.leave().await)
    }
}
