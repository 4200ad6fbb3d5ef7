//! Backoff between attempts to connect to a broker. Pure.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Exponential backoff with jitter: each failure in a row doubles the pause, up to ten seconds.
#[derive(Default)]
pub(super) struct Backoff {
    failed: Option<(Instant, Duration)>,
}

impl Backoff {
    /// Earliest time of the next attempt.
    pub(super) fn at(&self) -> Option<Instant> {
        self.failed.map(|(when, pause)| when + pause)
    }

    pub(super) fn failed(&mut self, now: Instant) {
        let pause = self.failed.map_or(FIRST, |(_, pause)| (pause * 2).min(LONGEST));
        self.failed = Some((now, pause.mul_f64(0.8 + 0.2 * fastrand::f64())));
    }

    pub(super) fn went_well(&mut self) {
        self.failed = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_end_with_a_success() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        assert_eq!(backoff.at(), None);
        backoff.failed(now);
        assert!(backoff.at().is_some_and(|at| at <= now + FIRST));
        for _ in 0..40 {
            backoff.failed(now);
        }
        let pause = backoff.at().map(|at| at - now);
        assert!(pause.is_some_and(|pause| pause > FIRST && pause <= LONGEST), "{pause:?}");
        backoff.went_well();
        assert_eq!(backoff.at(), None);
    }
}
