//! How an outbox is opened to be read from the log.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::CdcOutboxReader;
use super::table::RoutedTable;
use crate::relay::outbox_reader::{OutboxReaderError, Rebase};
use crate::relay::poll::Bounds;
use crate::relay::poll::postgres::PostgresOutbox;
use crate::relay::poll::postgres::leased_session::LeasedSession;
use crate::relay::poll::postgres::options::{Options, Outbox};
use crate::store::postgres::PostgresOptions;
use crate::store::{ErrorKind, Fate, StoreError};

/// An outbox in PostgreSQL, read from the server's log. Cheap to clone.
///
/// The tables are made with [`outbox::schema`](crate::outbox::schema), also where the events are in
/// [another table](RoutedTable): what is parked and how far we are is in them. The URL is one of a
/// [`PostgresStore`](crate::store::postgres), to the server itself: no pooler carries replication.
#[derive(Clone)]
pub struct CdcOutbox {
    pub(super) cdc: Arc<Cdc>,
}

pub(super) struct Cdc {
    pub(super) outbox: Outbox,
    pub(super) stream: StreamOptions,
}

#[derive(Clone, Debug)]
pub(super) struct StreamOptions {
    slot: Option<String>,
    publication: Option<String>,
    pub(super) create: bool,
    pub(super) table: Option<RoutedTable>,
    pub(super) checkpoint_interval: Duration,
    pub(super) follow_promotions: bool,
    pub(super) warn_bytes: u64,
    pub(super) held_bytes_max: Option<u64>,
    pub(super) plant: Option<Plant>,
}

/// Bugs that tests plant, to see whether they are noticed.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// What was read is acknowledged before the sink has it.
    AckUnconfirmed,
    /// A place is a commit's, whatever is in it.
    CommitOnly,
    /// The table is read while transactions that may be before the slot are under way.
    AdoptAtOnce,
}

/// Names of slot and publication.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) slot: String,
    pub(super) publication: String,
}

impl StreamOptions {
    /// Slots belong to the whole cluster and publications to a database, so by default they are named after the tables:
    /// each outbox has its own.
    pub(super) fn names(&self, lineage: &str) -> Names {
        let short: String = lineage.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
        let usual = format!("semel_outbox_{}", short.to_ascii_lowercase());
        Names {
            slot: self.slot.clone().unwrap_or_else(|| usual.clone()),
            publication: self.publication.clone().unwrap_or(usual),
        }
    }
}

/// How an outbox is opened. The defaults suit a service.
#[derive(Clone, Debug)]
pub struct CdcOutboxOptions {
    postgres: PostgresOptions,
    options: Options,
    stream: StreamOptions,
}

