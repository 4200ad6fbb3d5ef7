//! Polling: the outbox table read by a cursor that loses no late commit and waits for no open transaction.

use std::time::Duration;

use super::outbox_reader::Settled;

// The pure half of parking, which the simulated outbox shares with the real ones.
#[cfg(feature = "mysql")]
pub mod mysql;
#[doc(hidden)]
pub mod parking;
#[cfg(feature = "postgres")]
pub mod postgres;
pub(in crate::relay) mod row;
#[cfg(feature = "sqlite")]
pub mod sqlite;

/// Into how many lanes the events are divided. Each has a cursor and an owner.
pub const LANES: i16 = 16;

/// Most parked events of one key in a batch.
#[doc(hidden)]
pub const OF_KEY_MAX: i64 = 100;

/// How often parked events are looked at.
#[doc(hidden)]
pub const DUE_EVERY: Duration = Duration::from_millis(250);

/// In how long parked events are looked at after some of them were tried. At once where all were taken; else later, so
/// that many that fail leave others their turn.
#[doc(hidden)]
pub fn due_after(tried: &[Settled]) -> Duration {
    let all_taken = tried.iter().all(|settled| *settled == Settled::Confirmed);
    if all_taken { Duration::ZERO } else { DUE_EVERY }
}

/// Bounds of one batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) events_max: usize,
    pub(crate) bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { events_max: 4_000, bytes_max: 4 * 1024 * 1024 }
    }
}

/// Refuses tables of a version that this build does not know.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
fn known_version(version: i64) -> Result<(), crate::store::StoreError> {
    use crate::store::{ErrorKind, Fate, StoreError};
    if version == i64::from(crate::outbox::VERSION) {
        return Ok(());
    }
    let message = format!(
        "the outbox has version {version}, and this build knows {}; run the semel that made it",
        crate::outbox::VERSION
    );
    Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message))
}

/// Which of these parked events, each with its number and topic, a person gives up: those of the topic, which need not be
/// named where there is but one.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
fn to_skip(
    id: uuid::Uuid,
    parked: Vec<(i64, String)>,
    topic: Option<&str>,
) -> Result<Vec<i64>, crate::relay::OutboxReaderError> {
    use crate::store::{ErrorKind, Fate, StoreError};
    let mut topics: Vec<&str> = parked.iter().map(|(_, topic)| topic.as_str()).collect();
    topics.sort_unstable();
    topics.dedup();
    if topic.is_none() && topics.len() > 1 {
        let message = format!(
            "events with the id {id} are parked on several topics ({}): say which one to give up",
            topics.join(", ")
        );
        return Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message).into());
    }
    let wanted = parked.iter().filter(|(_, of)| topic.is_none_or(|topic| topic == of));
    Ok(wanted.map(|(n, _)| *n).collect())
}

/// The tables are not there.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn no_outbox(place: &str) -> crate::store::StoreError {
    use crate::store::{ErrorKind, Fate, StoreError};
    let message = format!(
        "{place} has no outbox; make its tables with `semel migrate --outbox URL` or `semel::outbox::schema`"
    );
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
}

/// New events would get numbers that count as published.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
fn ahead() -> super::outbox_reader::OutboxReaderError {
    use crate::store::{ErrorKind, Fate, StoreError};
    let message = "the outbox's cursor is ahead of every event that was ever appended here: the events were restored from \
                   a backup and the cursor was not, or the count of events was lost; find out, then say where to go on with \
                   `semel outbox rebase`";
    StoreError::new(ErrorKind::Lost, Fate::NotApplied, message).into()
}

/// The lanes that fall to one of so many relays.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn share(place: usize, relays: usize) -> Vec<i16> {
    (0..LANES).filter(|lane| usize::from(lane.unsigned_abs()) % relays.max(1) == place).collect()
}

#[cfg(all(test, any(feature = "postgres", feature = "mysql")))]
mod tests {
    use super::*;

    #[test]
    fn every_lane_falls_to_one_relay_and_shares_are_fair() {
        for relays in 1..20 {
            let shares: Vec<Vec<i16>> = (0..relays).map(|place| share(place, relays)).collect();
            let mut all = shares.concat();
            all.sort_unstable();
            assert_eq!(all, (0..LANES).collect::<Vec<_>>());
            let sizes = || shares.iter().map(Vec::len);
            assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        }
    }
}
