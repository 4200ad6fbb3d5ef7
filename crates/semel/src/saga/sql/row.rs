//! Between the tables and the types: codes, values of a row, and back.

use bytes::Bytes;

use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Intent, Operation};
use crate::intent::key::Key;
use crate::intent::policy::StoreTime;
use crate::intent::scope::Scope;
use crate::saga::entry::{Entry, EntryKind, NewEntry, Op, StepId};
use crate::saga::journal::{NewSaga, SagaNumber, SagaRecord, Signal};
use crate::saga::state::{ParkReason, SagaRow, Status, UndoCause, WorkerId};
use crate::store::encoding::{number, recipe_code};
use crate::tx::driver::{DriverError, DriverErrorKind, Row, Value};

/// The stored code of one of these: its place in the list, which only grows at its end.
fn code<T: Copy + PartialEq>(all: &[T], one: T) -> i64 {
    all.iter().position(|other| *other == one).map_or(-1, |at| number(at as u64))
}

fn of_code<T: Copy>(all: &[T], code: i64, what: &str) -> Result<T, DriverError> {
    let found = usize::try_from(code).ok().and_then(|code| all.get(code).copied());
    found.ok_or_else(|| unreadable(format!("{code} is not the code of {what}")))
}

fn unreadable(why: impl std::fmt::Display) -> DriverError {
    DriverError::of(DriverErrorKind::Unreadable, why.to_string())
}

fn unsigned(row: &Row, column: usize) -> Result<u64, DriverError> {
    let stored = row.int(column)?;
    u64::try_from(stored).map_err(|_| unreadable(format!("column {column} is negative: {stored}")))
}

fn small(row: &Row, column: usize) -> Result<u32, DriverError> {
    let stored = row.int(column)?;
    u32::try_from(stored).map_err(|_| unreadable(format!("column {column} is out of range: {stored}")))
}

fn time(row: &Row, column: usize) -> Result<Option<StoreTime>, DriverError> {
    match row.int_or_null(column)? {
        None => Ok(None),
        Some(_) => Ok(Some(StoreTime(unsigned(row, column)?))),
    }
}

fn optional(at: Option<StoreTime>) -> Value {
    at.map(|at| number(at.0)).into()
}

pub(super) fn now(row: &Row) -> Result<StoreTime, DriverError> {
    Ok(StoreTime(unsigned(row, 0)?))
}

/// From a row that begins with the clock, the number and the columns that decide.
pub(super) fn saga_row(row: &Row) -> Result<(SagaNumber, SagaRow), DriverError> {
    let reason = row.int_or_null(3)?.map(|code| of_code(&ParkReason::ALL, code, "a reason")).transpose()?;
    let undo = row.int_or_null(4)?.map(|code| of_code(&UndoCause::ALL, code, "a cause")).transpose()?;
    let worker = match row.int_or_null(6)? {
        None => None,
        Some(_) => Some(WorkerId(unsigned(row, 6)?)),
    };
    let saga = SagaRow {
        status: of_code(&Status::ALL, row.int(2)?, "a status")?,
        reason,
        undo,
        epoch: unsigned(row, 5)?,
        worker,
        due_at: time(row, 7)?,
        deadline: time(row, 8)?,
        signals: small(row, 9)?,
        cancelled: row.int(10)? != 0,
        expires_at: time(row, 11)?,
    };
    Ok((SagaNumber(unsigned(row, 1)?), saga))
}

/// The columns that decide, as they are stored.
pub(super) fn row_values(row: &SagaRow) -> Vec<Value> {
    vec![
        code(&Status::ALL, row.status).into(),
        row.reason.map(|reason| code(&ParkReason::ALL, reason)).into(),
        row.undo.map(|undo| code(&UndoCause::ALL, undo)).into(),
        number(row.epoch).into(),
        row.worker.map(|worker| number(worker.0)).into(),
        optional(row.due_at),
        optional(row.deadline),
        i64::from(row.signals).into(),
        i64::from(row.cancelled).into(),
        optional(row.expires_at),
    ]
}

/// Which statuses a filter wants: one bit each.
pub(super) fn status_bits(statuses: &[Status]) -> i64 {
    let wanted = Status::ALL.into_iter().filter(|status| statuses.is_empty() || statuses.contains(status));
    wanted.fold(0, |bits, status| bits | 1 << code(&Status::ALL, status))
}

