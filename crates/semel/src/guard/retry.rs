//! Retries in the background: with backoff, for an hour at most.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;

/// Backoff between retries.
pub(super) const BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(5)).jitter(0.5);
/// How long recording an outcome, or giving back a claim, is retried before it is given up with an error in the log.
const RETRY_TIME_MAX: Duration = Duration::from_secs(60 * 60);

/// The retries of one request.
pub(super) struct Retries {
    started: Instant,
    /// How many were made.
    pub(super) made: u32,
}

impl Retries {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), made: 0 }
    }

    /// Whether there is time for another one.
    pub(super) fn in_time(&self) -> bool {
        self.started.elapsed() < RETRY_TIME_MAX
    }

    /// Waits until the next one is due.
    pub(super) async fn pause(&mut self) {
        tokio::time::sleep(BACKOFF.delay(self.made)).await;
        self.made += 1;
    }
}
