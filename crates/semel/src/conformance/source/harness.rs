//! What a source's author provides: queues, a publisher that has nothing to do with the source, and the source.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use crate::sink::headers;
use crate::source::Source;

/// Hands the laws a source to be judged, and the broker behind it.
///
/// Every law takes a queue of its own, so one broker may serve all laws at once.
pub trait SourceHarness: Send + Sync {
    /// The source under judgement.
    type Source: Source;

    /// A queue of a new name that has no messages. All its consumers are of one group.
    fn queue(&self, lease: Lease) -> impl Future<Output = String> + Send;

    /// Puts messages at the end of the queue, in their order. When it is back the broker has them.
    fn publish(&self, queue: &str, messages: &[Sent]) -> impl Future<Output = ()> + Send;

    /// One more consumer of the queue's group. A group that is new begins with the oldest message.
    fn source(&self, queue: &str) -> impl Future<Output = Self::Source> + Send;

    /// How many messages of the queue were not acknowledged by its group, as the broker has it. `None` where it does not
    /// tell.
    fn left(&self, queue: &str) -> impl Future<Output = Option<usize>> + Send;

    /// What the broker can do.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// What has to come has come after this, and every call has ended. Shorter than [`Lease::Long`].
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// How long a message is a consumer's that does not say that it still works on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lease {
    /// Longer than a law takes, twice the [patience](SourceHarness::patience) at least.
    Long,
    /// As short as the broker has it, and not under a second: [`Abilities::lease`].
    Short,
}

/// What a broker can do. By default everything.
#[derive(Clone, Debug)]
pub struct Abilities {
    /// Messages of one key come in their order.
    pub order: bool,
    /// Messages have keys.
    pub keys: bool,
    /// A message is acknowledged by itself: what was done behind one that was not does not come again.
    pub one_by_one: bool,
    /// Others get what somebody who leaves has given back before any lease is over.
    pub gives_back_at_once: bool,
    /// How often a message was delivered is counted.
    pub counts: bool,
    /// The place of a message is the same whenever it comes, so that it may be named [by its
    /// place](crate::source::Identify::ByPlace).
    pub places: bool,
    /// Payloads are any bytes, and may be empty. Else they are texts.
    pub bytes: bool,
    /// The largest payload.
    pub payload_bytes_max: usize,
    /// How long [`Lease::Short`] is. `None` where the broker never takes a message from a consumer that is connected.
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
    /// One with an id, whose payload says it too.
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