impl CdcOutboxOptions {
    /// The slot's name: lower-case letters, digits and `_`. One of this outbox's own unless told otherwise.
    pub fn slot(mut self, name: &str) -> Result<Self, OutboxReaderError> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if name.is_empty() || name.len() > 63 || !name.bytes().all(plain) {
            return Err(wrong(format!("{name:?} is no slot: up to 63 lower-case letters, digits and _")));
        }
        self.stream.slot = Some(name.to_owned());
        Ok(self)
    }

    /// The publication's name. One of this outbox's own unless told otherwise.
    pub fn publication(mut self, name: &str) -> Result<Self, OutboxReaderError> {
        if name.is_empty() || name.len() > 63 || name.contains('\0') {
            return Err(wrong(format!("{name:?} is no publication: 1 to 63 bytes")));
        }
        self.stream.publication = Some(name.to_owned());
        Ok(self)
    }

    /// Whether slot and publication are made where they are not there: yes unless told otherwise. For a user with few
    /// rights an administrator makes them; see [`CdcOutbox::check`].
    pub fn create(mut self, create: bool) -> Self {
        self.stream.create = create;
        self
    }

    /// Takes events from a table of another kind, as it is.
    ///
    /// Rows of it may be deleted at once, also in the transaction that inserts them. But then nothing is left to go
    /// on with should the slot be lost: the relay stops, loudly, and a person [decides](CdcOutbox::rebase).
    pub fn table(mut self, table: RoutedTable) -> Self {
        self.stream.table = Some(table);
        self
    }

    /// Most events of a batch, and most bytes of their payloads: 4,000 and 4 MiB unless told otherwise. One event goes
    /// alone if it is larger. A transaction of any size is given in such batches.
    pub fn batch_max(mut self, events: usize, bytes: usize) -> Self {
        self.options.bounds = Bounds { events_max: events.clamp(1, 100_000), bytes_max: bytes.max(1) };
        self
    }

    /// How long after a relay's death another takes over: 10 s unless told otherwise.
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

    /// How often it is written down, and the server told, how far we are: every second unless told otherwise, and five
    /// times as seldom where no event came. So much is sent again after a crash to a sink that keeps no position.
    pub fn checkpoint_interval(mut self, every: Duration) -> Self {
        self.stream.checkpoint_interval = every.clamp(Duration::from_millis(1), Duration::from_secs(60));
        self
    }

    /// Whether a standby that became the primary is followed by itself. The log of the new one may differ from where
    /// the old one ended, so the relay goes on from the table, with repetitions. By default it stops until a person
    /// [decides](CdcOutbox::rebase).
    pub fn follow_promotions(mut self, follow: bool) -> Self {
        self.stream.follow_promotions = follow;
        self
    }

    /// Warns when the slot keeps the server from forgetting more than this: 1 GiB unless told otherwise.
    pub fn warn_bytes(mut self, bytes: u64) -> Self {
        self.stream.warn_bytes = bytes;
        self
    }

    /// Lets go of the slot when it keeps the server from forgetting more than this, because the sink is down for long:
    /// the server's disk is worth more than our place in the log. Everything is in the table, and the relay goes on
    /// from there when the sink is back, with repetitions. Never unless told so. Has no effect on
    /// [another table](Self::table).
    pub fn held_bytes_max(mut self, bytes: u64) -> Self {
        self.stream.held_bytes_max = Some(bytes);
        self
    }

    /// Plants a bug. Tests see whether it is noticed.
    #[doc(hidden)]
    pub fn plant(mut self, plant: Plant) -> Self {
        self.stream.plant = Some(plant);
        self
    }

    /// Connects once, to see that the server and the tables are right. Slot and publication are looked at by the first
    /// relay.
    pub async fn open(self) -> Result<CdcOutbox, OutboxReaderError> {
        let cdc = self.unchecked()?;
        LeasedSession::open(&cdc.cdc.outbox, Uuid::nil()).await?.close().await;
        Ok(cdc)
    }

    pub(super) fn unchecked(self) -> Result<CdcOutbox, OutboxReaderError> {
        let outbox = Outbox::new(self.postgres, self.options)?;
        Ok(CdcOutbox { cdc: Arc::new(Cdc { outbox, stream: self.stream }) })
    }
}

impl CdcOutbox {
    /// Opens the outbox in the database a URL names.
    pub async fn open(url: &str) -> Result<Self, OutboxReaderError> {
        Self::options(url)?.open().await
    }

    /// Opens with other bounds than the usual ones.
    pub fn options(url: &str) -> Result<CdcOutboxOptions, OutboxReaderError> {
        Ok(CdcOutboxOptions {
            postgres: PostgresOptions::from_url(url)?,
            options: Options::default(),
            stream: StreamOptions {
                slot: None,
                publication: None,
                create: true,
                table: None,
                checkpoint_interval: Duration::from_secs(1),
                follow_promotions: false,
                warn_bytes: 1 << 30,
                held_bytes_max: None,
                plant: None,
            },
        })
    }

    /// A source for one relay. Of several one is active, and the others wait to take over.
    pub fn source(&self) -> CdcOutboxReader {
        CdcOutboxReader::new(self.cdc.clone())
    }

    /// Takes this server and these tables for the right ones from here on: after a restore from a backup, a promotion,
    /// or a slot of [another table](CdcOutboxOptions::table) that was lost. The next relay makes its slot anew and
    /// begins with the table, as [`Rebase`] says; relays that run are fenced.
    pub async fn rebase(url: &str, rebase: Rebase) -> Result<(), OutboxReaderError> {
        PostgresOutbox::rebase(url, rebase).await
    }
}

pub(super) fn wrong(message: String) -> OutboxReaderError {
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message).into()
}

pub(super) fn lost(message: String) -> OutboxReaderError {
    StoreError::new(ErrorKind::Lost, Fate::NotApplied, message).into()
}
