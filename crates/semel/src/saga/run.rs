//! One saga at work: from the journal as it was read to its end, or until it has to wait.
//!
//! ```text
//!   load ─▶ forward: run the code; finished steps answer from the journal ─▶ end, wait, park
//!                │ refused, deadline, cancelled
//!                ▼
//!           begin to undo ─▶ load ─▶ undo: settle what is open, then undo in reverse ─▶ end, wait, park
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tracing::Instrument;

use super::call::{Target, text};
use super::definition::AnyDefinition;
use super::engine::{Engine, Unwritten};
use super::entry::{EntryKind, NewEntry, Op, Safe, StepId};
use super::history::{History, Known, START_MAX};
use super::journal::{Loaded, SagaChange, SagaNumber, SagaRecord, Signal, TakenSaga};
use super::limits::CallPermit;
use super::metrics::run_span;
use super::protect::is_protected;
use super::state::{ParkReason, RowAnswer, RowEvent, SagaRow, UndoCause, WorkerId};
use crate::crash::{AFTER_SAGA_WRITE, BEFORE_SAGA_WRITE, point};
use crate::intent::policy::StoreTime;
use crate::outbox::Event;

/// What became of a saga when its task ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// It ended.
    Ended,
    /// It goes on at this moment of the journal's clock, or when something comes.
    Waits(Option<StoreTime>),
    /// Somebody has to find out, or a lookup tries again then.
    Parked(ParkReason, Option<StoreTime>),
    /// Another worker has it, or will.
    Lost,
}

/// What came of running a saga.
pub(super) struct Ran {
    pub(super) left: Left,
    /// In what time it is due again.
    pub(super) due_in: Option<Duration>,
    /// The saga as it ended here: who waits for it need not ask the journal.
    pub(super) ended: Option<SagaRecord>,
    /// There was no room for another saga until now.
    pub(super) was_full: bool,
}

impl Ran {
    /// Another worker has it, or will.
    pub(super) const LOST: Self = Self::left(Left::Lost);

    const fn left(left: Left) -> Self {
        Self { left, due_in: None, ended: None, was_full: true }
    }
}

/// A saga as it was read from the journal, or started in it, at this moment of this process.
pub(super) type LoadedAt = (Loaded, Instant);

/// Why a part of the work stops early.
pub(super) enum Stop {
    /// Left as it says; recorded.
    Left(Left),
    /// Undoing has begun.
    Undo,
}

impl Stop {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Left(left) => left.as_str(),
            Self::Undo => "undo",
        }
    }
}

pub(super) type Going<T> = Result<T, Stop>;

/// One saga at work.
pub(super) struct Work<App: ?Sized> {
    pub(super) engine: Arc<Engine<App>>,
    pub(super) definition: Arc<dyn AnyDefinition<App>>,
    pub(super) worker: WorkerId,
    pub(super) number: SagaNumber,
    pub(super) epoch: u64,
    pub(super) record: SagaRecord,
    pub(super) history: History,
    pub(super) signals: Vec<Signal>,
    /// Signals counted in the row as this worker knows it.
    pub(super) signals_known: u32,
    pub(super) cancelled: bool,
    /// Entries of the history that are not written yet: the last ones.
    pub(super) pending: Vec<NewEntry>,
    /// Events that are published when it ends.
    pub(super) events: Vec<Event>,
    /// Why the saga is parked, for the log.
    pub(super) why: String,
    /// Another worker had it, whose lease was over.
    pub(super) taken_over: bool,
    /// The saga's place among those at work. It has none while it waits for others of its kind.
    pub(super) place: Option<OwnedSemaphorePermit>,
    /// The right to call the step of this name, kept until it is called.
    pub(super) reserved: Option<(String, CallPermit)>,
    /// The journal's clock at a moment of this process.
    clock: (StoreTime, Instant),
}

