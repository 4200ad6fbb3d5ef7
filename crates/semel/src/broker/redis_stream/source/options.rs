//! What to read from Redis Streams, and how.

use std::time::Duration;

use redis::Client;

use super::RedisStreamSource;
use crate::broker::redis_stream::{KEY, PAYLOAD};
use crate::source::SourceError;

/// Shortest and longest time allowed: adding a longer one to an `Instant` could overflow.
const TIMES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(365 * 86_400));

/// What to read, and how. See [`RedisStreamSource::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisStreamSourceOptions {
    pub(super) client: Client,
    pub(super) stream: String,
    pub(super) group: String,
    pub(super) consumer: String,
    pub(super) key: String,
    pub(super) payload: String,
    pub(super) claim_after: Duration,
    pub(super) timeout: Duration,
}

impl RedisStreamSourceOptions {
    pub(super) fn new(url: &str, stream: &str, group: &str) -> Result<Self, SourceError> {
        let client =
            Client::open(url).map_err(|error| SourceError::for_good(format!("not a Redis URL: {error}")))?;
        Ok(Self {
            client,
            stream: stream.to_owned(),
            group: group.to_owned(),
            consumer: format!("semel-{}", uuid::Uuid::now_v7().simple()),
            key: KEY.to_owned(),
            payload: PAYLOAD.to_owned(),
            claim_after: Duration::from_secs(60),
            timeout: Duration::from_secs(10),
        })
    }

    /// The name of this consumer in its group; by default a new unique one. After a restart under the same name it
    /// continues at once with the entries it had, in order. Two running consumers must not share a name.
    pub fn consumer(mut self, name: &str) -> Self {
        self.consumer = name.to_owned();
        self
    }

    /// The field of the key; by default `semel-key`, as semel's sink writes it.
    pub fn key(mut self, field: &str) -> Self {
        self.key = field.to_owned();
        self
    }

    /// The field of the payload; by default `semel-payload`, as semel's sink writes it. All others are headers.
    pub fn payload(mut self, field: &str) -> Self {
        self.payload = field.to_owned();
        self
    }

    /// The lease on entries: how long a consumer may be silent before others claim them. Default one minute, at most a
    /// year. Use the same value for all consumers of a group.
    pub fn claim_after(mut self, silence: Duration) -> Self {
        self.claim_after = silence.clamp(TIMES.0, TIMES.1);
        self
    }

    /// Timeout of a call to the server: 10 s, at most a year.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.clamp(TIMES.0, TIMES.1);
        self
    }

    /// Opens the source. It connects at the first `receive`, and creates a missing stream and group.
    ///
    /// # Errors
    /// The name of the stream, group or consumer is empty.
    pub fn open(self) -> Result<RedisStreamSource, SourceError> {
        RedisStreamSource::open(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_longer_than_the_clock_goes() {
        let options = RedisStreamSourceOptions::new("redis://127.0.0.1", "s", "g").unwrap();
        let options = options.timeout(Duration::MAX).claim_after(Duration::MAX);
        assert_eq!((options.timeout, options.claim_after), (TIMES.1, TIMES.1));
        let options = options.timeout(Duration::ZERO).claim_after(Duration::ZERO);
        assert_eq!((options.timeout, options.claim_after), (TIMES.0, TIMES.0));
    }
}
