//! When a source that had nothing is asked again while calls are under way. Pure.
//!
//! It is asked without a wait then: one that waits would have to be broken off when a call ends. Some brokers want money for
//! each question, so it is the source that says how soon.

use std::time::Duration;

use tokio::time::Instant;

/// Longest pause, unless the source wants a longer one.
pub(super) const LOOK_MAX: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct IdlePoll {
    /// When it was asked and had nothing.
    asked: Option<Instant>,
    pause: Duration,
    shortest: Duration,
}

impl IdlePoll {
    /// It had something: there may be more.
    pub(super) fn came(&mut self) {
        *self = Self::default();
    }

    /// It had nothing, and is left alone for longer each time.
    pub(super) fn nothing(&mut self, now: Instant, shortest: Duration) {
        self.asked = Some(now);
        self.pause = (self.pause * 2).clamp(shortest, LOOK_MAX.max(shortest));
        self.shortest = shortest;
    }

    /// A call has ended: what comes now could be begun.
    pub(super) fn freed(&mut self) {
        self.pause = self.shortest;
    }

    /// How long it is left alone yet.
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
        // The shortest pause, and those that follow each other.
        for (shortest, pauses) in [(5, [5, 10, 20, 40, 80, 100, 100]), (1_000, [1_000; 7])] {
            let (mut look, now) = (IdlePoll::default(), Instant::now());
            assert_eq!(look.left(now), ms(0), "it was not asked yet");
            for pause in pauses {
                look.nothing(now, ms(shortest));
                assert_eq!(look.left(now), ms(pause));
            }
            look.freed();
            assert_eq!(look.left(now), ms(shortest), "not at once: it has just been asked");
            assert_eq!(look.left(now + ms(shortest)), ms(0));
            look.came();
            assert_eq!(look.left(now), ms(0));
        }
    }
}
