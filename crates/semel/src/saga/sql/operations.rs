//! What the journal does in one transaction, over any driver.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
#[cfg(feature = "sqlite")]
use futures_util::FutureExt;

use super::row;
use super::statements as sql;
use crate::database::{AnyTx, OwnTx};
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;
use crate::outbox::{AppendError, Duplicates, append_all_tx};
use crate::saga::entry::{Entry, NewEntry};
use crate::saga::journal::{
    AtomicEnd, AtomicWork, DefinitionId, Loaded, NewSaga, SIGNALS_MAX, SagaChange, SagaChanged, SagaFilter,
    SagaNumber, SagaRecord, SagaStarted, Signal, Signalled, TakenSaga, check_written,
};
use crate::saga::state::{RowAnswer, RowDecider, RowEvent, SagaRow, WorkerId, step};
use crate::saga::step::{StepError, StepResult};
use crate::saga::step_tx::{StepTx, StepTxKind};
use crate::store::encoding::{MS_MAX, number};
use crate::tx::driver::{Dialect, DriverError, DriverErrorKind, Row, Value};

pub(super) type Done<T> = Result<T, DriverError>;

pub(super) async fn version(tx: &mut OwnTx<'_, '_>) -> Done<i64> {
    let rows = tx.run(&sql::VERSION, Vec::new()).await?;
    rows.first()
        .ok_or_else(|| DriverError::of(DriverErrorKind::Unreadable, "semel_saga_meta is empty"))?
        .int(0)
}

pub(super) async fn now(tx: &mut OwnTx<'_, '_>) -> Done<StoreTime> {
    let rows = tx.run(&sql::NOW, Vec::new()).await?;
    row::now(rows.first().ok_or_else(nothing)?)
}

/// Where a connection to PostgreSQL writes.
#[cfg(feature = "sqlx-postgres")]
#[derive(PartialEq, Eq)]
pub(super) struct Place {
    pub(super) database: String,
    server_started: i64,
    /// The number of `semel_saga`, if the `search_path` finds it.
    pub(super) table: Option<i64>,
}

#[cfg(feature = "sqlx-postgres")]
pub(super) async fn place(tx: &mut OwnTx<'_, '_>) -> Done<Place> {
    let rows = tx.run(&sql::PLACE_POSTGRES, Vec::new()).await?;
    let row = rows.first().ok_or_else(nothing)?;
    Ok(Place { database: row.text(0)?.to_owned(), server_started: row.int(1)?, table: row.int_or_null(2)? })
}

pub(super) fn nothing() -> DriverError {
    DriverError::of(DriverErrorKind::Unreadable, "a statement that always has a row returned none")
}

pub(super) fn id(saga: SagaNumber) -> Value {
    number(saga.0).into()
}

pub(super) async fn join(tx: &mut OwnTx<'_, '_>, lease_ms: u64) -> Done<WorkerId> {
    let rows = tx.run(&sql::JOIN, vec![number(lease_ms.min(MS_MAX)).into()]).await?;
    Ok(WorkerId(rows.first().ok_or_else(nothing)?.int(0)?.unsigned_abs()))
}

/// Whether the worker may go on, and the clock; its row is locked.
async fn is_alive(tx: &mut OwnTx<'_, '_>, worker: WorkerId) -> Done<Option<StoreTime>> {
    let rows = tx.run(&sql::WORKER, vec![number(worker.0).into()]).await?;
    rows.first().map_or(Ok(None), read_alive)
}

fn read_alive(found: &Row) -> Done<Option<StoreTime>> {
    let now = row::now(found)?;
    let alive = found.int(2)? == 0 && number(now.0) < found.int(1)?;
    Ok(alive.then_some(now))
}

pub(super) async fn renew(tx: &mut OwnTx<'_, '_>, worker: WorkerId, lease_ms: u64) -> Done<bool> {
    let Some(now) = is_alive(tx, worker).await? else { return Ok(false) };
    let until = now.plus_ms(lease_ms.min(MS_MAX));
    tx.run(&sql::RENEW, vec![number(worker.0).into(), number(until.0).into()]).await?;
    Ok(true)
}

