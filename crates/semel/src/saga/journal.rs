//! Where sagas are recorded: the seam that every journal implements.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use super::entry::{Entry, NewEntry};
use super::protect::is_protected;
use super::state::{RowAnswer, RowEvent, SagaRow, Status, WorkerId};
use super::step::{StepError, StepResult};
use super::step_tx::StepTx;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Intent, IntentId};
use crate::intent::policy::StoreTime;
use crate::outbox::Event;
use crate::store::{ErrorKind, Fate, StoreError};

/// What a journal's methods return.
pub type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Most entries one saga may have.
pub const ENTRIES_MAX: u32 = 10_000;
/// Most bytes an input, a result or a signal may have.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// How much longer a body of that size may be when it is sealed.
pub(super) const ENVELOPE_BYTES_MAX: usize = 128;
/// Most sagas one page lists.
pub(super) const PAGE_MAX: usize = 1_000;
/// Longest id of a signal, in bytes.
pub const SIGNAL_ID_BYTES_MAX: usize = 255;
/// Most signals kept for one saga.
pub const SIGNALS_MAX: usize = 1_000;

/// The number of a saga in its journal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SagaNumber(pub u64);

/// A saga that begins.
#[derive(Clone, Debug)]
pub struct NewSaga {
    /// Whose it is, what is done, which one.
    pub intent: Intent,
    /// The fingerprint of its input.
    pub fingerprint: Fingerprint,
    /// The definition's name.
    pub name: String,
    /// The definition's version.
    pub version: u32,
    /// The input, as JSON.
    pub input: Bytes,
    /// When it is undone unless it has passed its pivot, in ms from now.
    pub deadline_ms: Option<u64>,
    /// The worker that runs it; `None`: the next that is free.
    pub worker: Option<WorkerId>,
}

/// What starting a saga found.
#[derive(Clone, Debug)]
pub enum SagaStarted {
    /// It is new.
    New {
        /// Its number.
        number: SagaNumber,
        /// Its row.
        row: SagaRow,
        /// The journal's clock.
        now: StoreTime,
    },
    /// The intent has one.
    Existing(Box<SagaRecord>),
}

/// A saga as people and callers see it.
#[derive(Clone, Debug)]
pub struct SagaRecord {
    /// Its number.
    pub number: SagaNumber,
    /// Its row.
    pub row: SagaRow,
    /// Its intent.
    pub intent: Intent,
    /// The fingerprint of its input.
    pub fingerprint: Fingerprint,
    /// The definition's name.
    pub name: String,
    /// The version it began with.
    pub version: u32,
    /// Its input.
    pub input: Bytes,
    /// What it ended in: the result, or why it was undone.
    pub outcome: Option<Bytes>,
    /// When it began.
    pub created_at: StoreTime,
}

/// A saga with its journal.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The saga.
    pub record: SagaRecord,
    /// Its entries, in order.
    pub entries: Vec<Entry>,
    /// Its signals, in the order in which they came.
    pub signals: Vec<Signal>,
    /// The journal's clock.
    pub now: StoreTime,
}

/// Something that somebody tells a saga.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signal {
    /// A signal with the same id is the same signal.
    pub id: String,
    /// What the saga waits for it by.
    pub name: String,
    /// What it says, as JSON.
    pub body: Bytes,
}

/// What became of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signalled {
    /// Recorded; the saga sees it.
    Recorded,
    /// It was there before.
    Already,
    /// The saga has ended, or there is none.
    TooLate,
    /// It has too many signals.
    TooMany,
}

/// An event with what belongs to it.
#[derive(Clone, Debug)]
pub struct SagaChange {
    /// The event.
    pub event: RowEvent,
    /// The number of the first entry.
    pub from_seq: u32,
    /// Entries, written if the event says so.
    pub entries: Vec<NewEntry>,
    /// What it ended in.
    pub outcome: Option<Bytes>,
    /// Events that are published when it ends.
    pub events: Vec<Event>,
}

impl SagaChange {
    /// An event with entries.
    pub fn new(event: RowEvent, from_seq: u32, entries: Vec<NewEntry>) -> Self {
        Self { event, from_seq, entries, outcome: None, events: Vec::new() }
    }

    /// Refuses what is too large, before anything is written.
    pub(super) fn check_sizes(&self) -> Result<(), StoreError> {
        let bodies = self.entries.iter().flat_map(|entry| [&entry.input, &entry.body]);
        bodies.chain([&self.outcome]).flatten().try_for_each(check_size)
    }

