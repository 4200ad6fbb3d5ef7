//! Where events come from: the seam of a source.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::outbox::Event;
use crate::store::StoreError;

/// Gives events in batches and remembers which were settled.
///
/// Laws of an implementation:
/// - **Written down before it is sent.** A batch that [`next`](OutboxReader::next) has given is stored; after a crash `next`
///   of whoever comes gives the same events in the same order.
/// - **One at a time.** Until [`ack`](OutboxReader::ack) `next` gives the same batch again.
/// - **Order.** Events of one key come in the order in which their transactions had them. No committed event is left
///   out, whatever commits late, rolls back or stays open.
/// - **Fenced.** `ack` is one commit under the epoch of the owner, or [`OutboxReaderError::Fenced`] and no change at all.
/// - **Cancelled**, any call leaves everything stored as it was or as it would be; go on with `next`.
/// - Every call ends within a bound of its own.
pub trait OutboxReader: Send + 'static {
    /// The next batch, written down. `None`: there is nothing now.
    fn next(&mut self) -> impl Future<Output = Result<Option<Batch>, OutboxReaderError>> + Send;

    /// Asks for all of it, for a relay whose sink keeps one position: such a relay cannot share. `true`: whatever there
    /// is comes from here until the lease is lost. `false`: another has some of it, and nothing was taken.
    ///
    /// Once asked, [`next`](OutboxReader::next) takes nothing by itself any more: when all is lost it says
    /// [`OutboxReaderError::Fenced`] until this is asked again, because whoever takes has to ask the sink first. A source
    /// that cannot be had whole says [`OutboxReaderError::Shared`].
    fn acquire_exclusive(&mut self) -> impl Future<Output = Result<bool, OutboxReaderError>> + Send {
        std::future::ready(Err(OutboxReaderError::Shared))
    }

    /// Told by a sink that keeps the position beside the events, when nobody else can change it any more: before the
    /// first batch, and again whenever it was in doubt what the sink has. `None`: it has none of ours.
    ///
    /// A source that writes its batches down gives that batch before any other, as long as it is not done, under the
    /// same position, and it is seen what of it was published. One that forms its batches anew gives nothing up to that
    /// position but what was left out. A position of another lineage is [`OutboxReaderError::OutboxLineage`], and one that was
    /// never given here, because the database has gone back, is [`OutboxReaderError::Behind`].
    fn resume(
        &mut self,
        _: Option<&SinkCheckpoint>,
    ) -> impl Future<Output = Result<(), OutboxReaderError>> + Send {
        std::future::ready(Ok(()))
    }

    /// What became of each event of the batch. Confirmed ones are past; the others are copied to where parked events
    /// are; both in one commit.
    fn ack(&mut self, settled: &[Settled]) -> impl Future<Output = Result<(), OutboxReaderError>> + Send;

    /// Shows that the owner lives. Called when [`renew_after`](OutboxReader::renew_after) is over, also while a
    /// batch is on its way.
    fn renew_lease(&mut self) -> impl Future<Output = Result<(), OutboxReaderError>> + Send;

    /// When it wants to be kept again.
    fn renew_after(&self) -> Duration;

    /// Whether the batch is certainly still ours, by a clock that began before the lease did. Asked before anything is
    /// sent: whoever was stopped for long must not send what another has sent since.
    fn holds_lease(&self) -> bool;

    /// Forgets what is published and older than this, in small bites. Never what is not published.
    fn prune(
        &mut self,
        older_than: Duration,
    ) -> impl Future<Output = Result<Pruned, OutboxReaderError>> + Send;

    /// How much is left. Not exact: for people and alerts.
    fn lag(&mut self) -> impl Future<Output = Result<Lag, OutboxReaderError>> + Send;

    /// Gives everything back, so that others take it at once.
    fn release(&mut self) -> impl Future<Output = Result<(), OutboxReaderError>> + Send;
}

/// Events to be published, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Batch {
    /// Which batch of which source this is: the same if it is given again.
    pub position: Position,
    /// The events. Never empty.
    pub events: Vec<Pending>,
    /// They were parked and are tried again: one that fails is parked again at once.
    pub is_retry: bool,
}

impl Batch {
    /// A batch of these.
    pub fn new(position: Position, events: Vec<Pending>) -> Self {
        Self { position, events, is_retry: false }
    }

    /// A batch of parked events that are tried again.
    pub fn retry(position: Position, events: Vec<Pending>) -> Self {
        Self { position, events, is_retry: true }
    }
}

/// An event of a batch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pending {
    /// The event.
    pub event: Arc<Event>,
    /// An earlier event of its key is parked: this one must not be sent but is to be [held](Settled::Held).
    pub held: bool,
    /// Why it cannot be published, where its row cannot be read: it must not be sent but is to be [parked](Settled::Parked).
    pub unreadable: Option<String>,
}

impl Pending {
    /// One that may be sent.
    pub fn new(event: Event) -> Self {
        Self { event: Arc::new(event), held: false, unreadable: None }
    }
}

