//! What a sink's author provides: the sink, topics, and a reader who has nothing to do with the sink.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::sink::Sink;
use crate::sink::headers;

/// Hands the laws a sink to be judged, and the judge: a reader that asks the broker itself.
///
/// Every law takes topics of its own, so one broker may serve all laws at once.
pub trait SinkHarness: Send + Sync {
    /// The sink under judgement.
    type Sink: Sink;

    /// A sink that works. One that publishes exactly once has begun.
    fn sink(&self) -> impl Future<Output = Self::Sink> + Send;

    /// The same sink for a broker at this address, where there is none: nobody listens, or somebody who never
    /// answers. It should give up within a few seconds.
    fn sink_at(&self, address: SocketAddr) -> impl Future<Output = Self::Sink> + Send;

    /// A topic of a new name that takes events and has none.
    fn topic(&self) -> impl Future<Output = String> + Send;

    /// A topic of a new name and a payload it will never take, although it takes a short one. `None` where the broker has
    /// no such thing.
    fn refusing(&self) -> impl Future<Output = Option<(String, Bytes)>> + Send;

    /// Everything in the topic, as the broker has it: those of one key in their order.
    fn read(&self, topic: &str) -> impl Future<Output = Vec<ReadMessage>> + Send;

    /// Whatever the broker does, a call has ended after this.
    fn bound(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Whether payloads may be any bytes. A broker of texts says no.
    fn takes_bytes(&self) -> bool {
        true
    }
}

/// An event as a reader saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadMessage {
    /// The payload.
    pub payload: Bytes,
    /// The headers, under the names of [`headers`], in lower case.
    pub headers: Vec<(String, String)>,
}

impl ReadMessage {
    /// Names are compared in lower case: some brokers do not keep the case.
    pub fn new<'a>(payload: impl Into<Bytes>, headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let lower = |(name, text): (&str, &str)| (name.to_ascii_lowercase(), text.to_owned());
        Self { payload: payload.into(), headers: headers.into_iter().map(lower).collect() }
    }

    /// The header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(there, _)| there == name).map(|(_, text)| text.as_str())
    }

    /// The event's id, if it has one.
    pub fn id(&self) -> Option<&str> {
        self.header(headers::ID)
    }
}
