//! Options for opening an outbox that is read from the log.

use std::sync::Arc;
use std::time::Duration;

use super::CdcOutboxReader;
use super::table::RoutedTable;
use crate::fault::Hook;
use crate::relay::outbox_reader::{OutboxReaderError, Rebase};
use crate::relay::postgres::Outbox;
use crate::relay::postgres::leased_session::LeasedSession;
use crate::relay::reader_options::{ReaderOptions, reader_options};
use crate::store::postgres::PostgresOptions;
use crate::store::{ErrorKind, Fate, StoreError};

/// An outbox in PostgreSQL, read from the server's log. Cheap to clone.
///
/// Create the tables with [`outbox::schema`](crate::outbox::schema), even if the events are in
/// [another table](RoutedTable): they store parked events and checkpoints. The URL has the form of a
/// [`PostgresStore`](crate::store::postgres) URL, to the server itself: poolers do not support replication.
#[derive(Clone)]
pub struct CdcOutbox {
    pub(super) cdc: Arc<Cdc>,
}

pub(super) struct Cdc {
    pub(super) outbox: Arc<Outbox>,
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
    pub(super) plant: Hook<Plant>,
}

/// Bugs that tests plant, to check that they are caught.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "fault-injection"), allow(unreachable_pub))]
pub enum Plant {
    /// Acks events that the sink has not confirmed.
    AckUnconfirmed,
    /// Positions consist of the commit only, without the event's number.
    CommitOnly,
    /// Reads the table while transactions that may be before the slot are still open.
    AdoptAtOnce,
}

/// The names of slot and publication.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) slot: String,
    pub(super) publication: String,
}

impl StreamOptions {
    /// Slots belong to the whole cluster and publications to a database. So by default they are named after the lineage
    /// of the tables: each outbox has its own.
    pub(super) fn names(&self, lineage: &str) -> Names {
        let short: String = lineage.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
        let usual = format!("semel_outbox_{}", short.to_ascii_lowercase());
        Names {
            slot: self.slot.clone().unwrap_or_else(|| usual.clone()),
            publication: self.publication.clone().unwrap_or(usual),
        }
    }
}

/// Options for opening an outbox. The defaults suit a service.
#[derive(Clone, Debug)]
pub struct CdcOutboxOptions {
    postgres: PostgresOptions,
    options: ReaderOptions,
    stream: StreamOptions,
}

reader_options!(CdcOutboxOptions, options);

