//! The journal in memory: for tests and simulations, gone with the process.

use std::collections::{BTreeMap, HashMap};
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::entry::{Entry, NewEntry};
use super::journal::{
    Answering, AtomicEnd, AtomicWork, DefinitionId, FIGURES_MAX, Journal, Loaded, MayRead, NewSaga,
    SIGNALS_MAX, SagaChange, SagaChanged, SagaFigures, SagaFilter, SagaNumber, SagaRecord, SagaStarted,
    Signal, Signalled, TakenSaga, check_size, check_written,
};
use super::protect::may_read_plain;
use super::state::{RowAnswer, RowDecider, RowEvent, SagaRow, Status, WorkerId, step};
use super::step_tx::{MemoryRows, StepTx, StepTxKind};
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;
use crate::outbox::Event;
use crate::store::StoreError;

type Clock = Arc<dyn Fn() -> StoreTime + Send + Sync>;

/// A journal in memory. Clones share it.
#[derive(Clone)]
pub struct MemoryJournal {
    tables: Arc<Mutex<Tables>>,
    clock: Clock,
    decide: RowDecider,
    /// A planted bug: an atomic step runs although it is done.
    forgets_done: bool,
}

#[derive(Default)]
struct Tables {
    sagas: BTreeMap<SagaNumber, Saga>,
    by_intent: HashMap<IntentId, SagaNumber>,
    workers: BTreeMap<WorkerId, Worker>,
    /// What atomic steps wrote, in the order of their commits.
    rows: Vec<String>,
    /// What was published.
    events: Vec<Event>,
    numbers: u64,
    worker_numbers: u64,
}

struct Saga {
    record: SagaRecord,
    entries: Vec<Entry>,
    signals: Vec<Signal>,
}

struct Worker {
    lease_until: StoreTime,
    ended: bool,
}

