//! What to read from RabbitMQ, and how.

use std::time::Duration;

use super::RabbitmqSource;
use crate::sink::headers;
use crate::source::SourceError;

/// Where to find the key of a message: messages of one key keep their order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeyBy {
    /// This header. [`semel-key`](headers::KEY) is what semel's sink writes.
    Header(String),
    /// The routing key. semel's sink writes the topic there: then all messages of a topic share one key.
    RoutingKey,
    /// No key: no message waits for another.
    Nothing,
}

impl Default for KeyBy {
    fn default() -> Self {
        Self::Header(headers::KEY.to_owned())
    }
}

/// What to read, and how. See [`RabbitmqSource::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RabbitmqSourceOptions {
    pub(super) url: String,
    pub(super) queue: String,
    pub(super) prefetch: u16,
    pub(super) key_by: KeyBy,
    pub(super) timeout: Duration,
}

impl RabbitmqSourceOptions {
    pub(super) fn new(url: &str, queue: &str) -> Self {
        Self {
            url: url.to_owned(),
            queue: queue.to_owned(),
            prefetch: 4_000,
            key_by: KeyBy::default(),
            timeout: Duration::from_secs(10),
        }
    }

    /// Prefetch: most messages that the broker sends without an ack. 4,000, as many as a consumer has in flight, those
    /// of failing keys included (twice [`in_flight_max`](crate::inbox::consumer::ConsumerOptions::in_flight_max)). With fewer,
    /// waiting keys fill it sooner, and then nothing else arrives.
    pub fn prefetch(mut self, messages: u16) -> Self {
        // Zero would mean no limit.
        self.prefetch = messages.max(1);
        self
    }

    /// Where to find the key; by default in the header `semel-key`.
    pub fn key_by(mut self, key_by: KeyBy) -> Self {
        self.key_by = key_by;
        self
    }

    /// Timeout of a call to the broker: 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(100));
        self
    }

    /// Opens the source. It connects at the first `receive`.
    ///
    /// # Errors
    /// The queue's name is empty or too long.
    pub fn open(self) -> Result<RabbitmqSource, SourceError> {
        RabbitmqSource::open(self)
    }
}
