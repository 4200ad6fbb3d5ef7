//! Endpoints that do not answer, so that nobody waits for them again and again. Pure.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// After so many different events in a row without an answer an endpoint is away: a few of them may be to blame themselves.
pub(super) const SILENT_MAX: usize = 3;
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// What is known of one endpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct EndpointBreaker {
    /// Different events that got no answer since the last one that did: as many as it takes.
    silent: Vec<Uuid>,
    /// When the first of them was sent.
    since: Option<Instant>,
    until: Option<Instant>,
    /// How long it was left alone the last time.
    pause: Duration,
    /// One event tries it.
    tried: bool,
    /// Silence is found out late here: an answer was waited for as long as one may take.
    slow: bool,
    last: Option<Uuid>,
    answered_at: Option<Instant>,
}

/// What is known of an endpoint that is left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenState {
    /// For how much longer.
    pub(super) left: Duration,
    /// When it fell silent.
    pub(super) since: Instant,
    /// It was tried again and is still away, or trying again takes long: events are not to wait for it. Before that it may
    /// merely have been restarted.
    pub(super) for_long: bool,
}

impl EndpointBreaker {
    /// Whether it is left alone, or was tried last by one that has not come back.
    pub(super) fn is_away(&self) -> bool {
        self.until.is_some()
    }

    /// Whether it has answered since then, and was not found to be away.
    pub(super) fn has_answered_since(&self, then: Instant) -> bool {
        self.until.is_none() && self.answered_at.is_some_and(|at| at >= then)
    }

    /// Whether and how long it is left alone. When that is over one event may try it, for so long, and the others may not
    /// yet.
    pub(super) fn left_alone(&mut self, now: Instant, attempt: Duration) -> Option<OpenState> {
        let until = self.until?;
        if now < until {
            let for_long = self.slow || self.pause > FIRST;
            return Some(OpenState { left: until - now, since: self.since.unwrap_or(now), for_long });
        }
        (self.until, self.tried) = (Some(now + attempt), true);
        None
    }

    /// It answered, whatever it said.
    pub(super) fn answered(&mut self, now: Instant) {
        *self = Self { answered_at: Some(now), ..Self::default() };
    }

    /// It did not answer to this event, which was sent then.
    pub(super) fn was_silent(&mut self, event: Uuid, sent: Instant, now: Instant, attempt: Duration) {
        self.since.get_or_insert(sent);
        self.slow |= now.saturating_duration_since(sent) >= attempt / 2;
        if self.silent.len() < SILENT_MAX && !self.silent.contains(&event) {
            self.silent.push(event);
        }
        let another = self.last.replace(event) != Some(event);
        let is_news = match self.until {
            None => self.silent.len() >= SILENT_MAX,
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

    /// Refused at once, by so many different events.
    fn away(now: Instant) -> EndpointBreaker {
        let mut away = EndpointBreaker::default();
        for _ in 0..SILENT_MAX {
            assert_eq!(away.left_alone(now, ATTEMPT), None);
            refuses(&mut away, Uuid::now_v7(), now);
        }
        away
    }

    fn refuses(away: &mut EndpointBreaker, event: Uuid, now: Instant) {
        away.was_silent(event, now, now, ATTEMPT);
    }

    fn left(away: &mut EndpointBreaker, now: Instant) -> Option<Duration> {
        away.left_alone(now, ATTEMPT).map(|alone| alone.left)
    }

    #[test]
    fn who_is_silent_is_left_alone_ever_longer_and_tried_by_one() {
        let mut now = Instant::now();
        let mut away = away(now);
        // Others that were under way.
        refuses(&mut away, Uuid::now_v7(), now);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(left(&mut away, now), Some(Duration::from_secs(seconds)));
            now += Duration::from_secs(seconds);
            assert_eq!(left(&mut away, now), None, "one tries it");
            assert_eq!(left(&mut away, now), Some(ATTEMPT), "and no other");
            refuses(&mut away, Uuid::now_v7(), now);
        }
    }

    #[test]
    fn who_may_have_been_restarted_is_waited_for_once() {
        let now = Instant::now();
        let mut away = away(now);
        assert!(!away.left_alone(now, ATTEMPT).unwrap().for_long);
        let then = now + FIRST;
        assert_eq!(away.left_alone(then, ATTEMPT), None);
        refuses(&mut away, Uuid::now_v7(), then);
        assert_eq!(
            away.left_alone(then, ATTEMPT),
            Some(OpenState { left: FIRST * 2, since: now, for_long: true })
        );
        let mut slow = EndpointBreaker::default();
        for _ in 0..SILENT_MAX {
            slow.was_silent(Uuid::now_v7(), now, now + ATTEMPT, ATTEMPT);
        }
        assert!(slow.left_alone(now + ATTEMPT, ATTEMPT).unwrap().for_long, "to try it again takes long");
    }

    #[test]
    fn a_few_events_alone_do_not_make_an_endpoint_be_away() {
        let (mut now, events) = (Instant::now(), [Uuid::now_v7(), Uuid::now_v7()]);
        let mut alone = EndpointBreaker::default();
        for n in 0..10 {
            refuses(&mut alone, events[n % 2], now);
            assert_eq!(left(&mut alone, now), None);
        }
        let mut away = away(now);
        for seconds in [1, 2, 2, 2] {
            assert_eq!(left(&mut away, now), Some(Duration::from_secs(seconds)));
            now += Duration::from_secs(seconds);
            assert_eq!(left(&mut away, now), None);
            refuses(&mut away, events[0], now);
        }
    }

    #[test]
    fn who_answers_is_back() {
        let now = Instant::now();
        let mut away = away(now);
        assert!(!away.has_answered_since(now));
        away.answered(now);
        assert!(away.has_answered_since(now) && !EndpointBreaker::default().has_answered_since(now));
        assert!(!away.has_answered_since(now + FIRST), "that was before");
        assert_eq!(left(&mut away, now), None);
        refuses(&mut away, Uuid::now_v7(), now);
        assert_eq!(left(&mut away, now), None, "once is not enough");
    }

    #[test]
    fn a_try_that_nobody_heard_of_again_is_followed_by_another() {
        let now = Instant::now();
        let mut away = away(now);
        let then = now + FIRST;
        assert_eq!(left(&mut away, then), None);
        assert_eq!(left(&mut away, then + ATTEMPT), None);
    }
}
