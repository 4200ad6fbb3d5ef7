//! Connect backoff: after a failed connect, callers get that failure at once until the next try is due.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Fate;
use super::coalesce::Failure;
use crate::backoff::Backoff;

/// Backoff before a server that could not be reached is tried again.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2)).jitter(0.5);

/// The last failed connect; `None` while the server can be reached.
#[derive(Default)]
pub(super) struct ConnectBackoff(Mutex<Option<FailedConnect>>);

struct FailedConnect {
    pause: Duration,
    until: Instant,
    failure: Failure,
}

impl ConnectBackoff {
    /// The last failure, while it is too early to try again.
    pub(super) fn recent_failure(&self) -> Option<Failure> {
        self.lock().as_ref().filter(|last| Instant::now() < last.until).map(|last| last.failure.clone())
    }

    /// Returns the failure as not applied: nothing was sent.
    pub(super) fn record_failure(&self, failure: Failure) -> Failure {
        let failure = Failure { fate: Fate::NotApplied, ..failure };
        let mut last = self.lock();
        let pause = BACKOFF.next(last.as_ref().map_or(Duration::ZERO, |before| before.pause));
        let until = Instant::now() + BACKOFF.jittered(pause);
        *last = Some(FailedConnect { pause, until, failure: failure.clone() });
        failure
    }

    pub(super) fn reset(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<FailedConnect>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
