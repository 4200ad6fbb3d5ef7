//! Endpoints that do not answer, so that nobody waits for them again and again. Pure.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// After so many different events in a row without an answer an endpoint is away: one of them alone may be to blame itself.
pub(super) const SILENT_MAX: u32 = 3;
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// What is known of one endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Away {
    silent: u32,
    until: Option<Instant>,
    /// How long it was left alone the last time.
    pause: Duration,
    /// One event tries it.
    tried: bool,
    last: Option<Uuid>,
    has_answered: bool,
}

impl Away {
    /// Whether it has answered, and was not found to be away since.
    pub(super) fn answers(&self) -> bool {
        self.has_answered && self.until.is_none()
    }

    /// How long it is left alone. When that is over one event may try it, for so long, and the others may not yet.
    pub(super) fn left_alone(&mut self, now: Instant, attempt: Duration) -> Option<Duration> {
        let until = self.until?;
        if now < until {
            return Some(until - now);
        }
        (self.until, self.tried) = (Some(now + attempt), true);
        None
    }

    /// It answered, whatever it said.
    pub(super) fn answered(&mut self) {
        *self = Self { has_answered: true, ..Self::default() };
    }

    /// It did not answer to this event.
    pub(super) fn was_silent(&mut self, event: Uuid, now: Instant) {
        let another = self.last.replace(event) != Some(event);
        self.silent = self.silent.saturating_add(u32::from(another));
        let is_news = match self.until {
            None => self.silent >= SILENT_MAX,
            // Of those that were under way when it was found to be away nothing new is heard.
            Some(_) => self.tried,
        };
        if is_news {
            let longer = if another { 2 } else { 1 };
            self.pause = (self.pause * longer).clamp(FIRST, LONGEST);
            (self.until, self.tried) = (Some(now + self.pause), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTEMPT: Duration = Duration::from_secs(10);

    fn away(now: Instant) -> Away {
        let mut away = Away::default();
        for _ in 0..SILENT_MAX {
            assert_eq!(away.left_alone(now, ATTEMPT), None);
            away.was_silent(Uuid::now_v7(), now);
        }
        away
    }

    #[test]
    fn who_is_silent_is_left_alone_ever_longer_and_tried_by_one() {
        let mut now = Instant::now();
        let mut away = away(now);
        // Others that were under way.
        away.was_silent(Uuid::now_v7(), now);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(away.left_alone(now, ATTEMPT), Some(Duration::from_secs(seconds)));
            now += Duration::from_secs(seconds);
            assert_eq!(away.left_alone(now, ATTEMPT), None, "one tries it");
            assert_eq!(away.left_alone(now, ATTEMPT), Some(ATTEMPT), "and no other");
            away.was_silent(Uuid::now_v7(), now);
        }
    }

    #[test]
    fn one_event_alone_does_not_make_an_endpoint_be_away() {
        let (mut now, event) = (Instant::now(), Uuid::now_v7());
        let mut alone = Away::default();
        for _ in 0..10 {
            alone.was_silent(event, now);
            assert_eq!(alone.left_alone(now, ATTEMPT), None);
        }
        let mut away = away(now);
        for seconds in [1, 2, 2, 2] {
            assert_eq!(away.left_alone(now, ATTEMPT), Some(Duration::from_secs(seconds)));
            now += Duration::from_secs(seconds);
            assert_eq!(away.left_alone(now, ATTEMPT), None);
            away.was_silent(event, now);
        }
    }

    #[test]
    fn who_answers_is_back() {
        let now = Instant::now();
        let mut away = away(now);
        assert!(!away.answers());
        away.answered();
        assert!(away.answers() && !Away::default().answers(), "nothing was heard of a new one");
        assert_eq!(away.left_alone(now, ATTEMPT), None);
        away.was_silent(Uuid::now_v7(), now);
        assert_eq!(away.left_alone(now, ATTEMPT), None, "once is not enough");
    }

    #[test]
    fn a_try_that_nobody_heard_of_again_is_followed_by_another() {
        let now = Instant::now();
        let mut away = away(now);
        let then = now + FIRST;
        assert_eq!(away.left_alone(then, ATTEMPT), None);
        assert_eq!(away.left_alone(then + ATTEMPT, ATTEMPT), None);
    }
}
