//! What a sink's author provides: the sink, topics, and a reader that is independent of the sink.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::sink::Sink;
use crate::sink::headers;

/// Provides the sink under test, and a reader that asks the broker directly.
///
/// Every law uses its own topics, so one broker may serve all laws at once.
pub trait SinkHarness: Send + Sync {
    /// The sink under test.
    type Sink: Sink;

    /// A working sink. An exactly-once sink has already started.
    fn sink(&self) -> impl Future<Output = Self::Sink> + Send;

    /// The same sink for a broker at this address, where there is none: the port is closed, or accepts connections and
    /// never answers. It should give up within a few seconds.
    fn sink_at(&self, address: SocketAddr) -> impl Future<Output = Self::Sink> + Send;

    /// A new, empty topic that accepts events.
    fn topic(&self) -> impl Future<Output = String> + Send;

    /// A new topic and a payload it always refuses, although it accepts a short one. `None` if the broker has no such
    /// limit.
    fn refusing(&self) -> impl Future<Output = Option<(String, Bytes)>> + Send;

    /// Everything in the topic, as the broker has it: events of one key in order.
    fn read(&self, topic: &str) -> impl Future<Output = Vec<ReadMessage>> + Send;

    /// Time limit of a call, whatever the broker does.
    fn bound(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Whether payloads may be any bytes; false for a broker that only carries text.
    fn takes_bytes(&self) -> bool {
        true
    }
}

/// An event as the reader got it.
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