pub(super) async fn leave(tx: &mut OwnTx<'_, '_>, worker: WorkerId) -> Done<()> {
    tx.run(&sql::LEAVE, vec![number(worker.0).into()]).await.map(drop)
}

/// Ends workers whose lease is over. Each is looked at again when its row is locked: it may have been renewed.
/// One whose row is locked is left for the next time: its process may be renewing it, or be frozen at that.
pub(super) async fn end_lapsed(tx: &mut OwnTx<'_, '_>) -> Done<()> {
    let lapsed = tx.run(&sql::LAPSED, Vec::new()).await?;
    for found in lapsed.rows {
        let worker = WorkerId(found.int(0)?.unsigned_abs());
        let rows = tx.run(&sql::WORKER_UNLESS_LOCKED, vec![number(worker.0).into()]).await?;
        let Some(found) = rows.first() else { continue };
        if read_alive(found)?.is_none() {
            leave(tx, worker).await?;
        }
    }
    Ok(())
}

pub(super) async fn find(tx: &mut OwnTx<'_, '_>, id: IntentId) -> Done<Option<SagaRecord>> {
    let rows = tx.run(&sql::FIND, vec![Value::from(&id.as_bytes()[..])]).await?;
    rows.first().map(row::record).transpose()
}

pub(super) async fn start(tx: &mut OwnTx<'_, '_>, new: NewSaga) -> Done<SagaStarted> {
    let id = new.intent.id();
    if let Some(found) = find(tx, id).await? {
        return Ok(SagaStarted::Existing(Box::new(found)));
    }
    let now = now(tx).await?;
    let started = SagaRow::started(new.worker, now, new.deadline_ms.map(|ms| ms.min(MS_MAX)));
    let inserted = tx.run(&sql::START, row::new_values(&new, &started, now)).await;
    let number = match (tx.dialect(), inserted) {
        // Another transaction was faster. MySQL has undone this statement, and nothing else.
        (Dialect::Mysql, Err(error)) if error.kind() == DriverErrorKind::Unique => None,
        (Dialect::Mysql, inserted) => {
            inserted?;
            tx.run(&sql::STARTED_MYSQL, Vec::new()).await?.first().map(|row| row.int(0)).transpose()?
        }
        (_, inserted) => inserted?.first().map(|row| row.int(0)).transpose()?,
    };
    match number {
        Some(number) => Ok(SagaStarted::New { number: SagaNumber(number.unsigned_abs()), row: started, now }),
        // It has committed by now: the insert waited for it.
        None => match find(tx, id).await? {
            Some(found) => Ok(SagaStarted::Existing(Box::new(found))),
            None => Err(DriverError::of(
                DriverErrorKind::Serialization,
                "a saga of the same intent began at the same moment and cannot be read yet",
            )),
        },
    }
}

pub(super) async fn change(
    tx: &mut OwnTx<'_, '_>,
    saga: SagaNumber,
    change: SagaChange,
    decide: RowDecider,
) -> Done<SagaChanged> {
    let rows = tx.run(&sql::ROW, vec![id(saga)]).await?;
    let Some(found) = rows.first() else {
        return Ok(SagaChanged { answer: RowAnswer::Lost, row: None, now: now(tx).await? });
    };
    let now = row::now(found)?;
    let (_, before) = row::saga_row(found)?;
    let decided = decide(&before, &change.event, now);
    if decided.writes_entries {
        // In the epoch they were written in: undoing begins a new one with the same commit.
        add_entries(tx, saga, change.from_seq, change.entries, before.epoch, now).await?;
    }
    if decided.row.is_some() && !change.events.is_empty() {
        // An event whose idempotency key was used before is out already.
        let appended = append_all_tx(tx.inner(), &change.events, Duplicates::Ignore).await;
        appended.map_err(|error| match error {
            AppendError::Driver(error) => error,
            other => DriverError::of(DriverErrorKind::Other, other.to_string()),
        })?;
    }
    let after = match decided.row {
        Some(after) => {
            put(tx, saga, &after, change.outcome.into()).await?;
            after
        }
        None => before,
    };
    Ok(SagaChanged { answer: decided.answer, row: Some(after), now })
}

