//! What is done with the letters, over any driver.

use std::time::Duration;

use super::letter::{self, Counted, DeadLetterFilter, StoredDeadLetter};
use super::sql;
use crate::inbox::consumer::Due;
use crate::inbox::prune;
use crate::tx::driver::{DriverError, DriverErrorKind, Value};
use crate::tx::script::Port;

/// Most bytes of payload that are taken to be handled again at once, unless the first letter alone has more.
const DUE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Dropped letters that are forgotten at once.
const DROPPED_MAX: i64 = 1_000;

pub(super) async fn version(port: Port) -> Result<i64, DriverError> {
    let rows = port.run(&sql::VERSION, Vec::new()).await?;
    rows.first()
        .ok_or_else(|| DriverError::of(DriverErrorKind::Unreadable, "semel_inbox_meta is empty"))?
        .int(0)
}

/// `apart` is its name if another message has the first one: neither takes the other's place. Who has the name is asked
/// after the letter is written, because before that two could hear that nobody has it.
pub(super) async fn dead_letter(port: Port, mut values: Vec<Value>, apart: Value) -> Result<(), DriverError> {
    port.run(&sql::BURY, values.clone()).await?;
    let [name, .., payload, _, _, _, _] = &mut values[..] else {
        return Err(DriverError::of(
            DriverErrorKind::Other,
            "a letter has fewer columns than it is written with",
        ));
    };
    if !port.run(&sql::OTHER, vec![name.clone(), payload.clone()]).await?.rows.is_empty() {
        *name = apart;
        port.run(&sql::BURY, values).await?;
    }
    Ok(())
}

pub(super) async fn find(port: Port, number: i64) -> Result<Option<StoredDeadLetter>, DriverError> {
    let rows = port.run(&sql::FIND, vec![number.into()]).await?;
    rows.first().map(letter::letter).transpose()
}

pub(super) async fn list(
    port: Port,
    listing: DeadLetterFilter,
    most: usize,
) -> Result<Vec<StoredDeadLetter>, DriverError> {
    let DeadLetterFilter { consumer, source, after, dropped } = listing;
    let values =
        vec![consumer.into(), source.into(), after.into(), i64::from(dropped).into(), bound(most).into()];
    let rows = port.run(&sql::LIST, values).await?;
    rows.rows.iter().map(letter::letter).collect()
}

pub(super) async fn count(port: Port, most: usize) -> Result<Vec<Counted>, DriverError> {
    let rows = port.run(&sql::COUNT, vec![bound(most).into()]).await?;
    rows.rows.iter().map(letter::counted).collect()
}

/// Marks all of these to be handled again, or none: `Err` has one that is not there.
pub(super) async fn retry(port: Port, numbers: Vec<i64>) -> Result<Result<(), i64>, DriverError> {
    for number in &numbers {
        if port.run(&sql::THERE, vec![(*number).into()]).await?.rows.is_empty() {
            return Ok(Err(*number));
        }
    }
    for number in numbers {
        port.run(&sql::RETRY, vec![number.into()]).await?;
    }
    Ok(Ok(()))
}

pub(super) async fn retry_all(port: Port, listing: DeadLetterFilter) -> Result<u64, DriverError> {
    let DeadLetterFilter { consumer, source, .. } = listing;
    Ok(port.run(&sql::RETRY_ALL, vec![consumer.into(), source.into()]).await?.changed)
}

/// Gives all of these up, or none: `Err` has one that is not there.
pub(super) async fn give_up(
    port: Port,
    numbers: Vec<i64>,
    why: String,
) -> Result<Result<Vec<StoredDeadLetter>, i64>, DriverError> {
    let mut letters = Vec::with_capacity(numbers.len());
    for number in numbers {
        let found = find(port.clone(), number).await?;
        let Some(letter) = found.filter(|letter| letter.dropped.is_none()) else { return Ok(Err(number)) };
        letters.push(letter);
    }
    for letter in &letters {
        let dropped = port.run(&sql::DROP, vec![letter.number.into(), why.clone().into()]).await?;
        if dropped.changed == 0 {
            // An error takes back those before it.
            let number = letter.number;
            return Err(DriverError::of(
                DriverErrorKind::Other,
                format!(
                    "the letter {number} is being handled again just now; nothing was dropped, try again later"
                ),
            ));
        }
    }
    Ok(Ok(letters))
}

/// Takes letters that are to be handled again, for a while.
pub(super) async fn due(
    port: Port,
    consumer: String,
    most: usize,
    lease: Duration,
) -> Result<Vec<Due>, DriverError> {
    let waiting = port.run(&sql::DUE, vec![consumer.into(), bound(most).into()]).await?;
    let (mut letters, mut bytes) = (Vec::new(), 0);
    for row in &waiting.rows {
        let (number, length) = (row.int(0)?, row.int(1)?.unsigned_abs());
        bytes += length;
        if bytes > DUE_BYTES_MAX && !letters.is_empty() {
            break;
        }
        if port.run(&sql::TAKE, vec![number.into(), millis(lease).into()]).await?.changed == 0 {
            continue;
        }
        let found = port.run(&sql::FIND, vec![number.into()]).await?;
        letters.extend(found.first().map(letter::due).transpose()?);
    }
    Ok(letters)
}

pub(super) async fn handled(port: Port, number: i64) -> Result<(), DriverError> {
    port.run(&sql::HANDLED, vec![number.into()]).await.map(drop)
}

pub(super) async fn failed(port: Port, number: i64, error: String, tries: u32) -> Result<(), DriverError> {
    let error = letter::error(&error);
    port.run(&sql::FAILED, vec![number.into(), error.into(), i64::from(tries).into()]).await.map(drop)
}

/// Forgets a bite of the marks that are older than this, and of what was dropped longer ago.
pub(super) async fn prune(port: Port, consumer: String, window: Duration) -> Result<u64, DriverError> {
    let marks = prune::chunk(port.clone(), consumer.clone(), window).await?;
    Ok(marks + forget_dropped(port, consumer, window).await?)
}

/// Forgets a bite of what was dropped longer ago than this.
pub(super) async fn forget_dropped(
    port: Port,
    consumer: String,
    window: Duration,
) -> Result<u64, DriverError> {
    let values = vec![consumer.into(), millis(window).into(), DROPPED_MAX.into()];
    Ok(port.run(&sql::FORGET_DROPPED, values).await?.changed)
}

fn bound(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX).min(i64::MAX / 4)
}
