//! The interface to an outbox: lease, batch, cursor, ack.

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::outbox::Event;
use crate::store::StoreError;

/// Reads an outbox in batches and records what was settled.
///
/// Laws of an implementation:
/// - **Recorded before it is sent.** A batch returned by [`next`](OutboxReader::next) is stored. After a crash the next
///   relay gets the same events in the same order.
/// - **One at a time.** Until [`ack`](OutboxReader::ack), `next` returns the same batch again.
/// - **Order.** Events of one key come in the order in which their transactions appended them. No committed event is
///   left out, whatever commits late, rolls back or stays open.
/// - **Fenced.** `ack` is one commit under the owner's epoch, or [`OutboxReaderError::Fenced`] and no change at all.
/// - **Cancelled**, any call leaves the stored state as it was or as it would have become; continue with `next`.
/// - Every call ends within its own time limit.
pub trait OutboxReader: Send + 'static {
    /// Records and returns the next batch. `None`: there is nothing to publish now.
    fn next(&mut self) -> impl Future<Output = Result<Option<Batch>, OutboxReaderError>> + Send;

    /// Leases the whole outbox, for a relay whose sink stores one checkpoint: such a relay cannot share. `true`: leased
    /// until the lease is lost. `false`: another relay has some of it, and nothing was leased.
    ///
    /// From then on [`next`](OutboxReader::next) acquires no lease by itself. Once the lease is lost it returns
    /// [`OutboxReaderError::Fenced`] until this is called again, because the new owner has to read the sink's
    /// checkpoint first. An outbox that cannot be leased as a whole returns [`OutboxReaderError::Shared`].
    fn acquire_exclusive(&mut self) -> impl Future<Output = Result<bool, OutboxReaderError>> + Send {
        std::future::ready(Err(OutboxReaderError::Shared))
    }

    /// Resumes from the sink's checkpoint, once no other relay can change it: before the first batch, and again
    /// whenever it was in doubt what was published. `None`: the sink has no checkpoint of this relay.
    ///
    /// A reader that records its batches returns the checkpoint's batch first, under the same position, unless it is
    /// acked; the checkpoint shows which of its events were published. A reader that forms its batches anew returns, up
    /// to that position, only the events that were left out. A checkpoint of another lineage is
    /// [`OutboxReaderError::OutboxLineage`]. One of a batch that this database never had, because it was set back to an
    /// older state, is [`OutboxReaderError::Behind`].
    fn resume(
        &mut self,
        _: Option<&SinkCheckpoint>,
    ) -> impl Future<Output = Result<(), OutboxReaderError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Acks the batch with the outcome of each event. In one commit, the cursor passes the batch and the events that
    /// are not confirmed are copied to the parked events.
    fn ack(&mut self, settled: &[Settled]) -> impl Future<Output = Result<(), OutboxReaderError>> + Send;

    /// Renews the lease (heartbeat). Called after [`renew_after`](OutboxReader::renew_after), also while a batch is in
    /// flight.
    fn renew_lease(&mut self) -> impl Future<Output = Result<(), OutboxReaderError>> + Send;

    /// Time until the lease should be renewed.
    fn renew_after(&self) -> Duration;

    /// Whether the lease is certainly valid, by a clock that started before it did. Checked before each send: a relay
    /// that was paused for long must not send what another has sent since.
    fn holds_lease(&self) -> bool;

    /// Retention: deletes published events older than this, in bounded batches. Never an unpublished one.
    fn prune(
        &mut self,
        older_than: Duration,
    ) -> impl Future<Output = Result<Pruned, OutboxReaderError>> + Send;

    /// Measures the lag. Not exact: for people and alerts.
    fn lag(&mut self) -> impl Future<Output = Result<Lag, OutboxReaderError>> + Send;

    /// Releases all leases, so that other relays can take over at once.
    fn release(&mut self) -> impl Future<Output = Result<(), OutboxReaderError>> + Send;
}

/// Events to be published, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Batch {
    /// Identifies the batch. A batch that is read again has the same position.
    pub position: Position,
    /// The events. Never empty.
    pub events: Vec<Pending>,
    /// A retry of parked events: one that fails is parked again at once.
    pub is_retry: bool,
}

impl Batch {
    /// A batch of these events.
    pub fn new(position: Position, events: Vec<Pending>) -> Self {
        Self { position, events, is_retry: false }
    }

