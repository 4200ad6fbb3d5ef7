//! How the Kafka sinks are configured, and what of librdkafka's configuration is not for others to set.

use std::time::Duration;

use rdkafka::ClientConfig;

use super::KafkaSink;
use super::transaction::KafkaTransactions;
use crate::sink::SinkError;
use crate::sink::headers::Style;

/// Properties on which the promises rest, or which have an option of their own.
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

/// How long a new topic may take until all brokers know it.
const TOPIC_PATIENCE: Duration = Duration::from_secs(10);

/// How batches are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4.
    Lz4,
    /// Snappy.
    Snappy,
}

/// What becomes of an event whose topic is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum MissingTopic {
    /// The broker makes it if it is set up so; else the event waits.
    #[default]
    Create,
    /// The event waits until somebody has made the topic.
    Wait,
    /// The event is refused.
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

    /// None unless said otherwise.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Also the attributes of CloudEvents in binary mode, told by this source (a URI reference).
    pub fn cloud_events(mut self, source: &str) -> Self {
        self.style = Style::CloudEvents { source: source.to_owned() };
        self
    }

    /// The broker's business unless said otherwise.
    pub fn missing_topic(mut self, missing: MissingTopic) -> Self {
        self.missing = missing;
        self
    }

    /// The longest that one call takes before it gives up on the broker: 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(100));
        self
    }

    /// How long a batch waits for more events: 1 ms.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger.min(Duration::from_secs(1));
        self
    }

    /// Unanswered requests to one broker, 1 to 5. At least once it is 1 unless said otherwise; more helps where the way to
    /// the broker is long and events go to many of its partitions. Exactly once always uses 5.
    pub fn in_flight(mut self, requests: u8) -> Self {
        self.in_flight = requests.clamp(1, 5);
        self
    }

    /// Largest batch: 1,000,000 bytes. A topic whose `max.message.bytes` is smaller wants it smaller: what does not fit
    /// is published one by one.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes.clamp(1_000, 100_000_000);
        self
    }

    /// Largest event with key and headers, refused here already: 1,048,588 bytes, a broker's own default.
    pub fn message_bytes(mut self, bytes: usize) -> Self {
        self.message_bytes = bytes.clamp(1_000, 100_000_000);
        self
    }

    /// What may wait in memory for the broker: 16 MiB.
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes.clamp(2 << 20, 1 << 30);
        self
    }

    /// The topic that keeps the relay's position in exactly-once mode: `semel-positions`. It is made if it is missing,
    /// has one partition, is compacted, and several relays may share it.
    pub fn position_topic(mut self, topic: &str) -> Self {
        self.positions = topic.to_owned();
        self
    }

    /// After this long the broker aborts a transaction that was left open: 60 s. Readers of committed data wait for a
    /// killed relay's transaction that long, or until a relay begins again.
    pub fn transaction_timeout(mut self, timeout: Duration) -> Self {
        self.transaction_timeout = timeout.clamp(Duration::from_secs(1), Duration::from_secs(900));
        self
    }

    /// Any other property of librdkafka's, such as `client.id` or `sasl.username`.
    ///
    /// # Errors
    /// The properties that the promises rest on cannot be set.
    pub fn set(mut self, property: &str, value: &str) -> Result<Self, SinkError> {
        if OURS.contains(&property) {
            return Err(SinkError::not_published(format!(
                "the property {property} is not to be set: what the sink promises rests on it, or it has an option"
            )));
        }
        self.own.push((property.to_owned(), value.to_owned()));
        Ok(self)
    }

    /// A sink that publishes at least once. The broker need not be there yet.
    ///
    /// # Errors
    /// When librdkafka does not understand a property.
    pub fn open(self) -> Result<KafkaSink, SinkError> {
        KafkaSink::open(self)
    }

    /// A sink that publishes exactly once, for readers of committed data. Whoever opens one with the same transactional
    /// id and begins takes over from whoever had it before.
    ///
    /// # Errors
    /// When the transactional id is empty or ends in `.2`, or librdkafka does not understand a property.
    pub fn exactly_once(self, transactional_id: &str) -> Result<KafkaTransactions, SinkError> {
        KafkaTransactions::open(self, transactional_id)
    }

    /// What every client is told, also those that only read.
    pub(super) fn client(&self) -> ClientConfig {
        client(&self.bootstrap, &self.own)
    }

    pub(crate) fn first_broker(&self) -> &str {
        self.bootstrap.split(',').next().unwrap_or_default().trim()
    }

    fn producer(&self) -> ClientConfig {
        let mut config = self.client();
        config.set("acks", "all");
        config.set("enable.idempotence", "true");
        // As the Java client does it: an event goes where events of its key have always gone.
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
        // Two ways in which an event could fail while the one behind it gets there. A batch that the broker refuses
        // stops this producer instead of being stepped over. And an event does not time out by itself, whereupon the
        // next would go: the call as a whole does.
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

/// What every client of a cluster is told, whoever it belongs to.
pub(crate) fn client(bootstrap: &str, own: &[(String, String)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config.set("client.id", "semel");
    // A broker that is back is noticed within a second.
    config.set("reconnect.backoff.max.ms", "1000");
    for (property, value) in own {
        config.set(property, value);
    }
    config
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