impl<App: Send + Sync + ?Sized + 'static> Work<App> {
    /// Runs a saga that this worker has in `epoch`, until it is left. What was started here just now need not be read.
    pub(super) async fn run(
        engine: Arc<Engine<App>>,
        worker: WorkerId,
        taken: TakenSaga,
        started: Option<LoadedAt>,
        mut place: Option<OwnedSemaphorePermit>,
    ) -> Ran {
        let TakenSaga { number, row, taken_over } = taken;
        let (mut epoch, mut started) = (row.epoch, started);
        loop {
            let loaded = match started.take() {
                Some(started) => Some(started),
                None => {
                    let row = SagaRow { epoch, ..row };
                    engine.load(number, row).await.map(|loaded| (loaded, Instant::now()))
                }
            };
            let Some(loaded) = loaded.filter(|(loaded, _)| loaded.record.row.epoch == epoch) else {
                return Ran::LOST;
            };
            if loaded.0.is_protected() {
                let row = loaded.0.record.row;
                return Ran::left(engine.give_back(number, row, loaded.0.now).await);
            }
            let name = &loaded.0.record.name;
            if taken_over && epoch == row.epoch {
                engine.metrics.taken_over(name);
                tracing::info!(saga = name, number = number.0, epoch, "a saga was taken over");
            }
            let Some(definition) = engine.definition(name) else { return Ran::LOST };
            let mut work = Self::new(Arc::clone(&engine), definition, worker, loaded);
            work.place = place.take();
            work.taken_over = taken_over;
            let span = run_span(&work.record);
            let left = match work.is_undoing() {
                true => work.undo().instrument(span.clone()).await,
                false => work.forward().instrument(span.clone()).await,
            };
            place = work.place.take();
            let outcome = match &left {
                Ok(left) => left.as_str(),
                Err(stop) => stop.as_str(),
            };
            span.record("outcome", outcome);
            match left {
                // The journal is read again: what was written until now counts, and the saga's code does not run any
                // more.
                Err(Stop::Undo) => epoch = work.epoch,
                Ok(left) | Err(Stop::Left(left)) => {
                    let due = match left {
                        Left::Waits(due) | Left::Parked(_, due) => due,
                        Left::Ended | Left::Lost => None,
                    };
                    let due_in = due.map(|due| Duration::from_millis(due.since_ms(work.now())));
                    let was_full = engine.running.available_permits() == 0;
                    let ended = (left == Left::Ended).then_some(work.record);
                    return Ran { left, due_in, ended, was_full };
                }
            }
        }
    }

    fn new(
        engine: Arc<Engine<App>>,
        definition: Arc<dyn AnyDefinition<App>>,
        worker: WorkerId,
        loaded: LoadedAt,
    ) -> Self {
        let (Loaded { record, entries, signals, now }, read_at) = loaded;
        let history = History::new(entries);
        let clock = (now.max(history.latest()), read_at);
        Self {
            engine,
            definition,
            worker,
            number: record.number,
            epoch: record.row.epoch,
            signals_known: record.row.signals,
            cancelled: record.row.cancelled,
            record,
            history,
            signals,
            pending: Vec::new(),
            events: Vec::new(),
            why: String::new(),
            taken_over: false,
            place: None,
            reserved: None,
            clock,
        }
    }

    /// The journal's clock, never behind what the journal has.
    pub(super) fn now(&self) -> StoreTime {
        let (then, at) = self.clock;
        then.plus_ms(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn is_undoing(&self) -> bool {
        self.record.row.undo.is_some()
    }

    /// Adds an entry that the next write takes along.
    pub(super) fn note(&mut self, entry: NewEntry) {
        let stamped = entry.clone().stamp(self.history.next_seq(), self.epoch, self.now());
        self.history.push(stamped);
        self.pending.push(entry);
    }

    /// Writes what is pending. After it the journal has everything the history has. `false`: the saga was cancelled
    /// before its pivot began, so that nothing begins.
    pub(super) async fn write(&mut self) -> Going<bool> {
        if self.pending.is_empty() {
            return Ok(true);
        }
        // Only the first entry of a step has its input.
        let begins_pivot = |entry: &NewEntry| {
            (entry.op, entry.kind) == (Op::Pivot, EntryKind::Begin) && entry.input.is_some()
        };
        let heeds_cancel = !self.is_undoing() && self.pending.iter().any(begins_pivot);
        let event = RowEvent::Append { epoch: self.epoch, undoing: self.is_undoing(), heeds_cancel };
        Ok(self.change(event, None).await? != RowAnswer::Refused)
    }

    /// Writes what is pending. `false`: a call must not be made any more. It took too long, because what is known of its
    /// end counts from its beginning, or the saga was cancelled before its pivot.
    pub(super) async fn write_in_time(&mut self) -> Going<bool> {
        let sent = Instant::now();
        Ok(self.write().await? && sent.elapsed() < START_MAX)
    }

    /// A call that was begun is not made.
    pub(super) fn note_not_sent(&mut self, target: &Target) {
        let progress = self.history.progress(&target.step, target.op == Op::Undo);
        if !progress.is_some_and(|known| (known.attempts, known.state) == (target.attempt, Known::Nothing)) {
            // Its beginning is not in the journal.
            return;
        }
        let why = text("the journal answered late, so nothing was sent");
        self.note(entry(EntryKind::Failed, &target.step, target.op, target.attempt, Some(why)));
    }

    /// Applies an event together with what is pending.
    async fn change(&mut self, event: RowEvent, outcome: Option<Bytes>) -> Going<RowAnswer> {
        let entries = std::mem::take(&mut self.pending);
        let from_seq = self.history.next_seq() - entries.len() as u32;
        let events = std::mem::take(&mut self.events);
        let change = SagaChange { event, from_seq, entries: entries.clone(), outcome, events };
        point(BEFORE_SAGA_WRITE);
        let parks = matches!(change.event, RowEvent::Suspend { park: Some(_), .. });
        let changed = match self.engine.change(self.number, change).await {
            Ok(changed) => changed,
            Err(Unwritten::Refused(why)) if !parks => {
                // None of it is in the journal, and never will be.
                self.history.truncate(from_seq);
                return Err(Box::pin(self.park(ParkReason::JournalRefused, None, &why)).await);
            }
            Err(_) => return Err(Stop::Left(Left::Lost)),
        };
        point(AFTER_SAGA_WRITE);
        let (answer, Some(row)) = (changed.answer, changed.row) else {
            return Err(Stop::Left(Left::Lost));
        };
        if answer == RowAnswer::Refused && row.cancelled && matches!(event, RowEvent::Append { .. }) {
            // Cancelled before its pivot. What ended until now is written with the next change.
            let ended = entries.into_iter().filter(|entry| entry.kind != EntryKind::Begin).collect();
            self.reload(from_seq, ended).await?;
            return Ok(answer);
        }
        if matches!(answer, RowAnswer::Lost | RowAnswer::Refused) {
            return Err(Stop::Left(Left::Lost));
        }
        self.written(from_seq, entries, changed.now);
        self.cancelled = row.cancelled;
        self.record.row = row;
        Ok(answer)
    }

    /// These entries are in the journal, with its time, which is the one that counts.
    pub(super) fn written(&mut self, from_seq: u32, entries: Vec<NewEntry>, now: StoreTime) {
        self.history.restamp(from_seq, entries, self.epoch, now);
        self.clock = (now.max(self.history.latest()), Instant::now());
    }

    /// Reads the journal anew after an answer was lost. Entries that it does not have are pending again.
    pub(super) async fn reload(&mut self, from_seq: u32, entries: Vec<NewEntry>) -> Going<()> {
        let loaded = self.load().await?;
        self.signals = loaded.signals;
        self.signals_known = loaded.record.row.signals;
        self.cancelled = loaded.record.row.cancelled;
        self.history = History::new(loaded.entries);
        if self.history.next_seq() == from_seq {
            entries.into_iter().for_each(|entry| self.note(entry));
        }
        Ok(())
    }

    async fn load(&self) -> Going<Loaded> {
        let loaded = self.engine.load(self.number, self.record.row).await;
        let loaded = loaded.filter(|loaded| loaded.record.row.epoch == self.epoch);
        loaded.ok_or(Stop::Left(Left::Lost))
    }

    /// Lets go of the saga until `due_at`, or until something comes. What came in between and cannot be read here is for
    /// another process: no call is under way, and what was pending is written.
    pub(super) async fn suspend(
        &mut self,
        park: Option<ParkReason>,
        due_at: Option<StoreTime>,
    ) -> Going<Left> {
        let left = self.try_suspend(park, due_at).await?;
        if self.signals.iter().any(|signal| is_protected(&signal.body)) {
            let (row, now) = (self.record.row, self.now());
            return Err(Stop::Left(self.engine.give_back(self.number, row, now).await));
        }
        Ok(left)
    }

    async fn try_suspend(&mut self, park: Option<ParkReason>, due_at: Option<StoreTime>) -> Going<Left> {
        let signals = self.signals_known;
        // The deadline wakes what waits, until the pivot has begun. What is parked waits for somebody who finds out.
        let deadline = self.record.row.deadline.filter(|_| park.is_none() && self.may_still_be_undone());
        let due_at = earlier(due_at, deadline);
        let event = RowEvent::Suspend { epoch: self.epoch, park, due_at, signals };
        match self.change(event, None).await? {
            // A signal came in between: the saga is still ours, and goes on with it.
            RowAnswer::Signalled => {
                self.read_signals().await?;
                Ok(Left::Waits(None))
            }
            _ => Err(Stop::Left(match park {
                Some(reason) => {
                    self.log_parked(reason, due_at);
                    Left::Parked(reason, due_at)
                }
                None => Left::Waits(self.record.row.due_at),
            })),
        }
    }

    /// Reads the signals, and whether it was cancelled.
    pub(super) async fn read_signals(&mut self) -> Going<()> {
        let loaded = self.load().await?;
        self.signals = loaded.signals;
        self.signals_known = loaded.record.row.signals;
        self.cancelled = loaded.record.row.cancelled;
        Ok(())
    }

    /// Parks the saga: it cannot go on by itself.
    pub(super) async fn park(&mut self, reason: ParkReason, due_at: Option<StoreTime>, why: &str) -> Stop {
        why.clone_into(&mut self.why);
        loop {
            match self.try_suspend(Some(reason), due_at).await {
                // Signals do not change it.
                Ok(_) => {}
                Err(stop) => return stop,
            }
        }
    }

    fn log_parked(&self, reason: ParkReason, due_at: Option<StoreTime>) {
        self.engine.metrics.parked(&self.record.name, reason);
        tracing::warn!(
            saga = self.record.name,
            number = self.number.0,
            intent = ?self.record.intent.id(),
            reason = reason.as_str(),
            looked_up_again = due_at.is_some(),
            why = self.why,
            "the saga is parked"
        );
    }

    /// Begins to undo: from now on the saga's code does not run any more.
    pub(super) async fn begin_undo(&mut self, cause: UndoCause, why: &str) -> Stop {
        let event = RowEvent::BeginUndo { worker: self.worker, epoch: self.epoch, cause };
        let outcome = Some(text(why));
        match self.change(event, outcome).await {
            Ok(_) => {
                self.epoch = self.record.row.epoch;
                tracing::info!(
                    saga = self.record.name,
                    number = self.number.0,
                    cause = cause.as_str(),
                    "what the saga did is undone"
                );
                Stop::Undo
            }
            Err(stop) => stop,
        }
    }

    /// Ends the saga.
    pub(super) async fn end(&mut self, outcome: Option<Bytes>, events: Vec<Event>) -> Going<Left> {
        self.events = events;
        let retention_ms = match self.definition.retention() {
            crate::intent::policy::Retention::Ms(ms) => Some(ms),
            crate::intent::policy::Retention::Forever => None,
        };
        let heeds_cancel = self.may_still_be_undone();
        let event = RowEvent::End { epoch: self.epoch, heeds_cancel, retention_ms };
        if self.change(event, outcome.clone()).await? == RowAnswer::Signalled {
            self.read_signals().await?;
            return Err(self.begin_undo(UndoCause::Cancelled, "cancelled").await);
        }
        self.record.outcome = outcome.or(self.record.outcome.take());
        self.engine.metrics.ended(&self.record.name, self.record.row.status);
        Ok(Left::Ended)
    }

    /// A deadline or a cancellation still counts: from the pivot's begin on it is decided by what becomes of the pivot,
    /// and an undo goes on to its end.
    pub(super) fn may_still_be_undone(&self) -> bool {
        !self.is_undoing() && self.history.pivot().is_none()
    }

    /// Whether the saga has to be undone although nothing was refused.
    pub(super) fn cause_to_undo(&self) -> Option<(UndoCause, &'static str)> {
        if !self.may_still_be_undone() {
            return None;
        }
        if self.cancelled {
            return Some((UndoCause::Cancelled, "cancelled"));
        }
        let passed = self.record.row.deadline.is_some_and(|deadline| deadline <= self.now());
        passed.then_some((UndoCause::Deadline, "its deadline passed"))
    }

    /// The signals of this name that the code has not seen.
    pub(super) fn unseen_signal(&self, name: &str) -> Option<&Signal> {
        let seen: BTreeSet<&[u8]> = self
            .history
            .entries()
            .iter()
            .filter(|entry| entry.kind == EntryKind::Signal)
            .filter_map(|entry| entry.input.as_deref())
            .collect();
        self.signals.iter().find(|signal| signal.name == name && !seen.contains(signal.id.as_bytes()))
    }
}

/// An entry that is not about an attempt.
pub(super) fn entry(kind: EntryKind, step: &StepId, op: Op, attempt: u32, body: Option<Bytes>) -> NewEntry {
    NewEntry { kind, step: step.clone(), op, attempt, safe: Safe::Always, input: None, body }
}

/// The earlier of two moments, where there are two.
pub(super) fn earlier(one: Option<StoreTime>, other: Option<StoreTime>) -> Option<StoreTime> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
