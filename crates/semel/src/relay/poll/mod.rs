//! Polling: reads the outbox table with a cursor that loses no late commit and waits for no open transaction.

use std::time::Duration;

use super::outbox_reader::Settled;

mod admin;
#[cfg(feature = "mysql")]
pub mod mysql;
mod outbox;
// Pure, and shared with the simulated outbox.
#[doc(hidden)]
pub mod parking;
#[cfg(feature = "postgres")]
pub mod postgres;
pub(in crate::relay) mod row;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use outbox::PolledOutbox;

/// Number of partitions (column `lane`). Each has one cursor and one owner.
pub const LANES: i16 = 16;

/// Most parked events of one key in a batch.
#[doc(hidden)]
pub const OF_KEY_MAX: i64 = 100;

/// How often parked events are checked.
#[doc(hidden)]
pub const DUE_EVERY: Duration = Duration::from_millis(250);

/// Delay until parked events are checked again after a retry. Zero if the sink took them all, else [`DUE_EVERY`]: many
/// failing events must not starve the others.
#[doc(hidden)]
pub fn due_after(tried: &[Settled]) -> Duration {
    let all_taken = tried.iter().all(|settled| *settled == Settled::Confirmed);
    if all_taken { Duration::ZERO } else { DUE_EVERY }
}

/// Refuses tables of a version that this build does not work with.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
fn known_version(version: i64) -> Result<(), crate::store::StoreError> {
    // The versions of the outbox are the same in all dialects.
    let checked = crate::outbox::TABLES.check(crate::tx::driver::Dialect::Postgres, version, "this database");
    checked.map_err(crate::migration::wrong)
}

/// The outbox tables do not exist.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn no_outbox(database: &str) -> crate::store::StoreError {
    use crate::store::{ErrorKind, Fate, StoreError};
    let message = format!(
        "{database} has no outbox tables; create them with `semel migrate --outbox URL` or `semel::outbox::schema`"
    );
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
}

/// The cursor is ahead of the table: new events would get numbers that already count as published.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
fn cursor_ahead() -> super::outbox_reader::OutboxReaderError {
    use crate::store::{ErrorKind, Fate, StoreError};
    let message = "the outbox's cursor is ahead of every event ever appended here: the events were restored from a \
                   backup without the cursor, or the event counter was lost; find out which, then choose where to \
                   continue with `semel outbox rebase`";
    StoreError::new(ErrorKind::Lost, Fate::NotApplied, message).into()
}

/// The partitions of the relay with this index among so many.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn share(index: usize, relays: usize) -> Vec<i16> {
    (0..LANES).filter(|lane| usize::from(lane.unsigned_abs()) % relays.max(1) == index).collect()
}

#[cfg(all(test, any(feature = "postgres", feature = "mysql")))]
mod tests {
    use super::*;

    #[test]
    fn every_lane_falls_to_one_relay_and_shares_are_fair() {
        for relays in 1..20 {
            let shares: Vec<Vec<i16>> = (0..relays).map(|index| share(index, relays)).collect();
            let mut all = shares.concat();
            all.sort_unstable();
            assert_eq!(all, (0..LANES).collect::<Vec<_>>());
            let sizes = || shares.iter().map(Vec::len);
            assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        }
    }
}