/// What became of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Settled {
    /// The sink has it.
    Confirmed,
    /// It is set aside, and what comes after it in its key is held.
    Parked {
        /// What the sink said.
        error: String,
        /// The sink will never take it: only a person has it tried again.
        for_good: bool,
        /// Only the event is set aside, and its key goes on.
        alone: bool,
    },
    /// An earlier event of its key is parked.
    Held,
}

/// Whose events these are: the tables, and the database system they are in. What was stored under another lineage says
/// nothing here.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct OutboxLineage {
    store: String,
    system: Option<String>,
}

impl OutboxLineage {
    pub(crate) fn new(store: String, system: Option<String>) -> Self {
        Self { store, system }
    }

    /// The tables' own part.
    #[cfg(feature = "postgres")]
    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    /// Reads what [`Display`](fmt::Display) wrote: the tables' own lineage, and after a `/` the system's.
    pub fn read(text: &str) -> Self {
        match text.split_once('/') {
            Some((store, system)) => Self::new(store.to_owned(), Some(system.to_owned())),
            None => Self::new(text.to_owned(), None),
        }
    }

    /// Whether both can be of one place. Where one does not know the system, the tables decide.
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

/// Names a batch. It has the lineage in it, so a position kept elsewhere cannot be taken for one of another database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Position {
    /// Of the source.
    pub lineage: OutboxLineage,
    /// The rest, in the source's own words.
    pub place: String,
}

impl Position {
    /// As bytes, to be kept beside the events by a sink that can.
    pub fn to_bytes(&self) -> Vec<u8> {
        format!("{}\n{}", self.lineage, self.place).into_bytes()
    }

    /// What [`to_bytes`](Self::to_bytes) wrote.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (lineage, place) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
        Some(Self { lineage: OutboxLineage::read(lineage), place: place.to_owned() })
    }
}

/// How far a sink that keeps the position beside the events has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SinkCheckpoint {
    /// The batch that was published last.
    pub position: Position,
    /// Events of it that were not: parked, or behind one that is.
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
    /// Whether it is this event.
    pub fn is(&self, event: &Event) -> bool {
        self.event == event.id() && self.topic.as_ref().is_none_or(|topic| topic == event.topic())
    }
}

impl From<Uuid> for LeftOut {
    /// The only event of its batch with this id.
    fn from(event: Uuid) -> Self {
        Self { event, topic: None }
    }
}

/// How much is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Lag {
    /// Events not yet published, parked ones not counted. Counting stops at 10,000.
    pub events: u64,
    /// For how long the oldest of them waits.
    pub oldest: Option<Duration>,
    /// Parked and held events. Counting stops at 10,000.
    pub parked: u64,
    /// Lanes that are ours.
    pub lanes: u32,
    /// The highest epoch under which one of them is.
    pub epoch: Option<u64>,
    /// What the server keeps of its log for us, where it says so.
    pub bytes: Option<u64>,
}

/// What was forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Pruned {
    /// Whole tables emptied.
    pub tables: u32,
    /// Rows deleted.
    pub rows: u64,
}

/// An event that is set aside or held.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Parked {
    /// Names what is held together: the partition key; of an event that has none, or is parked alone, its id, a slash and its topic.
    pub key: String,
    /// The event, payload and all.
    pub event: Event,
    /// What the sink said; `None` for one that waits behind another.
    pub error: Option<String>,
    /// Since when.
    pub since: SystemTime,
}

impl Parked {
    /// The event's id, by which it is skipped, together with its topic where several have it.
    pub fn id(&self) -> Uuid {
        self.event.id()
    }
}

/// Where to go on after the lineage has changed. A person's decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Rebase {
    /// Publish everything that is in the table, also what was published before: same ids.
    Everything,
    /// Take all that is in the table for published.
    FromNow,
}

/// Why a source cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxReaderError {
    /// Another relay has taken the lanes over. Nothing was changed; `next` goes on with what is still ours.
    #[error("another relay has taken over lanes of this one; it goes on with the others")]
    Fenced,
    /// The cursor was written for other tables, or in another cluster.
    #[error(
        "the cursor was written in {stored}, and this is {found}: another database answers to the name, or it was \
         restored from a dump or upgraded; find out which, then say where to go on with `semel outbox rebase`"
    )]
    OutboxLineage {
        /// What the cursor says.
        stored: OutboxLineage,
        /// What is there.
        found: OutboxLineage,
    },
    /// It cannot be had whole, which a relay that publishes exactly once needs.
    #[error(
        "this source is shared by several relays, and exactly once needs it whole: use a source that can be taken by one"
    )]
    Shared,
    /// The sink has more than this database has ever given it.
    #[error(
        "the sink has had {reached}, and the outbox does not know that it was given: the database was restored from an \
         older backup, a standby without the last commits was promoted, or the outbox was rebased; find out what \
         consumers have seen, then give this relay a transactional id of its own: it goes on where the outbox's own \
         cursor is"
    )]
    Behind {
        /// The batch that the sink has had last.
        reached: String,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl OutboxReaderError {
    /// Whether going on with `next` a little later makes sense.
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
        let position = Position { lineage: OutboxLineage::read("a/1"), place: "3:9:4 5".into() };
        assert_eq!(Position::from_bytes(&position.to_bytes()), Some(position));
        assert_eq!(Position::from_bytes(b"nonsense"), None);
    }
}
