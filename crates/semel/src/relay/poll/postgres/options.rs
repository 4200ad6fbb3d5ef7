//! How an outbox is opened.

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
/// The tables are made with [`outbox::schema`](crate::outbox::schema). The URL is one of a
/// [`PostgresStore`](crate::store::postgres).
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
        let connections = Connections::new(postgres).map_err(|trouble| trouble.not_applied())?;
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

/// How an outbox is opened. The defaults suit a service.
#[derive(Clone, Debug)]
pub struct PostgresOutboxOptions {
    pub(in crate::relay) postgres: PostgresOptions,
    options: Options,
}

impl PostgresOutboxOptions {
    /// Most events of a batch, and most bytes of their payloads: 4,000 and 4 MiB unless told otherwise. One event goes
    /// alone if it is larger. While one batch is published the next one is read, so two are in memory.
    pub fn batch_max(mut self, events: usize, bytes: usize) -> Self {
        self.options.bounds = Bounds { events_max: events.clamp(1, 100_000), bytes_max: bytes.max(1) };
        self
    }

    /// How long after a relay's death others take its lanes: 10 s unless told otherwise.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease.clamp(Duration::from_millis(100), Duration::from_secs(600));
        self
    }

    /// When a key that was parked because the sink failed is tried again, at first: 1 s unless told otherwise, then
    /// twice as late each time, up to a minute. One that was refused waits for a person.
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.options.retry = pause.clamp(Duration::from_millis(1), Duration::from_secs(3_600));
        self
    }

    /// Plants a bug in the statements. Tests see whether it is noticed.
    #[doc(hidden)]
    pub fn edit_sql(mut self, edit: fn(&str) -> String) -> Self {
        self.options.edit = Some(edit);
        self
    }

    /// Connects once, to see that the server and the tables are right.
    pub async fn open(self) -> Result<PostgresOutbox, OutboxReaderError> {
        let outbox = Arc::new(Outbox::new(self.postgres, self.options)?);
        LeasedSession::open(&outbox, Uuid::nil()).await?.close().await;
        Ok(PostgresOutbox { outbox })
    }
}

impl PostgresOutbox {
    /// Opens the outbox in the database a URL names.
    pub async fn open(url: &str) -> Result<Self, OutboxReaderError> {
        Self::options(url)?.open().await
    }

    /// Opens with other bounds than the usual ones.
    pub fn options(url: &str) -> Result<PostgresOutboxOptions, OutboxReaderError> {
        Ok(PostgresOutboxOptions { postgres: PostgresOptions::from_url(url)?, options: Options::default() })
    }

    /// A source for one relay. Several share the events.
    pub fn source(&self) -> PostgresOutboxReader {
        PostgresOutboxReader::new(self.outbox.clone())
    }
}