    /// An event alone.
    pub fn of(event: RowEvent) -> Self {
        Self::new(event, 0, Vec::new())
    }
}

/// What an event came to.
#[derive(Clone, Debug)]
pub struct SagaChanged {
    /// The answer.
    pub answer: RowAnswer,
    /// The row as it is now; `None`: there is no such saga.
    pub row: Option<SagaRow>,
    /// The journal's clock: the time of the entries that were written.
    pub now: StoreTime,
}

/// The work of an atomic step, without its types. It may be run again: each time in a transaction of its own.
pub trait AtomicWork: Send + Sync + 'static {
    /// Does it.
    fn run<'t>(
        &'t self,
        tx: &'t mut StepTx<'_>,
    ) -> Pin<Box<dyn Future<Output = StepResult<Bytes>> + Send + 't>>;
}

/// What an atomic step came to.
#[derive(Clone, Debug)]
pub enum AtomicEnd {
    /// Committed, now or before, with this result. The journal has the pending entries and the step's.
    Done {
        /// The step's result.
        result: Bytes,
        /// The journal's clock: the time of the entries.
        now: StoreTime,
    },
    /// The step failed, and everything was rolled back, the pending entries too.
    Failed(StepError),
    /// The epoch is over: nothing was run.
    Lost,
}

/// A definition's name and version, as workers take them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DefinitionId {
    /// The name.
    pub name: String,
    /// The newest version it runs; it runs all before it, too.
    pub version: u32,
}

/// A saga that a worker took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakenSaga {
    /// Its number.
    pub number: SagaNumber,
    /// Its row, with the new epoch.
    pub row: SagaRow,
    /// Another worker had it, whose lease is over.
    pub taken_over: bool,
}

/// Whether this process can read a saga, by its stored input (as much of it as says so), and if not, why.
pub type MayRead = dyn Fn(SagaNumber, &[u8]) -> Result<(), StoreError> + Send + Sync;

/// How many sagas a journal has. Counting stops at 10,000 of each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SagaFigures {
    /// Sagas that have not ended, by status.
    pub open: Vec<(Status, u64)>,
    /// When the oldest saga that is parked began.
    pub oldest_parked: Option<StoreTime>,
    /// Sagas that have been due, or without their worker, for longer than was asked about, by definition: no worker took
    /// them.
    pub overdue: Vec<(DefinitionId, u64)>,
    /// The journal's clock.
    pub now: StoreTime,
}

/// Counting stops here.
pub(super) const FIGURES_MAX: u64 = 10_000;

/// Which sagas to list; empty means all.
#[derive(Clone, Debug, Default)]
pub struct SagaFilter {
    /// Only with one of these.
    pub statuses: Vec<Status>,
    /// Only of this definition.
    pub name: Option<String>,
    /// Only with a number below this one: the next page.
    pub before: Option<SagaNumber>,
    /// At most this many.
    pub limit: usize,
}

impl SagaFilter {
    /// Whether it is one of them.
    pub fn wants(&self, record: &SagaRecord) -> bool {
        (self.statuses.is_empty() || self.statuses.contains(&record.row.status))
            && self.name.as_ref().is_none_or(|name| *name == record.name)
            && self.before.is_none_or(|before| record.number < before)
    }

    /// How many a page has at most.
    pub fn page(&self) -> usize {
        if self.limit == 0 { PAGE_MAX } else { self.limit.min(PAGE_MAX) }
    }
}

/// Refuses what is too large for a journal.
pub(super) fn check_size(body: &Bytes) -> Result<(), StoreError> {
    // The limit applies to what is in the envelope: the call has been made, and its result fits.
    let envelope = if is_protected(body) { ENVELOPE_BYTES_MAX } else { 0 };
    if body.len() <= BODY_BYTES_MAX + envelope { Ok(()) } else { Err(too_large(body.len())) }
}

pub(super) fn too_large(bytes: usize) -> StoreError {
    let message = format!(
        "{bytes} bytes are too many for a saga's journal (at most {BODY_BYTES_MAX}); keep the data elsewhere, and a \
         reference to it in the saga"
    );
    StoreError::new(ErrorKind::TooLarge, Fate::NotApplied, message)
}

/// An entry whose number is taken: by itself, or by another, which no worker with this epoch could have written.
pub(super) fn check_written(entry: &Entry, stored: &Entry) -> Result<(), StoreError> {
    if entry.is_repeat_of(stored) {
        return Ok(());
    }
    let message = format!(
        "entry {} of the saga is {} of {}, not {} of {}: its journal was changed by somebody else",
        entry.seq,
        stored.kind.as_str(),
        stored.step,
        entry.kind.as_str(),
        entry.step
    );
    Err(StoreError::new(ErrorKind::Corrupt, Fate::NotApplied, message))
}