async fn put(tx: &mut OwnTx<'_, '_>, saga: SagaNumber, row: &SagaRow, outcome: Value) -> Done<()> {
    let mut values = vec![id(saga)];
    values.extend(row::row_values(row));
    values.push(outcome);
    tx.run(&sql::PUT, values).await.map(drop)
}

/// Runs an atomic step. `failed` gets the step's error: the transaction is rolled back by an error of its own.
pub(super) async fn atomic(
    tx: &mut OwnTx<'_, '_>,
    saga: SagaNumber,
    change: SagaChange,
    done: NewEntry,
    work: Arc<dyn AtomicWork>,
    failed: Arc<OnceLock<StepError>>,
) -> Done<AtomicEnd> {
    let rows = tx.run(&sql::ROW, vec![id(saga)]).await?;
    let Some(found) = rows.first() else { return Ok(AtomicEnd::Lost) };
    let (now, (_, before)) = (row::now(found)?, row::saga_row(found)?);
    if !step(&before, &change.event, now).writes_entries {
        return Ok(AtomicEnd::Lost);
    }
    let stored = tx.run(&sql::DONE, row::done_values(saga, &done)).await?;
    if let Some(stored) = stored.first() {
        let now = StoreTime(stored.int(0)?.unsigned_abs());
        return Ok(AtomicEnd::Done { result: stored.bytes_or_null(1)?.unwrap_or_default(), now });
    }
    let from_seq = change.from_seq;
    let done_seq = from_seq + change.entries.len() as u32;
    add_entries(tx, saga, from_seq, change.entries, before.epoch, now).await?;
    let dialect = tx.dialect();
    tx.run(&sql::SAVEPOINT, Vec::new()).await?;
    let result = match run_work(tx.inner(), dialect, &*work).await {
        Ok(result) => result,
        Err(error) => {
            let _ = failed.set(error);
            return Err(DriverError::new(DriverErrorKind::Other, "the step failed"));
        }
    };
    // A deadlock, or a statement that commits, ends the transaction without a word: what the step wrote after it is
    // committed apart.
    if let Err(error) = tx.run(&sql::RELEASE, Vec::new()).await {
        let why = format!("the step ended its transaction, or the database did: {error}");
        let _ = failed.set(StepError::not_applied(&why));
        return Err(DriverError::new(DriverErrorKind::Other, why));
    }
    let done = NewEntry { body: Some(result.clone()), ..done };
    add_entries(tx, saga, done_seq, vec![done], before.epoch, now).await?;
    Ok(AtomicEnd::Done { result, now })
}

async fn run_work(tx: &mut AnyTx<'_>, dialect: Dialect, work: &dyn AtomicWork) -> StepResult<Bytes> {
    match dialect {
        #[cfg(feature = "sqlite")]
        Dialect::Sqlite => run_on_sqlite(tx, work),
        _ => work.run(&mut StepTx(StepTxKind::Sql(tx.reborrow()))).await,
    }
}

/// Runs an atomic step where transactions share a thread: it may not wait.
#[cfg(feature = "sqlite")]
pub(in crate::saga) fn run_on_sqlite(tx: &mut AnyTx<'_>, work: &dyn AtomicWork) -> StepResult<Bytes> {
    let mut tx = StepTx(StepTxKind::Sql(tx.reborrow()));
    let ran = crate::database::guarded(|| work.run(&mut tx).now_or_never());
    ran.unwrap_or_else(|| {
        Err(StepError::refused(
            "an atomic step on SQLite waited for something other than the database; call others in a step of their own",
        ))
    })
}

