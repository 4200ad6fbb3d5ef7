//! Options of the Kafka sinks, and the librdkafka properties that callers cannot set.

use std::time::Duration;

use rdkafka::ClientConfig;

use super::KafkaSink;
use super::transaction::KafkaTransactions;
use crate::broker::kafka::client;
use crate::sink::SinkError;
use crate::sink::headers::Style;

/// Properties that the guarantees depend on, or that have their own option.
const OURS: [&str; 22] = [
    "acks",
    "allow.auto.create.topics",
    "batch.size",
    "bootstrap.servers",
    "compression.codec",
    "compression.type",
    "delivery.timeout.ms",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "isolation.level",
    "linger.ms",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.max.bytes",
    "message.send.max.retries",
    "message.timeout.ms",
    "partitioner",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.ms",
    "request.required.acks",
    "retries",
    "transactional.id",
];

/// How long the brokers may take to learn about a new topic.
const TOPIC_PATIENCE: Duration = Duration::from_secs(10);

/// How batches are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// LZ4.
    Lz4,
    /// Snappy.
    Snappy,
}

/// What to do with an event whose topic does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum MissingTopic {
    /// Let the broker create it if it is configured so; otherwise retry.
    #[default]
    Create,
    /// Retry until the topic exists.
    Wait,
    /// Refuse the event.
    Refuse,
}

/// Where and how to publish. See [`KafkaSink::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct KafkaOptions {
    bootstrap: String,
    own: Vec<(String, String)>,
    compression: Compression,
    linger: Duration,
    in_flight: u8,
    batch_bytes: usize,
    message_bytes: usize,
    queue_bytes: usize,
    pub(crate) missing: MissingTopic,
    pub(super) style: Style,
    pub(crate) timeout: Duration,
    pub(super) positions: String,
    transaction_timeout: Duration,
}

impl KafkaOptions {
    pub(super) fn new(bootstrap: &str) -> Self {
        Self {
            bootstrap: bootstrap.to_owned(),
            own: Vec::new(),
            compression: Compression::None,
            linger: Duration::from_millis(1),
            in_flight: 1,
            batch_bytes: 1_000_000,
            message_bytes: 1_048_588,
            queue_bytes: 16 << 20,
            missing: MissingTopic::Create,
            style: Style::Plain,
            timeout: Duration::from_secs(30),
            positions: "semel-positions".to_owned(),
            transaction_timeout: Duration::from_secs(60),
        }
    }

    /// Compression of batches: by default none.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Also sends the attributes of CloudEvents in binary mode, with this `source` (a URI reference).
    pub fn cloud_events(mut self, source: &str) -> Self {
        self.style = Style::CloudEvents { source: source.to_owned() };
        self
    }

    /// What to do if a topic does not exist: by default [`MissingTopic::Create`].
    pub fn missing_topic(mut self, missing: MissingTopic) -> Self {
        self.missing = missing;
        self
    }

