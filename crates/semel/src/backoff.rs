//! Exponential backoff. Pure but for the jitter, which draws from the thread's generator: a simulation seeds that.

use std::time::Duration;

/// Pauses that double from the first to the longest. Its owner keeps the number of the attempt, or the last pause.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) max: Duration,
    jitter: f64,
}

impl Backoff {
    /// Without jitter.
    pub(crate) const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, jitter: 0.0 }
    }

    /// With jitter: up to this share of a pause is cut off at random, so that many processes do not retry at once. It
    /// only shortens a pause, so that `max` is a bound.
    pub(crate) const fn jitter(self, share: f64) -> Self {
        Self { jitter: share, ..self }
    }

    /// The pause before retry number `attempt`, counted from 0, before jitter.
    pub(crate) fn bound(&self, attempt: u32) -> Duration {
        self.first.saturating_mul(1 << attempt.min(31)).min(self.max)
    }

    /// The pause before retry number `attempt`, counted from 0.
    pub(crate) fn delay(&self, attempt: u32) -> Duration {
        self.jittered(self.bound(attempt))
    }

    /// The pause that follows one of this length, before jitter. The first one follows zero.
    pub(crate) fn next(&self, last: Duration) -> Duration {
        last.saturating_mul(2).clamp(self.first, self.max)
    }

    pub(crate) fn jittered(&self, pause: Duration) -> Duration {
        // Draws no random number that it does not need: the same seed then plays the same simulation.
        if self.jitter == 0.0 {
            return pause;
        }
        pause.mul_f64(1.0 - self.jitter + self.jitter * fastrand::f64())
    }
}

/// An interval that is this share shorter or longer at random, so that many processes do not run at the same moment.
pub(crate) fn spread(every: Duration, share: f64) -> Duration {
    every.mul_f64(1.0 - share + 2.0 * share * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn pauses_double_up_to_their_bound() {
        let backoff = Backoff::new(S(1), S(60));
        let mut last = Duration::ZERO;
        for (attempt, seconds) in [1, 2, 4, 8, 16, 32, 60, 60].into_iter().enumerate() {
            last = backoff.next(last);
            assert_eq!((last, backoff.delay(attempt as u32)), (S(seconds), S(seconds)));
        }
        assert_eq!(backoff.delay(u32::MAX), S(60));
        assert_eq!(Backoff::new(S(1), Duration::MAX).next(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn jitter_only_shortens_and_a_spread_goes_both_ways() {
        let backoff = Backoff::new(S(1), S(60)).jitter(0.2);
        for attempt in 0..200 {
            let (bound, pause) = (backoff.bound(attempt), backoff.delay(attempt));
            assert!(bound.mul_f64(0.8) <= pause && pause <= bound, "{pause:?} of {bound:?}");
        }
        let spread: Vec<_> = (0..200).map(|_| spread(S(10), 0.5)).collect();
        assert!(spread.iter().all(|every| (S(5)..=S(15)).contains(every)));
        assert!(spread.iter().any(|every| *every < S(10)) && spread.iter().any(|every| *every > S(10)));
    }
}