/// Writes entries. Some may be there: a change whose answer was lost is sent again.
async fn add_entries(
    tx: &mut OwnTx<'_, '_>,
    saga: SagaNumber,
    from_seq: u32,
    entries: Vec<NewEntry>,
    epoch: u64,
    now: StoreTime,
) -> Done<()> {
    // MySQL cannot leave out those that are there.
    if tx.dialect() != Dialect::Mysql {
        let stamped = (from_seq..).zip(&entries).map(|(seq, new)| new.clone().stamp(seq, epoch, now));
        let values: Vec<_> = stamped.map(|entry| row::entry_values(saga, entry)).collect();
        let sent = values.len() as u64;
        if tx.run_many(&sql::ADD_ENTRIES, values).await?.changed == sent {
            return Ok(());
        }
    }
    complete_entries(tx, saga, from_seq, entries, epoch, now).await
}

/// Compares entries with those that are there, and writes those that are not.
pub(super) async fn complete_entries(
    tx: &mut OwnTx<'_, '_>,
    saga: SagaNumber,
    from_seq: u32,
    entries: Vec<NewEntry>,
    epoch: u64,
    now: StoreTime,
) -> Done<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let stored = tx.run(&sql::ENTRIES, vec![id(saga), i64::from(from_seq).into()]).await?;
    let mut stored = stored.rows.iter();
    for (seq, new) in (from_seq..).zip(entries) {
        let entry: Entry = new.stamp(seq, epoch, now);
        match stored.next() {
            Some(stored) => check_written(&entry, &row::entry(stored)?)
                .map_err(|error| DriverError::of(DriverErrorKind::Unreadable, error.to_string()))?,
            None => drop(tx.run(&sql::ADD_ENTRY, row::entry_values(saga, entry)).await?),
        }
    }
    Ok(())
}

pub(super) async fn load(tx: &mut OwnTx<'_, '_>, saga: SagaNumber) -> Done<Option<Loaded>> {
    let rows = tx.run(&sql::LOAD, vec![id(saga)]).await?;
    let Some(found) = rows.first() else { return Ok(None) };
    let (now, record) = (row::now(found)?, row::record(found)?);
    let entries = tx.run(&sql::ENTRIES, vec![id(saga), Value::from(0)]).await?;
    let entries = entries.rows.iter().map(row::entry).collect::<Done<Vec<_>>>()?;
    let signals = if record.row.signals == 0 {
        Vec::new()
    } else {
        let signals = tx.run(&sql::SIGNALS, vec![id(saga)]).await?;
        signals.rows.iter().map(row::signal).collect::<Done<Vec<_>>>()?
    };
    Ok(Some(Loaded { record, entries, signals, now }))
}

pub(super) async fn take(
    tx: &mut OwnTx<'_, '_>,
    worker: WorkerId,
    definitions: Vec<DefinitionId>,
    limit: usize,
) -> Done<Vec<TakenSaga>> {
    if is_alive(tx, worker).await?.is_none() {
        return Ok(Vec::new());
    }
    let mut candidates = Vec::new();
    let mut left = definitions.len();
    for definition in definitions {
        // A share for each: a backlog of one does not keep the others away.
        let room = number((limit.saturating_sub(candidates.len()) / left.max(1)).max(1) as u64);
        left -= 1;
        for which in [&sql::ORPHANED, &sql::DUE] {
            let values =
                vec![definition.name.as_str().into(), i64::from(definition.version).into(), room.into()];
            let found = tx.run(which, values).await?;
            for found in found.rows {
                candidates.push((found.int(0)?, found.int_or_null(1)?));
            }
        }
    }
    candidates.truncate(limit);
    // In one order, so that two workers never wait for each other.
    candidates.sort_unstable();
    let mut taken = Vec::new();
    for (saga, ended) in candidates {
        // Looked at again when it is locked: another worker may have taken it.
        let rows = tx.run(&sql::ROW_UNLESS_LOCKED, vec![saga.into()]).await?;
        let Some(found) = rows.first() else { continue };
        let now = row::now(found)?;
        let (saga, before) = row::saga_row(found)?;
        let orphaned = ended.is_some() && before.worker.map(|worker| number(worker.0)) == ended;
        let decided = step(&before, &RowEvent::Take { worker, orphaned }, now);
        if let (RowAnswer::Done, Some(after)) = (decided.answer, decided.row) {
            put(tx, saga, &after, Value::Bytes(None)).await?;
            taken.push(TakenSaga { number: saga, row: after, taken_over: orphaned });
        }
    }
    Ok(taken)
}

