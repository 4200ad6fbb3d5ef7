//! When to poll an idle source again while calls are in flight. Pure.
//!
//! Such a poll does not wait: a waiting one would have to be aborted when a call ends. Some brokers bill each poll, so
//! the source sets the shortest interval.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;

/// Longest poll interval, unless the source wants a longer one.
pub(super) const POLL_INTERVAL_MAX: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct IdlePoll {
    /// When it was last polled and had nothing.
    asked: Option<Instant>,
    pause: Duration,
    shortest: Duration,
}

impl IdlePoll {
    /// It had messages: there may be more.
    pub(super) fn came(&mut self) {
        *self = Self::default();
    }

    /// It had nothing: the interval doubles.
    pub(super) fn nothing(&mut self, now: Instant, shortest: Duration) {
        self.asked = Some(now);
        self.pause = Backoff::new(shortest, POLL_INTERVAL_MAX.max(shortest)).next(self.pause);
        self.shortest = shortest;
    }

    /// A call has ended: a new message could start now.
    pub(super) fn freed(&mut self) {
        self.pause = self.shortest;
    }

    /// Time left until the next poll.
    pub(super) fn left(&self, now: Instant) -> Duration {
        self.asked.map_or(Duration::ZERO, |asked| (asked + self.pause).saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_had_nothing_is_asked_later_each_time_and_sooner_when_a_call_has_ended() {
        let ms = Duration::from_millis;
        // The shortest interval, and the intervals in order.
        for (shortest, pauses) in [(5, [5, 10, 20, 40, 80, 100, 100]), (1_000, [1_000; 7])] {
            let (mut idle_poll, now) = (IdlePoll::default(), Instant::now());
            assert_eq!(idle_poll.left(now), ms(0), "not polled yet");
            for pause in pauses {
                idle_poll.nothing(now, ms(shortest));
                assert_eq!(idle_poll.left(now), ms(pause));
            }
            idle_poll.freed();
            assert_eq!(idle_poll.left(now), ms(shortest), "not at once: it was just polled");
            assert_eq!(idle_poll.left(now + ms(shortest)), ms(0));
            idle_poll.came();
            assert_eq!(idle_poll.left(now), ms(0));
        }
    }
}
