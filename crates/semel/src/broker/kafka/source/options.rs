//! Options of the source, and the librdkafka properties that only the source may set.

use std::time::Duration;

use rdkafka::ClientConfig;

use super::KafkaSource;
use crate::broker::kafka::client;
use crate::source::SourceError;

/// Properties that the guarantees depend on, or that have an option of their own.
const OURS: [&str; 20] = [
    "allow.auto.create.topics",
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "bootstrap.servers",
    "consume.callback.max.messages",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "group.id",
    "group.protocol",
    "isolation.level",
    "max.poll.interval.ms",
    "offset.store.method",
    "partition.assignment.strategy",
    "queued.max.messages.kbytes",
    "queued.min.messages",
    "rebalance_cb",
    "session.timeout.ms",
    "transactional.id",
];

/// Prefetch: messages of each partition that librdkafka fetches ahead, within `queue_bytes`.
const FETCHED_AHEAD: &str = "10000";

/// How soon librdkafka checks again whether a full prefetch queue has room. Its default is one second: then no more
/// than one queue would be consumed per second.
const FETCH_BACKOFF_MS: &str = "10";

/// How often group events are served while messages are in flight.
const KEEP: Duration = Duration::from_secs(2);

/// Where a group begins that has no committed offset, or whose offset is no longer in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Begin {
    /// At the oldest message.
    #[default]
    Earliest,
    /// At new messages. Earlier ones, also those from while the offset was lost, are never handled. A partition has an
    /// offset once its first message arrived; until then each start begins at its end.
    Latest,
    /// An error.
    Refuse,
}

/// How partitions are assigned to the consumers of a group. All of them need the same, or Kafka refuses them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Assignment {
    /// `cooperative-sticky`: a rebalance revokes only the partitions that move.
    #[default]
    CooperativeSticky,
    /// `range`: a rebalance revokes everything. The same partition of two topics goes to the same consumer.
    Range,
    /// `roundrobin`: a rebalance revokes everything.
    RoundRobin,
}

/// What to read, and how. See [`KafkaSource::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct KafkaSourceOptions {
    bootstrap: String,
    pub(crate) group: String,
    pub(crate) topics: Vec<String>,
    own: Vec<(String, String)>,
    begin: Begin,
    assignment: Assignment,
    queue_bytes: usize,
    session: Duration,
    pub(crate) max_poll: Duration,
    pub(crate) timeout: Duration,
}

impl KafkaSourceOptions {
    pub(crate) fn new(bootstrap: &str, group: &str) -> Self {
        Self {
            bootstrap: bootstrap.to_owned(),
            group: group.to_owned(),
            topics: Vec::new(),
            own: Vec::new(),
            begin: Begin::Earliest,
            assignment: Assignment::CooperativeSticky,
            queue_bytes: 16 << 20,
            session: Duration::from_secs(45),
            max_poll: Duration::from_secs(300),
            timeout: Duration::from_secs(10),
        }
    }

    /// The topics to read.
    pub fn topics(mut self, topics: &[&str]) -> Self {
        self.topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        self
    }

    /// Where a new group begins; by default at the oldest message.
    pub fn begin(mut self, begin: Begin) -> Self {
        self.begin = begin;
        self
    }

    pub(super) fn is_latest(&self) -> bool {
        self.begin == Begin::Latest
    }

    /// How partitions are assigned; by default `cooperative-sticky`.
    pub fn assignment(mut self, assignment: Assignment) -> Self {
        self.assignment = assignment;
        self
    }