impl Default for MemoryJournal {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryJournal {
    /// An empty journal on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            StoreTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
        })
    }

    /// An empty journal on the caller's clock: virtual time for simulations and tests.
    pub fn with_clock(clock: impl Fn() -> StoreTime + Send + Sync + 'static) -> Self {
        Self { tables: Arc::default(), clock: Arc::new(clock), decide: step, forgets_done: false }
    }

    /// Decides with another function than [`step`]: planted bugs, for tests.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn deciding_with(mut self, decide: RowDecider) -> Self {
        self.decide = decide;
        self
    }

    /// An atomic step that is done runs again: a planted bug, for tests.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn forgetting_done(mut self, forgets: bool) -> Self {
        self.forgets_done = forgets;
        self
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_now(&self, new: NewSaga) -> Result<SagaStarted, StoreError> {
        check_size(&new.input)?;
        let now = (self.clock)();
        let mut tables = self.tables();
        if let Some(number) = tables.by_intent.get(&new.intent.id())
            && let Some(saga) = tables.sagas.get(number)
        {
            return Ok(SagaStarted::Existing(Box::new(saga.record.clone())));
        }
        tables.numbers += 1;
        let number = SagaNumber(tables.numbers);
        let row = SagaRow::started(new.worker, now, new.deadline_ms);
        tables.by_intent.insert(new.intent.id(), number);
        let NewSaga { intent, fingerprint, name, version, input, .. } = new;
        let (outcome, created_at) = (None, now);
        let record =
            SagaRecord { number, row, intent, fingerprint, name, version, input, outcome, created_at };
        tables.sagas.insert(number, Saga { record, entries: Vec::new(), signals: Vec::new() });
        Ok(SagaStarted::New { number, row, now })
    }

    fn change_now(&self, number: SagaNumber, change: SagaChange) -> Result<SagaChanged, StoreError> {
        let now = (self.clock)();
        let mut tables = self.tables();
        let Some(saga) = tables.sagas.get_mut(&number) else {
            return Ok(SagaChanged { answer: RowAnswer::Lost, row: None, now });
        };
        let step = (self.decide)(&saga.record.row, &change.event, now);
        if step.writes_entries {
            saga.write(&change, now)?;
        }
        let events = if step.row.is_some() { change.events } else { Vec::new() };
        if let Some(row) = step.row {
            saga.record.row = row;
            saga.record.outcome = change.outcome.or(saga.record.outcome.take());
        }
        let row = Some(saga.record.row);
        tables.events.extend(events);
        Ok(SagaChanged { answer: step.answer, row, now })
    }

    /// What atomic steps wrote, in the order of their commits.
    pub fn rows(&self) -> Vec<String> {
        self.tables().rows.clone()
    }

    /// What completed sagas published.
    pub fn events(&self) -> Vec<Event> {
        self.tables().events.clone()
    }

    /// The result of an atomic step that was committed before, or whether the epoch still holds.
    fn before_atomic(&self, number: SagaNumber, change: &SagaChange, done: &NewEntry) -> Option<AtomicEnd> {
        let now = (self.clock)();
        let tables = self.tables();
        let Some(saga) = tables.sagas.get(&number) else { return Some(AtomicEnd::Lost) };
        if !(self.decide)(&saga.record.row, &change.event, now).writes_entries {
            return Some(AtomicEnd::Lost);
        }
        let of_step =
            |entry: &&Entry| (&entry.step, entry.op, entry.kind) == (&done.step, done.op, done.kind);
        let stored = saga.entries.iter().find(of_step).filter(|_| !self.forgets_done)?;
        Some(AtomicEnd::Done { result: stored.body.clone().unwrap_or_default(), now: stored.at })
    }

    async fn atomic_now(
        &self,
        number: SagaNumber,
        mut change: SagaChange,
        done: NewEntry,
        work: Arc<dyn AtomicWork>,
    ) -> Result<AtomicEnd, StoreError> {
        if let Some(end) = self.before_atomic(number, &change, &done) {
            return Ok(end);
        }
        let mut rows = MemoryRows::default();
        let result = match work.run(&mut StepTx(StepTxKind::Memory(&mut rows))).await {
            Ok(result) => result,
            Err(error) => return Ok(AtomicEnd::Failed(error)),
        };
        // Another worker may have taken the saga meanwhile: what a database's lock would have held off.
        if let Some(end) = self.before_atomic(number, &change, &done) {
            return Ok(end);
        }
        let now = (self.clock)();
        change.entries.push(NewEntry { body: Some(result.clone()), ..done });
        let mut tables = self.tables();
        let written = tables.sagas.get_mut(&number).map_or(Ok(()), |saga| saga.write(&change, now));
        if written.is_ok() || self.forgets_done {
            tables.rows.extend(rows.written);
        }
        written?;
        Ok(AtomicEnd::Done { result, now })
    }

    /// Nothing is taken if one of them may not be read.
    fn take_now(
        &self,
        worker: WorkerId,
        of: &[DefinitionId],
        limit: usize,
        may_read: &MayRead,
    ) -> Result<Vec<TakenSaga>, StoreError> {
        let now = (self.clock)();
        let mut tables = self.tables();
        let Tables { sagas, workers, .. } = &mut *tables;
        workers
            .values_mut()
            .filter(|worker| worker.lease_until <= now)
            .for_each(|worker| worker.ended = true);
        if workers.get(&worker).is_none_or(|worker| worker.ended) {
            return Ok(Vec::new());
        }
        let mut taken = Vec::new();
        for (number, saga) in &*sagas {
            if taken.len() >= limit {
                break;
            }
            let record = &saga.record;
            if !of.iter().any(|of| of.name == record.name && record.version <= of.version) {
                continue;
            }
            let orphaned =
                record.row.worker.is_some_and(|other| workers.get(&other).is_none_or(|other| other.ended));
            let step = (self.decide)(&record.row, &RowEvent::Take { worker, orphaned }, now);
            if let (RowAnswer::Done, Some(row)) = (step.answer, step.row) {
                may_read(*number, &record.input)?;
                taken.push(TakenSaga { number: *number, row, taken_over: orphaned });
            }
        }
        for taken in &taken {
            if let Some(saga) = sagas.get_mut(&taken.number) {
                saga.record.row = taken.row;
            }
        }
        Ok(taken)
    }

    fn figures_now(&self, overdue_ms: u64) -> SagaFigures {
        let now = (self.clock)();
        let tables = self.tables();
        let records = || tables.sagas.values().map(|saga| &saga.record);
        let open = |status: Status| {
            let count = records().filter(|record| record.row.status == status).count() as u64;
            (status, count.min(FIGURES_MAX))
        };
        let parked = records().find(|record| record.row.status == Status::Parked);
        let since = StoreTime(now.0.saturating_sub(overdue_ms));
        let lapsed = |worker: WorkerId| {
            let worker = tables.workers.get(&worker);
            worker.is_none_or(|worker| worker.ended && worker.lease_until <= since)
        };
        let mut overdue: BTreeMap<(String, u32), u64> = BTreeMap::new();
        for record in records().filter(|record| !record.row.status.is_ended()) {
            let row = &record.row;
            let left = row.worker.map_or_else(|| row.due_at.is_some_and(|due| due <= since), lapsed);
            if left {
                *overdue.entry((record.name.clone(), record.version)).or_default() += 1;
            }
        }
        let of = |((name, version), sagas)| (DefinitionId { name, version }, sagas);
        SagaFigures {
            open: Status::ALL.into_iter().filter(|status| !status.is_ended()).map(open).collect(),
            oldest_parked: parked.map(|record| record.created_at),
            overdue: overdue.into_iter().map(of).collect(),
            now,
        }
    }

    fn signal_now(&self, number: SagaNumber, signal: Signal) -> Result<Signalled, StoreError> {
        check_size(&signal.body)?;
        let now = (self.clock)();
        let mut tables = self.tables();
        let Some(saga) = tables.sagas.get_mut(&number) else { return Ok(Signalled::TooLate) };
        if saga.signals.iter().any(|other| other.id == signal.id) {
            return Ok(Signalled::Already);
        }
        if saga.signals.len() >= SIGNALS_MAX {
            return Ok(Signalled::TooMany);
        }
        let step = (self.decide)(&saga.record.row, &RowEvent::Signal, now);
        let (RowAnswer::Done, Some(row)) = (step.answer, step.row) else { return Ok(Signalled::TooLate) };
        saga.record.row = row;
        saga.signals.push(signal);
        Ok(Signalled::Recorded)
    }

    fn list_now(&self, filter: &SagaFilter) -> Vec<SagaRecord> {
        let tables = self.tables();
        let records = tables.sagas.values().rev().map(|saga| &saga.record);
        let wanted = records.filter(|record| filter.wants(record));
        wanted.take(filter.page()).cloned().collect()
    }

    fn sweep_now(&self, limit: usize) -> usize {
        let now = (self.clock)();
        let mut tables = self.tables();
        let expired = |saga: &Saga| saga.record.row.expires_at.is_some_and(|at| at <= now);
        let expired = tables.sagas.iter().filter(|(_, saga)| expired(saga));
        let expired: Vec<_> =
            expired.map(|(number, saga)| (*number, saga.record.intent.id())).take(limit).collect();
        for (number, id) in &expired {
            tables.sagas.remove(number);
            tables.by_intent.remove(id);
        }
        expired.len()
    }
}

