//! A server that could not be reached, remembered for a moment: nobody waits for it longer than the one who tries.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Fate;
use super::coalesce::Failure;

/// Pause before a server that could not be reached is tried again, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The outage, if there is one.
#[derive(Default)]
pub(super) struct Outage(Mutex<Option<Noticed>>);

struct Noticed {
    pause: Duration,
    until: Instant,
    failure: Failure,
}

impl Outage {
    /// What the last one to try was told, while it is too early to try again.
    pub(super) fn told(&self) -> Option<Failure> {
        self.lock().as_ref().filter(|noticed| Instant::now() < noticed.until).map(|it| it.failure.clone())
    }

    /// Nobody could connect. Gives what to say: nothing was sent.
    pub(super) fn goes_on(&self, failure: Failure) -> Failure {
        let failure = Failure { fate: Fate::NotApplied, ..failure };
        let mut noticed = self.lock();
        let pause = noticed.as_ref().map_or(PAUSE_MIN, |before| before.pause * 2).min(PAUSE_MAX);
        let until = Instant::now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        *noticed = Some(Noticed { pause, until, failure: failure.clone() });
        failure
    }

    /// Somebody is connected.
    pub(super) fn is_over(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Noticed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
