//! Backoff between attempts to connect to a broker.

use std::time::{Duration, Instant};

use crate::backoff::Backoff;

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10)).jitter(0.2);

/// When to connect again. Each failure in a row doubles what jitter left of the last pause.
#[derive(Default)]
pub(crate) struct Reconnect {
    pause: Duration,
    /// Earliest time of the next attempt.
    at: Option<Instant>,
}

impl Reconnect {
    /// Waits for the next attempt. `false`: it is later than `until`.
    pub(crate) async fn wait(&self, until: Instant) -> bool {
        let Some(at) = self.at.filter(|at| *at > Instant::now()) else { return true };
        tokio::time::sleep_until(at.min(until).into()).await;
        at <= until
    }

    pub(crate) fn failed(&mut self, now: Instant) {
        self.pause = BACKOFF.jittered(BACKOFF.next(self.pause));
        self.at = Some(now + self.pause);
    }

    pub(crate) fn went_well(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_end_with_a_success() {
        let (mut reconnect, now) = (Reconnect::default(), Instant::now());
        reconnect.failed(now);
        assert!(reconnect.at.is_some_and(|at| at <= now + BACKOFF.first));
        for _ in 0..40 {
            reconnect.failed(now);
        }
        assert!(reconnect.pause > BACKOFF.first && reconnect.pause <= BACKOFF.max, "{:?}", reconnect.pause);
        reconnect.went_well();
        assert_eq!(reconnect.at, None);
    }
}
