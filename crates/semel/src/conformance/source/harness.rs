//! What a source's author provides: queues, a publisher that is independent of the source, and the source.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use crate::sink::headers;
use crate::source::Source;

/// Provides the source under test, and access to its broker.
///
/// Every law uses its own queue, so one broker may serve all laws at once.
pub trait SourceHarness: Send + Sync {
    /// The source under test.
    type Source: Source;

    /// A new, empty queue. All its consumers belong to one group.
    fn queue(&self, lease: Lease) -> impl Future<Output = String> + Send;

    /// Appends messages to the queue, in order. Returns when the broker has them.
    fn publish(&self, queue: &str, messages: &[Sent]) -> impl Future<Output = ()> + Send;

    /// Another consumer of the queue's group. A new group begins with the oldest message.
    fn source(&self, queue: &str) -> impl Future<Output = Self::Source> + Send;

    /// How many messages of the queue its group has not acked, according to the broker. `None` if it does not report
    /// that.
    fn left(&self, queue: &str) -> impl Future<Output = Option<usize>> + Send;

    /// What the broker can do.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// Timeout for expected messages and for every call. Shorter than [`Lease::Long`].
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// How long a message stays leased to a consumer without [`keep`](Source::keep).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lease {
    /// Longer than a law runs, at least twice the [timeout](SourceHarness::patience).
    Long,
    /// The broker's shortest, and at least one second: [`Abilities::lease`].
    Short,
}

/// What a broker can do. By default everything.
#[derive(Clone, Debug)]
pub struct Abilities {
    /// Messages of one key come in order.
    pub order: bool,
    /// Messages have keys.
    pub keys: bool,
    /// Each message is acked by itself: an acked message behind an unacked one is not redelivered.
    pub one_by_one: bool,
    /// Others get the messages of a consumer that leaves before its leases expire.
    pub gives_back_at_once: bool,
    /// Deliveries of a message are counted.
    pub counts: bool,
    /// A message has the same position at every delivery, so that it may be identified
    /// [by it](crate::source::Identify::ByPlace).
    pub places: bool,
    /// Payloads are any bytes, and may be empty. Otherwise they are text.
    pub bytes: bool,
    /// The largest payload.
    pub payload_bytes_max: usize,
    /// The length of [`Lease::Short`]. `None` if the broker never takes a message from a connected consumer.
    pub lease: Option<Duration>,
}

impl Default for Abilities {
    fn default() -> Self {
        Self {
            order: true,
            keys: true,
            one_by_one: true,
            gives_back_at_once: true,
            counts: true,
            places: true,
            bytes: true,
            payload_bytes_max: 256 << 10,
            lease: Some(Duration::from_secs(2)),
        }
    }
}

/// A message to be published.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Sent {
    /// Its key, as producers for this broker write it.
    pub key: Option<String>,
    /// Its headers. The first one is the message's id.
    pub headers: Vec<(String, String)>,
    /// Its payload.
    pub payload: Bytes,
}

impl Sent {
    /// A message with this id, in a header and in the payload.
    pub(super) fn new(id: impl Into<String>) -> Self {
        let id = id.into();
        let payload = format!(r#"{{"id":"{id}"}}"#).into();
        Self { key: None, headers: vec![(headers::ID.to_owned(), id)], payload }
    }

    pub(super) fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        self.headers.first().map_or("", |(_, id)| id)
    }
}
