//! A circuit breaker per endpoint: one that does not answer gets no requests for a while. Pure.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::backoff::Backoff;

/// Different events in a row without an answer that open the breaker: fewer may be to blame themselves.
pub(super) const SILENT_MAX: usize = 3;
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// The circuit breaker of one endpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct EndpointBreaker {
    /// Different events without an answer since the last answer, at most [`SILENT_MAX`].
    silent: Vec<Uuid>,
    /// When the first of them was sent.
    since: Option<Instant>,
    /// Open until then.
    until: Option<Instant>,
    /// How long the breaker was open the last time.
    pause: Duration,
    /// Half-open: one event probes the endpoint.
    tried: bool,
    /// Silence took at least half of the attempt timeout.
    slow: bool,
    last: Option<Uuid>,
    answered_at: Option<Instant>,
}

/// State of an open breaker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenState {
    /// Time until the next probe.
    pub(super) left: Duration,
    /// Since when the endpoint does not answer.
    pub(super) since: Instant,
    /// A probe failed or takes long: events should not wait. Before that, the endpoint may merely be restarting.
    pub(super) for_long: bool,
}

impl EndpointBreaker {
    /// Whether the breaker is open, or half-open with a probe in flight.
    pub(super) fn is_open(&self) -> bool {
        self.until.is_some()
    }

    /// Whether it has answered since then, and the breaker is closed.
    pub(super) fn has_answered_since(&self, then: Instant) -> bool {
        self.until.is_none() && self.answered_at.is_some_and(|at| at >= then)
    }

    /// The state, if open. Once its time is over, one event may probe the endpoint (half-open); for the others it stays
    /// open for the time of one attempt.
    pub(super) fn check(&mut self, now: Instant, attempt: Duration) -> Option<OpenState> {
        let until = self.until?;
        if now < until {
            let for_long = self.slow || self.pause > BACKOFF.first;
            return Some(OpenState { left: until - now, since: self.since.unwrap_or(now), for_long });
        }
        (self.until, self.tried) = (Some(now + attempt), true);
        None
    }

    /// It answered, with any status: closes the breaker.
    pub(super) fn answered(&mut self, now: Instant) {
        *self = Self { answered_at: Some(now), ..Self::default() };
    }

    /// It did not answer to this event, sent at `sent`.
    pub(super) fn not_answered(&mut self, event: Uuid, sent: Instant, now: Instant, attempt: Duration) {
        self.since.get_or_insert(sent);
        self.slow |= now.saturating_duration_since(sent) >= attempt / 2;
        if self.silent.len() < SILENT_MAX && !self.silent.contains(&event) {
            self.silent.push(event);
        }
        let another = self.last.replace(event) != Some(event);
        let is_news = match self.until {
            None => self.silent.len() >= SILENT_MAX,
            // Requests in flight when it opened add nothing; only a failed probe counts.
            Some(_) => self.tried,
        };
        if is_news {
            self.pause = if another { BACKOFF.next(self.pause) } else { self.pause.max(BACKOFF.first) };
            (self.until, self.tried) = (Some(now + self.pause), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTEMPT: Duration = Duration::from_secs(10);

    /// Opened by events that were refused at once.
    fn open(now: Instant) -> EndpointBreaker {
        let mut breaker = EndpointBreaker::default();
        for _ in 0..SILENT_MAX {
            assert_eq!(breaker.check(now, ATTEMPT), None);
            refuses(&mut breaker, Uuid::now_v7(), now);
        }
        breaker
    }

    fn refuses(breaker: &mut EndpointBreaker, event: Uuid, now: Instant) {
        breaker.not_answered(event, now, now, ATTEMPT);
    }

    fn left(breaker: &mut EndpointBreaker, now: Instant) -> Option<Duration> {
        breaker.check(now, ATTEMPT).map(|alone| alone.left)
    }

    #[test]
    fn who_is_silent_is_left_alone_ever_longer_and_tried_by_one() {
        let mut now = Instant::now();
        let mut breaker = open(now);
        // Others that were in flight.
        refuses(&mut breaker, Uuid::now_v7(), now);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(left(&mut breaker, now), Some(Duration::from_secs(seconds)));
            now += Duration::from_secs(seconds);
            assert_eq!(left(&mut breaker, now), None, "one event probes it");
            assert_eq!(left(&mut breaker, now), Some(ATTEMPT), "and no other event does");
            refuses(&mut breaker, Uuid::now_v7(), now);
        }
    }

    #[test]
    fn who_may_have_been_restarted_is_waited_for_once() {
        let now = Instant::now();
        let mut breaker = open(now);
        assert!(!breaker.check(now, ATTEMPT).unwrap().for_long);
        let then = now + BACKOFF.first;
        assert_eq!(breaker.check(then, ATTEMPT), None);
        refuses(&mut breaker, Uuid::now_v7(), then);
        assert_eq!(
            breaker.check(then, ATTEMPT),
            Some(OpenState { left: BACKOFF.first * 2, since: now, for_long: true })
        );
        let mut slow = EndpointBreaker::default();
        for _ in 0..SILENT_MAX {
            slow.not_answered(Uuid::now_v7(), now, now + ATTEMPT, ATTEMPT);
        }
        assert!(slow.check(now + ATTEMPT, ATTEMPT).unwrap().for_long, "a probe takes long");
    }

    #[test]
    fn a_few_events_alone_do_not_make_an_endpoint_be_away() {
        let (mut now, events) = (Instant::now(), [Uuid::now_v7(), Uuid::now_v7()]);
        let mut alone = EndpointBreaker::default();
        for n in 0..10 {
            refuses(&mut alone, events[n % 2], now);
            assert_eq!(left(&mut alone, now), None);
        }
        let mut breaker = open(now);
        for seconds in [1, 2, 2, 2] {
            assert_eq!(left(&mut breaker, now), Some(Duration::from_secs(seconds)));
            now += Duration::from_secs(seconds);
            assert_eq!(left(&mut breaker, now), None);
            refuses(&mut breaker, events[0], now);
        }
    }

    #[test]
    fn who_answers_is_back() {
        let now = Instant::now();
        let mut breaker = open(now);
        assert!(!breaker.has_answered_since(now));
        breaker.answered(now);
        assert!(breaker.has_answered_since(now) && !EndpointBreaker::default().has_answered_since(now));
        assert!(!breaker.has_answered_since(now + BACKOFF.first), "that was before");
        assert_eq!(left(&mut breaker, now), None);
        refuses(&mut breaker, Uuid::now_v7(), now);
        assert_eq!(left(&mut breaker, now), None, "once is not enough");
    }

    #[test]
    fn a_probe_without_a_result_is_followed_by_another() {
        let now = Instant::now();
        let mut breaker = open(now);
        let then = now + BACKOFF.first;
        assert_eq!(left(&mut breaker, then), None);
        assert_eq!(left(&mut breaker, then + ATTEMPT), None);
    }
}
