//! What to read from RabbitMQ, and how.

use std::time::Duration;

use super::RabbitmqSource;
use crate::sink::headers;
use crate::source::SourceError;

/// Where the key of a message is: messages of one key keep their order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeyBy {
    /// This header. [`semel-key`](headers::KEY) is what semel's sink writes.
    Header(String),
    /// The routing key. What semel's sink publishes has its topic there: all of a topic is one line then.
    RoutingKey,
    /// There is none: no message waits for another.
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

    /// Most messages that the broker sends ahead and that are not done: 4,000, as many as a consumer holds, those of failing
    /// keys included (twice [`held_max`](crate::inbox::consumer::ConsumerOptions::held_max)). With fewer than that, keys that
    /// wait fill it sooner, and then nothing else comes.
    pub fn prefetch(mut self, messages: u16) -> Self {
        // None means without a bound.
        self.prefetch = messages.max(1);
        self
    }

    /// Where the key is: in the header `semel-key` unless told otherwise.
    pub fn key_by(mut self, key_by: KeyBy) -> Self {
        self.key_by = key_by;
        self
    }

    /// The longest that one call takes before it gives up on the broker: 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(100));
        self
    }

    /// A source. It connects when it is first asked for messages.
    ///
    /// # Errors
    /// When there is no queue to read.
    pub fn open(self) -> Result<RabbitmqSource, SourceError> {
        RabbitmqSource::open(self)
    }
}