    /// Prefetch limit in memory: 16 MiB. One message beyond it may be there, however large.
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes.clamp(1 << 16, 1 << 30);
        self
    }

    /// Session timeout: after this long without a heartbeat, others get the consumer's partitions. 45 s. A broker
    /// accepts 6 s to 30 minutes by default.
    pub fn session(mut self, session: Duration) -> Self {
        self.session = session.clamp(Duration::from_secs(1), Duration::from_secs(1_800));
        self
    }

    /// After this long without a poll, others get the partitions: five minutes, and at least the session timeout. Long
    /// work stays below it, because [`keep`](crate::source::Source::keep) polls; a process that hangs does not.
    pub fn max_poll_interval(mut self, interval: Duration) -> Self {
        self.max_poll = interval.clamp(Duration::from_secs(1), Duration::from_secs(86_400));
        self
    }

    /// Timeout of blocking requests to the broker: 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.clamp(Duration::from_millis(100), Duration::from_secs(300));
        self
    }

    /// Any other librdkafka property, such as `client.id`, `group.instance.id` or `sasl.username`.
    ///
    /// # Errors
    /// The guarantees depend on the property, or it has an option of its own.
    pub fn set(mut self, property: &str, value: &str) -> Result<Self, SourceError> {
        if OURS.contains(&property) {
            return Err(SourceError::for_good(format!(
                "the property {property} cannot be set: the source's guarantees depend on it, or it has its own option"
            )));
        }
        self.own.push((property.to_owned(), value.to_owned()));
        Ok(self)
    }

    /// Opens a consumer of the group. The broker need not be reachable yet.
    ///
    /// # Errors
    /// There is no group or no topic, or librdkafka rejects a property.
    pub fn open(self) -> Result<KafkaSource, SourceError> {
        KafkaSource::open(self)
    }

    /// How often group events are served while messages are in flight.
    pub(crate) fn keep_every(&self) -> Duration {
        KEEP.min(self.max_poll / 4)
    }

    /// Refuses options that cannot work.
    pub(crate) fn check(&self) -> Result<(), SourceError> {
        if self.group.is_empty() {
            return Err(SourceError::for_good("the name of the consumer group is empty"));
        }
        if self.topics.is_empty() {
            return Err(SourceError::for_good("no topic is given; set at least one"));
        }
        Ok(())
    }

    /// For requests outside the group.
    pub(super) fn client(&self) -> ClientConfig {
        let mut config = client::config(&self.bootstrap, &self.own);
        // librdkafka warns about consumer properties on other clients.
        config.remove("group.instance.id");
        config
    }

    pub(crate) fn consumer(&self) -> ClientConfig {
        let mut config = client::config(&self.bootstrap, &self.own);
        config.set("group.id", &self.group);
        config.set("isolation.level", "read_committed");
        config.set("enable.auto.commit", "false");
        config.set("enable.auto.offset.store", "false");
        config.set("enable.partition.eof", "false");
        config.set(
            "partition.assignment.strategy",
            match self.assignment {
                Assignment::CooperativeSticky => "cooperative-sticky",
                Assignment::Range => "range",
                Assignment::RoundRobin => "roundrobin",
            },
        );
        config.set(
            "auto.offset.reset",
            match self.begin {
                Begin::Earliest => "earliest",
                Begin::Latest => "latest",
                Begin::Refuse => "error",
            },
        );
        config.set("queued.min.messages", FETCHED_AHEAD);
        if config.get("fetch.queue.backoff.ms").is_none() {
            config.set("fetch.queue.backoff.ms", FETCH_BACKOFF_MS);
        }
        config.set("queued.max.messages.kbytes", (self.queue_bytes / 1_024).to_string());
        config.set("session.timeout.ms", self.session.as_millis().to_string());
        config.set("max.poll.interval.ms", self.max_poll.max(self.session).as_millis().to_string());
        config.set("allow.auto.create.topics", "false");
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_promises_rest_on_is_not_for_others_to_set() {
        for property in OURS {
            let error = KafkaSourceOptions::new("localhost:1", "g").set(property, "1").unwrap_err();
            assert!(error.to_string().contains(property), "{error}");
        }
        assert!(KafkaSourceOptions::new("localhost:1", "g").set("client.id", "me").is_ok());
    }

    #[test]
    fn room_for_more_is_looked_for_soon_unless_configured_otherwise() {
        let options = KafkaSourceOptions::new("localhost:1", "g");
        assert_eq!(options.consumer().get("fetch.queue.backoff.ms"), Some(FETCH_BACKOFF_MS));
        let options = options.set("fetch.queue.backoff.ms", "250").unwrap();
        assert_eq!(options.consumer().get("fetch.queue.backoff.ms"), Some("250"));
    }

    #[test]
    fn what_cannot_work_is_an_error_when_opened() {
        let options = KafkaSourceOptions::new("localhost:1", "g").topics(&["t"]);
        let error = |options: KafkaSourceOptions| options.open().err().unwrap().to_string();
        assert!(error(options.clone().set("no.such.property", "1").unwrap()).contains("no.such.property"));
        assert!(error(options.clone().topics(&[])).contains("topic"));
        assert!(error(KafkaSourceOptions::new("localhost:1", "").topics(&["t"])).contains("group"));
        assert!(options.open().is_ok(), "the broker need not be reachable");
    }
}
