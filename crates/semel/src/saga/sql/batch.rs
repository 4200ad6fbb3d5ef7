//! One transaction for what many sagas have to write: their starts and changes, a few statements whatever their number.
//!
//! Each row is locked, and each is decided about by itself: one whose epoch is over is answered so, and the others are
//! written. A row that another transaction has locked is left for later, so that an open atomic step of one saga holds up
//! no other. If a statement fails, nothing was written, and each is run alone.

use std::collections::HashMap;

use super::operations::{complete_entries, id, nothing, now};
use super::row;
use super::statements as sql;
use crate::database::OwnTx;
use crate::intent::policy::StoreTime;
use crate::saga::journal::{NewSaga, SagaChange, SagaChanged, SagaNumber, SagaStarted};
use crate::saga::state::{RowDecider, SagaRow};
use crate::store::encoding::MS_MAX;
use crate::tx::driver::{Dialect, DriverError, DriverErrorKind, Value};

type Done<T> = Result<T, DriverError>;

/// What somebody asks of the journal.
#[derive(Clone)]
pub(super) enum Request {
    Start(Box<NewSaga>),
    /// Without events: those are appended in a transaction of their own.
    Change(SagaNumber, Box<SagaChange>),
}

#[derive(Debug)]
pub(super) enum Answer {
    Started(SagaStarted),
    Changed(SagaChanged),
}

/// Carries out the requests, which are about different sagas. `None`: nothing was done about this one; it is run alone.
pub(super) async fn run(
    tx: &mut OwnTx<'_, '_>,
    requests: &[Request],
    decide: RowDecider,
) -> Done<Vec<Option<Answer>>> {
    let rows = locked(tx, requests).await?;
    let now = match rows.values().next() {
        Some((now, _)) => *now,
        None => now(tx).await?,
    };
    let mut answers: Vec<Option<Answer>> = requests.iter().map(|_| None).collect();
    let mut entries = Vec::new();
    let mut puts = Vec::new();
    for (request, answer) in requests.iter().zip(&mut answers) {
        let Request::Change(number, change) = request else { continue };
        let Some((now, before)) = rows.get(number) else { continue };
        let decided = decide(before, &change.event, *now);
        if decided.writes_entries {
            // In the epoch they were written in: undoing begins a new one with the same commit.
            let stamped = (change.from_seq..).zip(&change.entries);
            let stamped = stamped.map(|(seq, new)| new.clone().stamp(seq, before.epoch, *now));
            entries.extend(stamped.map(|entry| row::entry_values(*number, entry)));
        }
        if let Some(after) = &decided.row {
            let mut values = vec![id(*number)];
            values.extend(row::row_values(after));
            values.push(change.outcome.clone().into());
            puts.push(values);
        }
        let row = Some(decided.row.unwrap_or(*before));
        *answer = Some(Answer::Changed(SagaChanged { answer: decided.answer, row, now: *now }));
    }
    let sent = entries.len() as u64;
    if tx.run_many(&sql::ADD_ENTRIES, entries).await?.changed != sent {
        compare(tx, requests, &rows, decide).await?;
    }
    tx.run_many(&sql::PUT_ROWS, puts).await?;
    start(tx, requests, &mut answers, now).await?;
    Ok(answers)
}

/// The rows that are there and that no other transaction has locked.
async fn locked(
    tx: &mut OwnTx<'_, '_>,
    requests: &[Request],
) -> Done<HashMap<SagaNumber, (StoreTime, SagaRow)>> {
    let numbers = requests.iter().filter_map(|request| match request {
        Request::Change(number, _) => Some(*number),
        Request::Start(_) => None,
    });
    let mut numbers: Vec<SagaNumber> = numbers.collect();
    // In one order, so that two batches never wait for each other.
    numbers.sort_unstable();
    let found = tx.run_many(&sql::ROWS, numbers.into_iter().map(|number| vec![id(number)]).collect()).await?;
    let read = |found| {
        let (number, row) = row::saga_row(found)?;
        Ok((number, (row::now(found)?, row)))
    };
    found.rows.iter().map(read).collect()
}

/// Some entries were there: a batch whose answer was lost was sent again. Each must be what is stored.
async fn compare(
    tx: &mut OwnTx<'_, '_>,
    requests: &[Request],
    rows: &HashMap<SagaNumber, (StoreTime, SagaRow)>,
    decide: RowDecider,
) -> Done<()> {
    for request in requests {
        let Request::Change(number, change) = request else { continue };
        let Some((now, before)) = rows.get(number) else { continue };
        if decide(before, &change.event, *now).writes_entries {
            complete_entries(tx, *number, change.from_seq, change.entries.clone(), before.epoch, *now)
                .await?;
        }
    }
    Ok(())
}

/// Starts what is new. Sagas of intents that have one are left out.
async fn start(
    tx: &mut OwnTx<'_, '_>,
    requests: &[Request],
    answers: &mut [Option<Answer>],
    now: StoreTime,
) -> Done<()> {
    // By intent: two transactions that start the same sagas wait for each other in one order.
    let mut new: Vec<(Value, SagaRow, &NewSaga, usize)> = Vec::new();
    for (at, request) in requests.iter().enumerate() {
        let Request::Start(saga) = request else { continue };
        let row = SagaRow::started(saga.worker, now, saga.deadline_ms.map(|ms| ms.min(MS_MAX)));
        new.push((Value::from(&saga.intent.id().as_bytes()[..]), row, saga, at));
    }
    if new.is_empty() {
        return Ok(());
    }
    new.sort_unstable_by(|(.., one, _), (.., other, _)| {
        one.intent.id().as_bytes().cmp(other.intent.id().as_bytes())
    });
    let is_mysql = tx.dialect() == Dialect::Mysql;
    if is_mysql {
        let there = started(tx.run_many(&sql::STARTED_ROWS, ids(&new)).await?.rows)?;
        new.retain(|(.., saga, _)| !there.contains_key(&saga.intent.id().as_bytes()[..]));
    }
    // The insert waits for an open transaction that has inserted the same intent. Not for long: the whole batch waits,
    // and by itself each may.
    if tx.dialect() == Dialect::Postgres {
        tx.run(&sql::WAIT_BRIEFLY, Vec::new()).await?;
    }
    let values = new.iter().map(|(_, row, saga, _)| row::new_values(saga, row, now)).collect();
    let mut inserted = tx.run_many(&sql::START_ROWS, values).await?.rows;
    if is_mysql {
        inserted = tx.run_many(&sql::STARTED_ROWS, ids(&new)).await?.rows;
    }
    let inserted = started(inserted)?;
    for (_, row, saga, at) in new {
        if let Some(number) = inserted.get(&saga.intent.id().as_bytes()[..]) {
            let answer = answers.get_mut(at).ok_or_else(nothing)?;
            *answer = Some(Answer::Started(SagaStarted::New { number: *number, row, now }));
        }
    }
    Ok(())
}

fn ids(new: &[(Value, SagaRow, &NewSaga, usize)]) -> Vec<Vec<Value>> {
    new.iter().map(|(id, ..)| vec![id.clone()]).collect()
}

/// The numbers of sagas, by the id of their intent.
fn started(rows: Vec<crate::tx::driver::Row>) -> Done<HashMap<Vec<u8>, SagaNumber>> {
    let read = |row: &crate::tx::driver::Row| {
        let number = u64::try_from(row.int(0)?);
        let number =
            number.map_err(|error| DriverError::of(DriverErrorKind::Unreadable, error.to_string()))?;
        Ok((row.bytes(1)?.to_vec(), SagaNumber(number)))
    };
    rows.iter().map(read).collect()
}