/// From a row that has all columns.
pub(super) fn record(row: &Row) -> Result<SagaRecord, DriverError> {
    let (number, saga) = saga_row(row)?;
    let scope = Scope::from_text(row.text(14)?).map_err(unreadable)?;
    let operation = Operation::new(row.text(15)?).map_err(unreadable)?;
    let key = Key::new(row.text(16)?).map_err(unreadable)?;
    let digest: [u8; 32] =
        row.bytes(18)?.as_ref().try_into().map_err(|_| unreadable("a fingerprint has 32 bytes"))?;
    Ok(SagaRecord {
        number,
        row: saga,
        intent: Intent::new(scope, operation, key),
        fingerprint: Fingerprint::from_parts(digest, row.int(17)?.cast_unsigned()),
        name: row.text(12)?.to_owned(),
        version: small(row, 13)?,
        input: row.bytes(19)?,
        outcome: row.bytes_or_null(20)?,
        created_at: StoreTime(unsigned(row, 21)?),
    })
}

/// A new saga, as it is stored.
pub(super) fn new_values(new: &NewSaga, row: &SagaRow, now: StoreTime) -> Vec<Value> {
    let intent = &new.intent;
    let mut values = vec![Value::from(&intent.id().as_bytes()[..])];
    values.extend(row_values(row));
    values.extend([
        new.name.as_str().into(),
        i64::from(new.version).into(),
        intent.scope().as_str().into(),
        intent.operation().as_str().into(),
        intent.key().as_str().into(),
        recipe_code(&new.fingerprint).into(),
        Value::from(&new.fingerprint.digest()[..]),
        new.input.clone().into(),
        number(now.0).into(),
    ]);
    values
}

pub(super) fn entry(row: &Row) -> Result<Entry, DriverError> {
    Ok(Entry {
        seq: small(row, 0)?,
        kind: of_code(&EntryKind::ALL, row.int(1)?, "a kind of entry")?,
        step: StepId { name: row.text(2)?.to_owned(), nth: small(row, 3)? },
        op: of_code(&Op::ALL, row.int(4)?, "an operation")?,
        attempt: small(row, 5)?,
        epoch: unsigned(row, 6)?,
        at: StoreTime(unsigned(row, 7)?),
        safe_until: time(row, 8)?,
        input: row.bytes_or_null(9)?,
        body: row.bytes_or_null(10)?,
    })
}

pub(super) fn entry_values(saga: SagaNumber, entry: Entry) -> Vec<Value> {
    vec![
        number(saga.0).into(),
        i64::from(entry.seq).into(),
        code(&EntryKind::ALL, entry.kind).into(),
        entry.step.name.into(),
        i64::from(entry.step.nth).into(),
        code(&Op::ALL, entry.op).into(),
        i64::from(entry.attempt).into(),
        number(entry.epoch).into(),
        number(entry.at.0).into(),
        optional(entry.safe_until),
        entry.input.into(),
        entry.body.into(),
    ]
}

/// Which `done` to look for.
pub(super) fn done_values(saga: SagaNumber, done: &NewEntry) -> Vec<Value> {
    vec![
        number(saga.0).into(),
        done.step.name.as_str().into(),
        i64::from(done.step.nth).into(),
        code(&Op::ALL, done.op).into(),
    ]
}

pub(super) fn signal(row: &Row) -> Result<Signal, DriverError> {
    let body: Bytes = row.bytes(2)?;
    Ok(Signal { id: row.text(0)?.to_owned(), name: row.text(1)?.to_owned(), body })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stored bytes: they may only grow at their end.
    #[test]
    fn codes_are_what_the_schema_says() {
        assert_eq!(Status::ALL.map(|status| code(&Status::ALL, status)), [0, 1, 2, 3, 4, 5, 6]);
        let schema = include_str!("postgres.sql");
        let named = |names: Vec<&str>| {
            let list = names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
            assert!(schema.contains(&list), "{list}");
        };
        named(Status::ALL.iter().map(|one| one.as_str()).collect());
        named(EntryKind::ALL.iter().map(|one| one.as_str()).collect());
        named(Op::ALL.iter().map(|one| one.as_str()).collect());
        assert_eq!(ParkReason::ALL[7], ParkReason::TooLarge);
        assert_eq!(UndoCause::ALL[2], UndoCause::Cancelled);
        assert_eq!(status_bits(&[]), 0b111_1111);
        assert_eq!(status_bits(&[Status::Parked]), 0b1000);
        assert!(of_code(&Status::ALL, 7, "a status").is_err());
    }
}
