//! Options for opening an outbox in PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::PostgresOutboxReader;
use super::leased_session::LeasedSession;
use super::statement::{Edit, Statements};
use crate::relay::outbox_reader::OutboxReaderError;
use crate::relay::poll::Bounds;
use crate::store::postgres::PostgresOptions;
use crate::store::postgres::connect::Connections;

/// An outbox in PostgreSQL. Cheap to clone.
///
/// Create the tables with [`outbox::schema`](crate::outbox::schema). The URL has the form of a
/// [`PostgresStore`](crate::store::postgres) URL.
#[derive(Clone)]
pub struct PostgresOutbox {
    pub(super) outbox: Arc<Outbox>,
}

pub(in crate::relay) struct Outbox {
    pub(in crate::relay) connections: Connections,
    pub(super) statements: Statements,
    pub(in crate::relay) options: Options,
}

impl Outbox {
    pub(in crate::relay) fn new(
        postgres: PostgresOptions,
        options: Options,
    ) -> Result<Self, OutboxReaderError> {
        let connections = Connections::new(postgres).map_err(|error| error.not_applied())?;
        let statements = Statements::new(options.edit);
        Ok(Self { connections, statements, options })
    }
}

#[derive(Clone, Debug)]
pub(in crate::relay) struct Options {
    pub(in crate::relay) bounds: Bounds,
    pub(in crate::relay) lease: Duration,
    pub(in crate::relay) retry: Duration,
    edit: Option<Edit>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bounds: Bounds::default(),
            lease: Duration::from_secs(10),
            retry: Duration::from_secs(1),
            edit: None,
        }
    }
}

impl Options {
    pub(in crate::relay) fn retry_ms(&self) -> i64 {
        i64::try_from(self.retry.as_millis()).unwrap_or(i64::MAX)
    }
}

/// Options for opening an outbox. The defaults suit a service.
#[derive(Clone, Debug)]
pub struct PostgresOutboxOptions {
    pub(in crate::relay) postgres: PostgresOptions,
    options: Options,
}

impl PostgresOutboxOptions {
    /// Most events in a batch, and most bytes of their payloads. Default: 4,000 and 4 MiB. A larger event is sent
    /// alone. The next batch is prefetched meanwhile, so two are in memory.
    pub fn batch_max(mut self, events: usize, bytes: usize) -> Self {
        self.options.bounds = Bounds { events_max: events.clamp(1, 100_000), bytes_max: bytes.max(1) };
        self
    }

    /// How long after a relay's death other relays take its partitions (column `lane`). Default: 10 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease.clamp(Duration::from_millis(100), Duration::from_secs(600));
        self
    }

    /// Backoff before the first retry of a key that was parked because the sink failed. Default: 1 s; it doubles with
    /// each retry, up to a minute. A key parked because the sink refused an event waits for an operator.
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.options.retry = pause.clamp(Duration::from_millis(1), Duration::from_secs(3_600));
        self
    }

    /// Plants a bug in the statements. Tests check that it is caught.
    #[doc(hidden)]
    pub fn edit_sql(mut self, edit: fn(&str) -> String) -> Self {
        self.options.edit = Some(edit);
        self
    }

    /// Connects once, to check the server and the tables.
    pub async fn open(self) -> Result<PostgresOutbox, OutboxReaderError> {
        let outbox = Arc::new(Outbox::new(self.postgres, self.options)?);
        LeasedSession::open(&outbox, Uuid::nil()).await?.close().await;
        Ok(PostgresOutbox { outbox })
    }
}

impl PostgresOutbox {
    /// Opens the outbox in the database of this URL.
    pub async fn open(url: &str) -> Result<Self, OutboxReaderError> {
        Self::options(url)?.open().await
    }

    /// Options for opening the outbox in the database of this URL.
    pub fn options(url: &str) -> Result<PostgresOutboxOptions, OutboxReaderError> {
        Ok(PostgresOutboxOptions { postgres: PostgresOptions::from_url(url)?, options: Options::default() })
    }

    /// A reader for one relay. Several share the partitions.
    pub fn source(&self) -> PostgresOutboxReader {
        PostgresOutboxReader::new(self.outbox.clone())
    }
}