    /// A retry of these parked events.
    pub fn retry(position: Position, events: Vec<Pending>) -> Self {
        Self { position, events, is_retry: true }
    }

    /// The events with these indexes.
    pub(super) fn events_at(&self, indexes: &[usize]) -> Vec<Arc<Event>> {
        let pending = indexes.iter().filter_map(|at| self.events.get(*at));
        pending.map(|pending| Arc::clone(&pending.event)).collect()
    }
}

/// An event of a batch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pending {
    /// The event.
    pub event: Arc<Event>,
    /// An earlier event of its key is parked: this one must not be sent, but [held](Settled::Held).
    pub held: bool,
    /// Why its row cannot be read, if so: the event must not be sent, but [parked](Settled::Parked).
    pub unreadable: Option<String>,
}

impl Pending {
    /// An event that may be sent.
    pub fn new(event: Event) -> Self {
        Self { event: Arc::new(event), held: false, unreadable: None }
    }
}

/// The outcome of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Settled {
    /// The sink has it.
    Confirmed,
    /// The event is parked, and later events of its key are held.
    Parked {
        /// The sink's error.
        error: String,
        /// The sink will never accept it: only a person can have it retried.
        for_good: bool,
        /// Only the event is parked; its key continues.
        alone: bool,
    },
    /// An earlier event of its key is parked.
    Held,
}

/// Identifies an outbox: its tables and their database system. A cursor or checkpoint of another lineage does not
/// apply.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct OutboxLineage {
    store: String,
    system: Option<String>,
}

impl OutboxLineage {
    pub(crate) fn new(store: String, system: Option<String>) -> Self {
        Self { store, system }
    }

    /// The part that identifies the tables.
    #[cfg(feature = "postgres")]
    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    /// Parses what [`Display`](fmt::Display) wrote: the tables' lineage, and after a `/` the system's.
    pub fn read(text: &str) -> Self {
        match text.split_once('/') {
            Some((store, system)) => Self::new(store.to_owned(), Some(system.to_owned())),
            None => Self::new(text.to_owned(), None),
        }
    }

    /// Whether both can be the same outbox. If either does not know the system, the tables decide.
    pub fn matches(&self, other: &Self) -> bool {
        let system = match (&self.system, &other.system) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        self.store == other.store && system
    }
}

impl fmt::Display for OutboxLineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store)?;
        self.system.iter().try_for_each(|system| write!(f, "/{system}"))
    }
}

/// Identifies a batch. The lineage keeps it from being mistaken for one of another database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Position {
    /// The outbox's lineage.
    pub lineage: OutboxLineage,
    /// The end of the batch.
    pub cursor: BatchCursor,
}

/// The end of a batch, in the outbox reader's own format. Only the reader knows what it means: it formats the cursor
/// when it gives the batch, and parses it when it resumes there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchCursor(String);

impl BatchCursor {
    /// Formats a reader's cursor.
    pub fn of(cursor: impl fmt::Display) -> Self {
        Self(cursor.to_string())
    }

    /// Parses it. `None`: another kind of reader wrote it.
    pub fn parse<C: FromStr>(&self) -> Option<C> {
        self.0.parse().ok()
    }
}

impl fmt::Display for BatchCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Position {
    /// Encodes the position, for a sink that can store it beside the events.
    pub fn to_bytes(&self) -> Vec<u8> {
        format!("{}\n{}", self.lineage, self.cursor).into_bytes()
    }

    /// Decodes what [`to_bytes`](Self::to_bytes) wrote.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (lineage, cursor) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
        Some(Self { lineage: OutboxLineage::read(lineage), cursor: BatchCursor::of(cursor) })
    }
}

/// Warns that a reader cannot resume from the sink's position.
pub(super) fn written_by_another_kind(position: &Position) {
    tracing::warn!(
        cursor = %position.cursor,
        "the sink's position was written by another kind of outbox reader and cannot be used; events published since \
         the last checkpoint are sent again"
    );
}

/// The checkpoint that a sink stores beside the events: what was published last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SinkCheckpoint {
    /// The batch that was published last.
    pub position: Position,
    /// Events of that batch that were not published: parked, or held behind a parked event.
    pub left_out: Vec<LeftOut>,
}

