//! Retry policy: max attempts, time limit and backoff.

use std::time::Duration;

use http::header::HeaderName;

use crate::backoff::Backoff;
use crate::http::headers::IDEMPOTENCY_KEY;
use crate::http::rule::BODY_BYTES_MAX;
use crate::intent::guard_expiry::time_left;
use crate::intent::policy::millis;

/// Upper bound of `attempts_max`: the list of attempts has to stay small.
pub const ATTEMPTS_MAX: u32 = 1_000;

/// How many bytes of an answer are read before it counts as arrived, by default.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Longest margin before the end of retention in which nothing is sent.
const MARGIN_MAX: Duration = Duration::from_secs(60 * 60);

/// The retry budget of one intent, and the backoff between its attempts.
///
/// | setting | default | bounds |
/// |---|---|---|
/// | [`attempts_max`](Self::attempts_max) | 10 | how often it is sent |
/// | [`time_max`](Self::time_max) | 2 minutes | everything: attempts and the waits between them |
/// | [`attempt_timeout`](Self::attempt_timeout) | 15 seconds | one attempt, up to the end of its answer |
/// | [`backoff`](Self::backoff) | 200 ms to 10 s | the wait between two, with full jitter |
/// | [`retention`](Self::retention) | 24 hours | how old an intent may be when it is sent again |
/// | [`body_bytes_max`](Self::body_bytes_max) | 1 MiB | the request's body, which every attempt repeats |
/// | [`answer_bytes_max`](Self::answer_bytes_max) | 1 MiB | how much of an answer is read before it is returned |
///
/// ```
/// use std::time::Duration;
/// use semel::http::client::RetryPolicy;
///
/// let patient = RetryPolicy::default().time_max(Duration::from_secs(600)).attempts_max(50);
/// # let _ = patient;
/// ```
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    pub(super) attempts_max: u32,
    pub(super) time_max: Duration,
    pub(super) attempt_timeout: Duration,
    pub(super) backoff: Backoff,
    pub(super) retention: Duration,
    pub(super) body_bytes_max: usize,
    pub(super) answer_bytes_max: usize,
    pub(super) key_header: HeaderName,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 10,
            time_max: Duration::from_secs(120),
            attempt_timeout: Duration::from_secs(15),
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(10)),
            retention: Duration::from_secs(24 * 60 * 60),
            body_bytes_max: BODY_BYTES_MAX,
            answer_bytes_max: ANSWER_BYTES_MAX,
            key_header: IDEMPOTENCY_KEY,
        }
    }
}

impl RetryPolicy {
    /// Max attempts, including the first: 1 to [`ATTEMPTS_MAX`].
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts.clamp(1, ATTEMPTS_MAX);
        self
    }

    /// How long the caller waits at most. The last attempt is cut short if it would take longer.
    pub fn time_max(mut self, time: Duration) -> Self {
        self.time_max = time;
        self
    }

    /// How long one attempt may take, up to the last byte of its answer. A slower one is dropped and retried with the
    /// same key: it may have taken effect.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = timeout;
        self
    }

    /// Exponential backoff with full jitter: the wait after the n-th attempt is random between zero and `base` × 2ⁿ⁻¹,
    /// at most `max`; longer if the server's `Retry-After` says so.
    pub fn backoff(mut self, base: Duration, max: Duration) -> Self {
        self.backoff = Backoff::new(base.min(max), max);
        self
    }

    /// How long the server keeps outcomes. Nothing is sent in the last tenth of it (at most an hour): beyond it a retry
    /// is a new intent, and a second effect.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How large a request's body may be. It is kept in memory until there is an answer.
    pub fn body_bytes_max(mut self, bytes: usize) -> Self {
        self.body_bytes_max = bytes;
        self
    }

    /// How much of an answer is read before it counts as arrived. If the connection breaks before that, the request is
    /// retried; the rest of the answer is streamed.
    pub fn answer_bytes_max(mut self, bytes: usize) -> Self {
        self.answer_bytes_max = bytes;
        self
    }

    /// The header of the key, if the server does not use `Idempotency-Key`.
    pub fn key_header(mut self, name: HeaderName) -> Self {
        self.key_header = name;
        self
    }

    /// How old an intent may be when it is sent: retention minus a margin for slow attempts and clock errors.
    pub(super) fn sendable_for(&self) -> Duration {
        time_left(self.retention, millis(self.margin()))
    }

    /// How long before the end of retention sending stops.
    pub(super) fn margin(&self) -> Duration {
        (self.retention / 10).min(MARGIN_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sending_stops_before_the_server_forgets() {
        for (retention_s, sendable_s) in [(0, 0), (10, 9), (3_600, 3_240), (86_400, 82_800)] {
            let policy = RetryPolicy::default().retention(Duration::from_secs(retention_s));
            assert_eq!(policy.sendable_for(), Duration::from_secs(sendable_s));
        }
    }

    #[test]
    fn the_key_may_have_another_header() {
        let other = HeaderName::from_static("x-request-key");
        let policy = RetryPolicy::default().attempts_max(7).key_header(other.clone());
        assert_eq!((policy.key_header, policy.attempts_max), (other, 7));
    }

    #[test]
    fn attempts_stay_within_their_bound() {
        for (asked, got) in [(0, 1), (1, 1), (1_000, 1_000), (1_001, 1_000)] {
            assert_eq!(RetryPolicy::default().attempts_max(asked).attempts_max, got);
        }
    }
}
