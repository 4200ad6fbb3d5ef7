//! Stops asking a cache that fails, so that one that hangs does not cost its timeout on every request.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Failures in a row after which nobody asks any more.
const FAILURES_MAX: u32 = 3;
/// How long nobody asks, at first and at most. Then one asks, and the others wait for what it finds.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Breaker(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    failures: u32,
    /// When it may be asked again, while it is not.
    again_at: Option<Instant>,
    pause: Duration,
    /// Somebody is finding out.
    probing: bool,
}

/// The right to ask. Whoever is dropped without an answer has failed.
pub(super) struct Asking<'a> {
    breaker: &'a Breaker,
    answered: bool,
}

impl Breaker {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ask(&self, now: Instant) -> Option<Asking<'_>> {
        let mut seen = self.seen();
        if let Some(again_at) = seen.again_at {
            if now < again_at || seen.probing {
                return None;
            }
            seen.probing = true;
        }
        Some(Asking { breaker: self, answered: false })
    }
}

impl Asking<'_> {
    /// It answered, whatever it said.
    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut seen = self.breaker.seen();
        if self.answered {
            *seen = Seen::default();
            return;
        }
        seen.failures = seen.failures.saturating_add(1);
        seen.probing = false;
        if seen.failures >= FAILURES_MAX {
            seen.pause = (seen.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            seen.again_at = Some(Instant::now() + seen.pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_few_failures_one_at_a_time_finds_out() {
        let breaker = Breaker::default();
        let now = Instant::now();
        for _ in 0..FAILURES_MAX {
            drop(breaker.ask(now).unwrap());
        }
        assert!(breaker.ask(now).is_none(), "it is left alone");
        let later = now + PAUSE_MIN * 2;
        let probe = breaker.ask(later).unwrap();
        assert!(breaker.ask(later).is_none(), "one finds out for all");
        drop(probe);
        assert!(breaker.ask(later).is_none(), "and longer after each failure");
        let probe = breaker.ask(later + PAUSE_MIN * 4).unwrap();
        probe.answered();
        let (one, two) = (breaker.ask(now), breaker.ask(now));
        assert!(one.is_some() && two.is_some(), "all ask again");
    }

    #[test]
    fn an_answer_in_between_starts_the_count_anew() {
        let breaker = Breaker::default();
        let now = Instant::now();
        for _ in 0..10 {
            drop(breaker.ask(now).unwrap());
            breaker.ask(now).unwrap().answered();
        }
        assert!(breaker.ask(now).is_some());
    }
}
