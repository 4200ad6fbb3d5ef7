//! Polling: the outbox table read by a cursor that loses no late commit and waits for no open transaction.

use std::time::Duration;

mod aside;
#[cfg(feature = "postgres")]
pub mod postgres;
mod row;
#[cfg(feature = "sqlite")]
pub mod sqlite;

/// Into how many lanes the events are divided. Each has a cursor and an owner.
pub const LANES: i16 = 16;

/// Most parked events of one key in a batch.
const OF_KEY_MAX: i64 = 100;

/// How often parked events are looked at.
const DUE_EVERY: Duration = Duration::from_millis(250);

/// Bounds of one batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) events_max: usize,
    pub(crate) bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { events_max: 1_000, bytes_max: 4 * 1024 * 1024 }
    }
}