impl CdcOutboxOptions {
    /// The slot's name: lower-case letters, digits and `_`. Default: a name of this outbox's own.
    pub fn slot(mut self, name: &str) -> Result<Self, OutboxReaderError> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if name.is_empty() || name.len() > 63 || !name.bytes().all(plain) {
            return Err(misconfigured(format!(
                "{name:?} is not a valid slot name; use 1 to 63 lower-case letters, digits and _"
            )));
        }
        self.stream.slot = Some(name.to_owned());
        Ok(self)
    }

    /// The publication's name. Default: a name of this outbox's own.
    pub fn publication(mut self, name: &str) -> Result<Self, OutboxReaderError> {
        if name.is_empty() || name.len() > 63 || name.contains('\0') {
            return Err(misconfigured(format!(
                "{name:?} is not a valid publication name; use 1 to 63 bytes without NUL"
            )));
        }
        self.stream.publication = Some(name.to_owned());
        Ok(self)
    }

    /// Whether to create slot and publication if they do not exist. Default: yes. For a user without the privileges an
    /// administrator creates them; see [`CdcOutbox::check`].
    pub fn create(mut self, create: bool) -> Self {
        self.stream.create = create;
        self
    }

    /// Reads events from another table, with its own columns.
    ///
    /// Its rows may be deleted at once, even in the transaction that inserts them. But then nothing is left to continue
    /// from if the slot is lost: the relay stops with an error, and an operator [decides](CdcOutbox::rebase).
    pub fn table(mut self, table: RoutedTable) -> Self {
        self.stream.table = Some(table);
        self
    }

    /// How often the relay checkpoints and acks to the server. Default: every second, and five times less often without
    /// new events. After a crash, a sink that keeps no position gets everything since the last checkpoint again.
    pub fn checkpoint_interval(mut self, every: Duration) -> Self {
        self.stream.checkpoint_interval = every.clamp(Duration::from_millis(1), Duration::from_secs(60));
        self
    }

    /// Whether to continue automatically after a standby was promoted to primary. Its log may differ from the end of
    /// the old one, so the relay continues from the table and sends some events again. By default it stops until an
    /// operator [decides](CdcOutbox::rebase).
    pub fn follow_promotions(mut self, follow: bool) -> Self {
        self.stream.follow_promotions = follow;
        self
    }

    /// Warns when the slot makes the server retain more log than this. Default: 1 GiB.
    pub fn warn_bytes(mut self, bytes: u64) -> Self {
        self.stream.warn_bytes = bytes;
        self
    }

    /// Drops the slot when it makes the server retain more log than this, because the sink is down for long: the
    /// server's disk is worth more than our position in the log. The table has all events, and the relay continues from
    /// there when the sink is back, and sends some events again. Default: never. Has no effect with [another
    /// table](Self::table).
    pub fn held_bytes_max(mut self, bytes: u64) -> Self {
        self.stream.held_bytes_max = Some(bytes);
        self
    }

    /// Plants a bug, so that tests can check that it is caught.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn plant(mut self, plant: Plant) -> Self {
        self.stream.plant = plant.into();
        self
    }

    /// Connects once, to check the server and the tables. The first relay checks slot and publication.
    pub async fn open(self) -> Result<CdcOutbox, OutboxReaderError> {
        let cdc = self.unchecked()?;
        LeasedSession::open(&cdc.cdc.outbox, "").await?.close().await;
        Ok(cdc)
    }

    pub(super) fn unchecked(self) -> Result<CdcOutbox, OutboxReaderError> {
        let outbox = Arc::new(Outbox::new(self.postgres, self.options, Hook::default())?);
        Ok(CdcOutbox { cdc: Arc::new(Cdc { outbox, stream: self.stream }) })
    }
}

impl CdcOutbox {
    /// Opens the outbox in the database of this URL.
    pub async fn open(url: &str) -> Result<Self, OutboxReaderError> {
        Self::options(url)?.open().await
    }

    /// Options for opening the outbox in the database of this URL.
    pub fn options(url: &str) -> Result<CdcOutboxOptions, OutboxReaderError> {
        Ok(CdcOutboxOptions {
            postgres: PostgresOptions::from_url(url)?,
            options: ReaderOptions::default(),
            stream: StreamOptions {
                slot: None,
                publication: None,
                create: true,
                table: None,
                checkpoint_interval: Duration::from_secs(1),
                follow_promotions: false,
                warn_bytes: 1 << 30,
                held_bytes_max: None,
                plant: Hook::default(),
            },
        })
    }

    /// A reader for one relay. Of several relays one is the leader, and the others are on standby.
    pub fn source(&self) -> CdcOutboxReader {
        CdcOutboxReader::new(self.cdc.clone())
    }

    /// Accepts this server and these tables as the right ones from now on: after a restore from a backup, a promotion,
    /// or the loss of a slot of [another table](CdcOutboxOptions::table). The next relay recreates its slot and begins
    /// with the table, as [`Rebase`] says. Running relays are fenced.
    pub async fn rebase(url: &str, rebase: Rebase) -> Result<(), OutboxReaderError> {
        crate::relay::postgres::rebase(url, rebase).await
    }
}

pub(super) fn misconfigured(message: String) -> OutboxReaderError {
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message).into()
}

pub(super) fn lost(message: String) -> OutboxReaderError {
    StoreError::new(ErrorKind::Lost, Fate::NotApplied, message).into()
}