    /// Timeout of one call: by default 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(100));
        self
    }

    /// How long a batch waits for more events: by default 1 ms.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger.min(Duration::from_secs(1));
        self
    }

    /// Requests in flight to one broker, 1 to 5. For at-least-once by default 1; more helps if the network latency is
    /// high and events go to many of the broker's partitions. Exactly-once always uses 5.
    pub fn in_flight(mut self, requests: u8) -> Self {
        self.in_flight = requests.clamp(1, 5);
        self
    }

    /// Largest batch: by default 1,000,000 bytes. Lower it for topics with a smaller `max.message.bytes`: the events of
    /// a batch that is too large are published one by one.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes.clamp(1_000, 100_000_000);
        self
    }

    /// Largest event with key and headers; a larger one is refused before it is sent. By default 1,048,588 bytes, a
    /// broker's own default.
    pub fn message_bytes(mut self, bytes: usize) -> Self {
        self.message_bytes = bytes.clamp(1_000, 100_000_000);
        self
    }

    /// Most bytes queued in memory for the broker: by default 16 MiB.
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes.clamp(2 << 20, 1 << 30);
        self
    }

    /// The topic that stores the relay's position in exactly-once mode: by default `semel-positions`. It is created if
    /// it does not exist, has one partition, is compacted, and several relays may share it.
    pub fn position_topic(mut self, topic: &str) -> Self {
        self.positions = topic.to_owned();
        self
    }

    /// After this time the broker aborts a transaction that was left open: by default 60 s. Readers of committed data
    /// wait that long for the transaction of a killed relay, or until a relay begins again.
    pub fn transaction_timeout(mut self, timeout: Duration) -> Self {
        self.transaction_timeout = timeout.clamp(Duration::from_secs(1), Duration::from_secs(900));
        self
    }

    /// Sets any other librdkafka property, such as `client.id` or `sasl.username`.
    ///
    /// # Errors
    /// If the guarantees depend on the property.
    pub fn set(mut self, property: &str, value: &str) -> Result<Self, SinkError> {
        if OURS.contains(&property) {
            return Err(SinkError::not_published(format!(
                "the property {property} is not to be set: the sink's guarantee depends on it, or it has its own option"
            )));
        }
        self.own.push((property.to_owned(), value.to_owned()));
        Ok(self)
    }

    /// Creates a sink that publishes at least once. The broker need not be up yet.
    ///
    /// # Errors
    /// If librdkafka does not accept a property.
    pub fn open(self) -> Result<KafkaSink, SinkError> {
        KafkaSink::open(self)
    }

    /// Creates a sink that publishes exactly once, for readers of committed data. When a sink with the same
    /// transactional id begins, it takes over from the last owner (fencing).
    ///
    /// # Errors
    /// If the transactional id is empty or ends in `.2`, or librdkafka does not accept a property.
    pub fn exactly_once(self, transactional_id: &str) -> Result<KafkaTransactions, SinkError> {
        KafkaTransactions::open(self, transactional_id)
    }

    /// The configuration of every client, also of those that only read.
    pub(super) fn client(&self) -> ClientConfig {
        client::config(&self.bootstrap, &self.own)
    }

    pub(crate) fn first_broker(&self) -> &str {
        self.bootstrap.split(',').next().unwrap_or_default().trim()
    }

    fn producer(&self) -> ClientConfig {
        let mut config = self.client();
        config.set("acks", "all");
        config.set("enable.idempotence", "true");
        // The Java client's partitioner: an event goes to the partition of earlier events of its key.
        config.set("partitioner", "murmur2_random");
        config.set("linger.ms", format!("{:.3}", self.linger.as_secs_f64() * 1_000.0));
        config.set("batch.size", self.batch_bytes.to_string());
        config.set("message.max.bytes", self.message_bytes.to_string());
        config.set("queue.buffering.max.kbytes", (self.queue_bytes / 1_024).to_string());
        config.set(
            "compression.type",
            match self.compression {
                Compression::None => "none",
                Compression::Lz4 => "lz4",
                Compression::Snappy => "snappy",
            },
        );
        let create = self.missing == MissingTopic::Create;
        config.set("allow.auto.create.topics", if create { "true" } else { "false" });
        let patience = TOPIC_PATIENCE.min(self.timeout / 2).max(Duration::from_millis(50));
        config.set("topic.metadata.propagation.max.ms", patience.as_millis().to_string());
        config
    }

    pub(super) fn at_least_once(&self) -> ClientConfig {
        let mut config = self.producer();
        config.set("max.in.flight.requests.per.connection", self.in_flight.to_string());
        // Both settings keep an event from being published although an earlier one failed. A refused batch stops this
        // producer instead of being skipped. And an event does not time out by itself, only the whole call does.
        config.set("enable.gapless.guarantee", "true");
        config.set("message.timeout.ms", "0");
        config
    }

    pub(crate) fn transactional(&self, id: &str) -> ClientConfig {
        let mut config = self.producer();
        config.set("transactional.id", id);
        config.set("max.in.flight.requests.per.connection", "5");
        config.set("transaction.timeout.ms", self.transaction_timeout.as_millis().to_string());
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_promises_rest_on_is_not_for_others_to_set() {
        for property in OURS {
            let error = KafkaOptions::new("localhost:1").set(property, "1").unwrap_err();
            assert!(error.to_string().contains(property), "{error}");
        }
        assert!(KafkaOptions::new("localhost:1").set("client.id", "me").is_ok());
    }

    #[test]
    fn an_unknown_property_is_an_error_when_opened() {
        let options = KafkaOptions::new("localhost:1").set("no.such.property", "1").unwrap();
        let error = options.open().err().unwrap();
        assert!(error.to_string().contains("no.such.property"), "{error}");
    }
}