/// An event that was not published with its batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftOut {
    /// Its id.
    pub event: Uuid,
    /// Its topic, where another event of the batch has the same id.
    pub topic: Option<String>,
}

impl LeftOut {
    /// Whether this names that event.
    pub fn is(&self, event: &Event) -> bool {
        self.event == event.id() && self.topic.as_ref().is_none_or(|topic| topic == event.topic())
    }
}

impl From<Uuid> for LeftOut {
    /// Names the only event of its batch with this id.
    fn from(event: Uuid) -> Self {
        Self { event, topic: None }
    }
}

/// The outbox's lag: how much is still to be published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Lag {
    /// Unpublished events, without parked ones. Counting stops at 10,000.
    pub events: u64,
    /// Age of the oldest of them.
    pub oldest: Option<Duration>,
    /// Parked and held events. Counting stops at 10,000.
    pub parked: u64,
    /// Outbox partitions that this relay owns.
    pub partitions: u32,
    /// The highest epoch of an owned partition.
    pub epoch: Option<u64>,
    /// Bytes of log that the server retains for this relay, if it says so.
    pub bytes: Option<u64>,
}

/// What was pruned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Pruned {
    /// Whole tables emptied.
    pub tables: u32,
    /// Rows deleted.
    pub rows: u64,
}

/// An event that is parked or held.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Parked {
    /// The parked key: the partition key; if the event has none, or is parked alone, its id, a slash and its topic.
    pub key: String,
    /// The event with its payload.
    pub event: Event,
    /// The sink's error. `None`: the event is held behind another.
    pub error: Option<String>,
    /// When it was parked.
    pub since: SystemTime,
}

impl Parked {
    /// The event's id, to skip it by; with its topic if several events share the id.
    pub fn id(&self) -> Uuid {
        self.event.id()
    }
}

/// Where to continue after the lineage has changed. A person decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Rebase {
    /// Publish everything in the table, also what was published before, with the same ids.
    Everything,
    /// Treat everything in the table as published.
    FromNow,
}

/// Why an outbox cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxReaderError {
    /// Another relay has taken over partitions. Nothing was changed; `next` continues with those still owned.
    #[error(
        "another relay has taken over some of this relay's outbox partitions; it continues with the others"
    )]
    Fenced,
    /// The cursor was written for other tables, or in another cluster.
    #[error(
        "the cursor was written in {stored}, but this is {found}: the address leads to another database, or it was \
         restored from a dump or upgraded; find out which, then choose where to continue with `semel outbox rebase`"
    )]
    OutboxLineage {
        /// The lineage in the cursor.
        stored: OutboxLineage,
        /// The lineage of this outbox.
        found: OutboxLineage,
    },
    /// It cannot be leased as a whole, which an exactly-once relay needs.
    #[error(
        "several relays share this outbox reader, but exactly-once needs the whole outbox: use a reader that one relay \
         can lease alone"
    )]
    Shared,
    /// The sink is ahead of this database.
    #[error(
        "the sink's last batch is {reached}, but the outbox has no record of it: the database was restored from an \
         older backup, a standby without the last commits was promoted, or the outbox was rebased; find out what \
         consumers have seen, then give this relay its own transactional id: it then continues from the outbox's cursor"
    )]
    Behind {
        /// The last batch in the sink.
        reached: String,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl OutboxReaderError {
    /// Whether to retry `next` a little later.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Fenced => true,
            Self::OutboxLineage { .. } | Self::Shared | Self::Behind { .. } => false,
            Self::Store(error) => error.may_retry(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lineage_is_compared_by_what_both_know() {
        let full = OutboxLineage::read("a/1");
        assert_eq!(full.to_string(), "a/1");
        assert!(full.matches(&OutboxLineage::read("a")) && OutboxLineage::read("a").matches(&full));
        assert!(!full.matches(&OutboxLineage::read("a/2")) && !full.matches(&OutboxLineage::read("b/1")));
    }

    #[test]
    fn a_position_reads_what_it_wrote() {
        let position = Position { lineage: OutboxLineage::read("a/1"), cursor: BatchCursor::of("3:9:4 5") };
        assert_eq!(position.to_bytes(), b"a/1\n3:9:4 5", "it is stored in sinks");
        assert_eq!(Position::from_bytes(&position.to_bytes()), Some(position));
        assert_eq!(Position::from_bytes(b"nonsense"), None);
    }
}