pub(super) async fn owned(tx: &mut OwnTx<'_, '_>, worker: WorkerId) -> Done<Vec<(SagaNumber, SagaRow)>> {
    let rows = tx.run(&sql::OWNED, vec![number(worker.0).into()]).await?;
    rows.rows.iter().map(row::saga_row).collect()
}

pub(super) async fn signal(tx: &mut OwnTx<'_, '_>, saga: SagaNumber, signal: Signal) -> Done<Signalled> {
    let rows = tx.run(&sql::ROW, vec![id(saga)]).await?;
    let Some(found) = rows.first() else { return Ok(Signalled::TooLate) };
    let (now, (_, before)) = (row::now(found)?, row::saga_row(found)?);
    let has = tx.run(&sql::HAS_SIGNAL, vec![id(saga), signal.id.as_str().into()]).await?;
    let has = has.first().ok_or_else(nothing)?;
    if has.int(1)? > 0 {
        return Ok(Signalled::Already);
    }
    if has.int(0)? >= number(SIGNALS_MAX as u64) {
        return Ok(Signalled::TooMany);
    }
    let decided = step(&before, &RowEvent::Signal, now);
    let (RowAnswer::Done, Some(after)) = (decided.answer, decided.row) else { return Ok(Signalled::TooLate) };
    put(tx, saga, &after, Value::Bytes(None)).await?;
    let seq = i64::from(before.signals).into();
    tx.run(&sql::ADD_SIGNAL, vec![id(saga), signal.id.into(), seq, signal.name.into(), signal.body.into()])
        .await?;
    Ok(Signalled::Recorded)
}

pub(super) async fn list(tx: &mut OwnTx<'_, '_>, filter: SagaFilter) -> Done<Vec<SagaRecord>> {
    let before = filter.before.map_or(i64::MAX, |before| number(before.0));
    let page = number(filter.page() as u64);
    let bits = row::status_bits(&filter.statuses);
    let rows = tx.run(&sql::LIST, vec![before.into(), filter.name.into(), bits.into(), page.into()]).await?;
    rows.rows.iter().map(row::record).collect()
}

pub(super) async fn sweep(tx: &mut OwnTx<'_, '_>, limit: usize) -> Done<usize> {
    let expired = tx.run(&sql::EXPIRED, vec![number(limit as u64).into()]).await?;
    for found in &expired.rows {
        let saga = found.int(0)?;
        for delete in [&sql::DELETE_ENTRIES, &sql::DELETE_SIGNALS, &sql::DELETE_SAGA] {
            tx.run(delete, vec![saga.into()]).await?;
        }
    }
    Ok(expired.rows.len())
}

/// Deletes ended workers that have no saga any more.
pub(super) async fn forget_workers(tx: &mut OwnTx<'_, '_>) -> Done<()> {
    tx.run(&sql::FORGET_WORKERS, Vec::new()).await.map(drop)
}

/// A saga without its journal, and without waiting for a lock.
pub(super) async fn look(tx: &mut OwnTx<'_, '_>, saga: SagaNumber) -> Done<Option<SagaRecord>> {
    let rows = tx.run(&sql::LOOK, vec![id(saga)]).await?;
    rows.first().map(row::record).transpose()
}
