//! The operations on dead letters, over any driver.

use std::time::Duration;

use super::letter::{self, Counted, DeadLetterFilter, StoredDeadLetter};
use super::sql;
use crate::database::OwnTx;
use crate::inbox::consumer::Due;
use crate::inbox::prune;
use crate::tx::driver::{DriverError, DriverErrorKind, Value};

/// Most payload bytes leased for redelivery at once, unless the first dead letter alone has more.
const DUE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Most dropped dead letters deleted at once.
const DROPPED_MAX: i64 = 1_000;

pub(super) async fn version(tx: &mut OwnTx<'_, '_>) -> Result<i64, DriverError> {
    let rows = tx.run(&sql::VERSION, Vec::new()).await?;
    rows.first()
        .ok_or_else(|| DriverError::of(DriverErrorKind::Unreadable, "semel_inbox_meta is empty"))?
        .int(0)
}

/// Inserts a dead letter. `other_name` is its id if another message already has the first one, so that neither
/// overwrites the other. The check comes after the insert: before it, two transactions could both find the id free.
pub(super) async fn dead_letter(
    tx: &mut OwnTx<'_, '_>,
    mut values: Vec<Value>,
    other_name: Value,
) -> Result<(), DriverError> {
    tx.run(&sql::INSERT, values.clone()).await?;
    let [name, .., payload, _, _, _, _] = &mut values[..] else {
        return Err(DriverError::of(
            DriverErrorKind::Other,
            "a dead letter has fewer columns than its insert needs",
        ));
    };
    if !tx.run(&sql::OTHER, vec![name.clone(), payload.clone()]).await?.rows.is_empty() {
        *name = other_name;
        tx.run(&sql::INSERT, values).await?;
    }
    Ok(())
}

pub(super) async fn find(
    tx: &mut OwnTx<'_, '_>,
    number: i64,
) -> Result<Option<StoredDeadLetter>, DriverError> {
    let rows = tx.run(&sql::FIND, vec![number.into()]).await?;
    rows.first().map(letter::dead_letter).transpose()
}

pub(super) async fn list(
    tx: &mut OwnTx<'_, '_>,
    filter: DeadLetterFilter,
    most: usize,
) -> Result<Vec<StoredDeadLetter>, DriverError> {
    let DeadLetterFilter { consumer, source, after, dropped } = filter;
    let values =
        vec![consumer.into(), source.into(), after.into(), i64::from(dropped).into(), bound(most).into()];
    let rows = tx.run(&sql::LIST, values).await?;
    rows.rows.iter().map(letter::dead_letter).collect()
}

pub(super) async fn count(tx: &mut OwnTx<'_, '_>, most: usize) -> Result<Vec<Counted>, DriverError> {
    let rows = tx.run(&sql::COUNT, vec![bound(most).into()]).await?;
    rows.rows.iter().map(letter::counted).collect()
}

/// Schedules all of these for redelivery, or none: `Err` has the number of one that does not exist.
pub(super) async fn retry(tx: &mut OwnTx<'_, '_>, numbers: Vec<i64>) -> Result<Result<(), i64>, DriverError> {
    for number in &numbers {
        if tx.run(&sql::EXISTS, vec![(*number).into()]).await?.rows.is_empty() {
            return Ok(Err(*number));
        }
    }
    for number in numbers {
        tx.run(&sql::RETRY, vec![number.into()]).await?;
    }
    Ok(Ok(()))
}

pub(super) async fn retry_all(tx: &mut OwnTx<'_, '_>, filter: DeadLetterFilter) -> Result<u64, DriverError> {
    let DeadLetterFilter { consumer, source, .. } = filter;
    Ok(tx.run(&sql::RETRY_ALL, vec![consumer.into(), source.into()]).await?.changed)
}

/// Drops all of these, or none: `Err` has the number of one that does not exist.
pub(super) async fn give_up(
    tx: &mut OwnTx<'_, '_>,
    numbers: Vec<i64>,
    why: String,
) -> Result<Result<Vec<StoredDeadLetter>, i64>, DriverError> {
    let mut dead_letters = Vec::with_capacity(numbers.len());
    for number in numbers {
        let found = find(tx, number).await?;
        let Some(dead_letter) = found.filter(|dead_letter| dead_letter.dropped.is_none()) else {
            return Ok(Err(number));
        };
        dead_letters.push(dead_letter);
    }
    for dead_letter in &dead_letters {
        let dropped = tx.run(&sql::DROP, vec![dead_letter.number.into(), why.clone().into()]).await?;
        if dropped.changed == 0 {
            // The error rolls back the earlier drops.
            let number = dead_letter.number;
            return Err(DriverError::of(
                DriverErrorKind::Other,
                format!(
                    "dead letter {number} is being redelivered right now; nothing was dropped, try again later"
                ),
            ));
        }
    }
    Ok(Ok(dead_letters))
}

/// Leases dead letters that are due for redelivery.
pub(super) async fn due(
    tx: &mut OwnTx<'_, '_>,
    consumer: String,
    most: usize,
    lease: Duration,
) -> Result<Vec<Due>, DriverError> {
    let waiting = tx.run(&sql::DUE, vec![consumer.into(), bound(most).into()]).await?;
    let (mut dead_letters, mut bytes) = (Vec::new(), 0);
    for row in &waiting.rows {
        let (number, length) = (row.int(0)?, row.int(1)?.unsigned_abs());
        bytes += length;
        if bytes > DUE_BYTES_MAX && !dead_letters.is_empty() {
            break;
        }
        if tx.run(&sql::TAKE, vec![number.into(), millis(lease).into()]).await?.changed == 0 {
            continue;
        }
        let found = tx.run(&sql::FIND, vec![number.into()]).await?;
        dead_letters.extend(found.first().map(letter::due).transpose()?);
    }
    Ok(dead_letters)
}

pub(super) async fn handled(tx: &mut OwnTx<'_, '_>, number: i64) -> Result<(), DriverError> {
    tx.run(&sql::HANDLED, vec![number.into()]).await.map(drop)
}

pub(super) async fn failed(
    tx: &mut OwnTx<'_, '_>,
    number: i64,
    error: String,
    attempts: u32,
) -> Result<(), DriverError> {
    let error = letter::error(&error);
    tx.run(&sql::FAILED, vec![number.into(), error.into(), i64::from(attempts).into()]).await.map(drop)
}

/// Deletes one bounded batch of marks older than the window, and of dead letters dropped before it.
pub(super) async fn prune(
    tx: &mut OwnTx<'_, '_>,
    consumer: String,
    window: Duration,
) -> Result<u64, DriverError> {
    let marks = prune::chunk(tx, &consumer, window).await?;
    Ok(marks + forget_dropped(tx, consumer, window).await?)
}

/// Deletes one bounded batch of dead letters dropped longer ago than the window.
pub(super) async fn forget_dropped(
    tx: &mut OwnTx<'_, '_>,
    consumer: String,
    window: Duration,
) -> Result<u64, DriverError> {
    let values = vec![consumer.into(), millis(window).into(), DROPPED_MAX.into()];
    Ok(tx.run(&sql::FORGET_DROPPED, values).await?.changed)
}

fn bound(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX).min(i64::MAX / 4)
}