/// Where sagas are recorded.
///
/// Laws of all methods:
/// 1. **The journal's clock** decides leases, deadlines and what is due.
/// 2. **Durable before acknowledged.**
/// 3. **One row, one decision**: each change locks the saga's row, asks [`step`](super::state::step), and writes the
///    row and the entries in one commit. Nothing is written if it says so.
/// 4. **Errors say what is known**, and every method may be called again with the same arguments: entries that are
///    there with the same number, epoch, kind and step count as written.
pub trait Journal: Send + Sync + 'static {
    /// The journal's clock.
    fn now(&self) -> Answering<'_, StoreTime>;

    /// Registers a worker. Its number was never used before.
    fn join(&self, lease_ms: u64) -> Answering<'_, WorkerId>;

    /// Extends the worker's lease from now. `false`: it has ended, and its sagas are or will be taken; it never comes
    /// back.
    fn renew(&self, worker: WorkerId, lease_ms: u64) -> Answering<'_, bool>;

    /// Ends a worker: its sagas are due at once.
    fn leave(&self, worker: WorkerId) -> Answering<'_, ()>;

    /// Starts a saga, unless its intent has one. Nothing is said about the fingerprint: the caller compares.
    fn start(&self, saga: NewSaga) -> Answering<'_, SagaStarted>;

    /// Applies an event.
    fn change(&self, number: SagaNumber, change: SagaChange) -> Answering<'_, SagaChanged>;

    /// Runs an atomic step in one transaction: locks the saga's row, asks [`step`](super::state::step) about the change's
    /// event, looks for the step's own `done` (its answer was lost), writes the change's entries, does the work and
    /// writes `done` with its result behind them. If the work fails, nothing is written.
    fn atomic<'a>(
        &'a self,
        number: SagaNumber,
        change: SagaChange,
        done: NewEntry,
        work: Arc<dyn AtomicWork>,
    ) -> Answering<'a, AtomicEnd>;

    /// Reads a saga with its journal, in one snapshot.
    fn load(&self, number: SagaNumber) -> Answering<'_, Option<Loaded>>;

    /// Reads a saga without its journal, and without waiting: a change that is not committed yet is missing.
    fn look(&self, number: SagaNumber) -> Answering<'_, Option<SagaRecord>>;

    /// Reads the saga of an intent.
    fn find(&self, id: IntentId) -> Answering<'_, Option<SagaRecord>>;

    /// Takes up to `limit` sagas of these definitions: those that are due, and those of workers whose lease ended. Such
    /// a worker is ended first, in a commit of its own, so that it cannot be renewed. Each gets a new epoch.
    fn take<'a>(
        &'a self,
        worker: WorkerId,
        definitions: &'a [DefinitionId],
        limit: usize,
    ) -> Answering<'a, Vec<(SagaNumber, SagaRow)>>;

    /// As [`take`](Self::take), but nothing at all is taken if one of them may not be read: a process that lacks a key
    /// would hold sagas that it cannot run. A journal that another one wraps passes it on.
    fn take_readable<'a>(
        &'a self,
        worker: WorkerId,
        definitions: &'a [DefinitionId],
        limit: usize,
        _may_read: Arc<MayRead>,
    ) -> Answering<'a, Vec<TakenSaga>> {
        Box::pin(async move {
            let taken = self.take(worker, definitions, limit).await?;
            Ok(taken.into_iter().map(|(number, row)| TakenSaga { number, row, taken_over: false }).collect())
        })
    }

    /// How many sagas there are. `overdue_ms`: since when no worker took them. `None`: this journal does not count.
    fn figures(&self, _overdue_ms: u64) -> Answering<'_, Option<SagaFigures>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// The sagas this worker has: it asks when an answer was lost, so that none is its own and runs nowhere.
    fn owned(&self, worker: WorkerId) -> Answering<'_, Vec<(SagaNumber, SagaRow)>>;

    /// Records a signal and wakes the saga.
    fn signal(&self, number: SagaNumber, signal: Signal) -> Answering<'_, Signalled>;

    /// Lists sagas, newest first.
    fn list(&self, filter: SagaFilter) -> Answering<'_, Vec<SagaRecord>>;

    /// Deletes up to `limit` ended sagas whose retention is over, with all that belongs to them.
    fn sweep(&self, limit: usize) -> Answering<'_, usize>;
}