impl Saga {
    /// Writes the entries that are not there yet: a batch whose answer was lost is sent again.
    fn write(&mut self, change: &SagaChange, now: StoreTime) -> Result<(), StoreError> {
        let epoch = self.record.row.epoch;
        change.check_sizes()?;
        for (seq, entry) in (change.from_seq..).zip(&change.entries) {
            let entry = entry.clone().stamp(seq, epoch, now);
            match self.entries.get(seq as usize) {
                Some(stored) => check_written(&entry, stored)?,
                None => self.entries.push(entry),
            }
        }
        Ok(())
    }
}

fn answer<'a, T: Send + 'a>(result: Result<T, StoreError>) -> Answering<'a, T> {
    Box::pin(ready(result))
}

impl Journal for MemoryJournal {
    fn now(&self) -> Answering<'_, StoreTime> {
        answer(Ok((self.clock)()))
    }

    fn join(&self, lease_ms: u64) -> Answering<'_, WorkerId> {
        let lease_until = (self.clock)().plus_ms(lease_ms);
        let mut tables = self.tables();
        tables.worker_numbers += 1;
        let worker = WorkerId(tables.worker_numbers);
        tables.workers.insert(worker, Worker { lease_until, ended: false });
        answer(Ok(worker))
    }

    fn renew(&self, worker: WorkerId, lease_ms: u64) -> Answering<'_, bool> {
        let now = (self.clock)();
        let mut tables = self.tables();
        let held = tables.workers.get_mut(&worker).filter(|worker| !worker.ended && now < worker.lease_until);
        let renewed = held.map(|worker| worker.lease_until = now.plus_ms(lease_ms)).is_some();
        answer(Ok(renewed))
    }

    fn leave(&self, worker: WorkerId) -> Answering<'_, ()> {
        if let Some(worker) = self.tables().workers.get_mut(&worker) {
            worker.ended = true;
        }
        answer(Ok(()))
    }

    fn start(&self, saga: NewSaga) -> Answering<'_, SagaStarted> {
        answer(self.start_now(saga))
    }

    fn change(&self, number: SagaNumber, change: SagaChange) -> Answering<'_, SagaChanged> {
        answer(self.change_now(number, change))
    }

    fn atomic<'a>(
        &'a self,
        number: SagaNumber,
        change: SagaChange,
        done: NewEntry,
        work: Arc<dyn AtomicWork>,
    ) -> Answering<'a, AtomicEnd> {
        Box::pin(self.atomic_now(number, change, done, work))
    }

    fn load(&self, number: SagaNumber) -> Answering<'_, Option<Loaded>> {
        let now = (self.clock)();
        let tables = self.tables();
        let loaded = tables.sagas.get(&number).map(|saga| Loaded {
            record: saga.record.clone(),
            entries: saga.entries.clone(),
            signals: saga.signals.clone(),
            now,
        });
        answer(Ok(loaded))
    }

    fn look(&self, number: SagaNumber) -> Answering<'_, Option<SagaRecord>> {
        answer(Ok(self.tables().sagas.get(&number).map(|saga| saga.record.clone())))
    }

    fn find(&self, id: IntentId) -> Answering<'_, Option<SagaRecord>> {
        let tables = self.tables();
        let number = tables.by_intent.get(&id);
        let saga = number.and_then(|number| tables.sagas.get(number));
        answer(Ok(saga.map(|saga| saga.record.clone())))
    }

    fn take<'a>(
        &'a self,
        worker: WorkerId,
        definitions: &'a [DefinitionId],
        limit: usize,
    ) -> Answering<'a, Vec<(SagaNumber, SagaRow)>> {
        let taken = self.take_now(worker, definitions, limit, &may_read_plain);
        answer(taken.map(|taken| taken.into_iter().map(|taken| (taken.number, taken.row)).collect()))
    }

    fn take_readable<'a>(
        &'a self,
        worker: WorkerId,
        definitions: &'a [DefinitionId],
        limit: usize,
        may_read: Arc<MayRead>,
    ) -> Answering<'a, Vec<TakenSaga>> {
        answer(self.take_now(worker, definitions, limit, &*may_read))
    }

    fn figures(&self, overdue_ms: u64) -> Answering<'_, Option<SagaFigures>> {
        answer(Ok(Some(self.figures_now(overdue_ms))))
    }

    fn owned(&self, worker: WorkerId) -> Answering<'_, Vec<(SagaNumber, SagaRow)>> {
        let tables = self.tables();
        let rows = tables.sagas.iter().map(|(number, saga)| (*number, saga.record.row));
        let owned = rows.filter(|(_, row)| row.worker == Some(worker) && !row.status.is_ended());
        answer(Ok(owned.collect()))
    }

    fn signal(&self, number: SagaNumber, signal: Signal) -> Answering<'_, Signalled> {
        answer(self.signal_now(number, signal))
    }

    fn list(&self, filter: SagaFilter) -> Answering<'_, Vec<SagaRecord>> {
        answer(Ok(self.list_now(&filter)))
    }

    fn sweep(&self, limit: usize) -> Answering<'_, usize> {
        answer(Ok(self.sweep_now(limit)))
    }
}
