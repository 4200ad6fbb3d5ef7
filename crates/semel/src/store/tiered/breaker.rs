//! Circuit breaker: stops asking a cache that fails, so that one that hangs does not cost every request its timeout.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::backoff::Backoff;

/// The breaker opens after this many failures in a row.
const FAILURES_MAX: u32 = 3;
/// How long it stays open, at first and at most. Then one request probes the cache, while the others skip it.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

#[derive(Default)]
pub(super) struct Breaker(Mutex<BreakerState>);

#[derive(Default)]
struct BreakerState {
    failures: u32,
    /// While open: when the next probe may go out.
    probe_at: Option<Instant>,
    pause: Duration,
    /// A probe is under way.
    probing: bool,
}

/// A permit to ask the cache. Dropped without [`answered`](Self::answered), it counts as a failure.
pub(super) struct Permit<'a> {
    breaker: &'a Breaker,
    answered: bool,
}

impl Breaker {
    fn state(&self) -> MutexGuard<'_, BreakerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ask(&self, now: Instant) -> Option<Permit<'_>> {
        let mut state = self.state();
        if let Some(probe_at) = state.probe_at {
            if now < probe_at || state.probing {
                return None;
            }
            state.probing = true;
        }
        Some(Permit { breaker: self, answered: false })
    }
}

impl Permit<'_> {
    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.breaker.state();
        if self.answered {
            *state = BreakerState::default();
            return;
        }
        state.failures = state.failures.saturating_add(1);
        state.probing = false;
        if state.failures >= FAILURES_MAX {
            state.pause = BACKOFF.next(state.pause);
            state.probe_at = Some(Instant::now() + state.pause);
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
        assert!(breaker.ask(now).is_none(), "the breaker is open");
        let later = now + BACKOFF.first * 2;
        let probe = breaker.ask(later).unwrap();
        assert!(breaker.ask(later).is_none(), "one probe at a time");
        drop(probe);
        assert!(breaker.ask(later).is_none(), "it stays open longer after each failure");
        let probe = breaker.ask(later + BACKOFF.first * 4).unwrap();
        probe.answered();
        let (one, two) = (breaker.ask(now), breaker.ask(now));
        assert!(one.is_some() && two.is_some(), "the breaker is closed");
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
