//! How the source is configured, and what of librdkafka's configuration is not for others to set.

use std::time::Duration;

use rdkafka::ClientConfig;

use super::KafkaSource;
use crate::sink::kafka::client;
use crate::source::SourceError;

/// Properties on which the promises rest, or which have an option of their own.
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

/// Messages that librdkafka fetches ahead, of each partition, as long as they fit.
const FETCHED_AHEAD: &str = "10000";

/// How soon librdkafka looks again whether there is room for more of a partition. By itself it waits for a second, in which
/// what was fetched ahead is long worked off: no more than that much would come in a second.
const LOOK_AGAIN_MS: &str = "10";

/// How often a group that wants something is heard while messages are worked on.
const KEEP: Duration = Duration::from_secs(2);

/// Where a group begins that has never committed anything, or whose place is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Begin {
    /// With the oldest message that is there.
    #[default]
    Earliest,
    /// With what comes from now on. What came before, also while the place was lost, is never handled. A partition has a
    /// place as soon as its first message came; until then each start begins at its end.
    Latest,
    /// Not at all: it is an error.
    Refuse,
}

/// How the partitions are dealt out among the consumers of a group. All of them say the same, or are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Assignment {
    /// Only what moves is taken away: `cooperative-sticky`.
    #[default]
    CooperativeSticky,
    /// Everything is taken away and dealt out anew: `range`, which gives the same partition of two topics to the same
    /// consumer.
    Range,
    /// Everything is taken away and dealt out anew: `roundrobin`.
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

    /// Where a new group begins: with the oldest message unless told otherwise.
    pub fn begin(mut self, begin: Begin) -> Self {
        self.begin = begin;
        self
    }

    pub(super) fn is_latest(&self) -> bool {
        self.begin == Begin::Latest
    }

    /// How partitions are dealt out: one by one unless told otherwise.
    pub fn assignment(mut self, assignment: Assignment) -> Self {
        self.assignment = assignment;
        self
    }

    /// What may be fetched ahead and wait in memory: 16 MiB. One message more than that may be there, however large.
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes.clamp(1 << 16, 1 << 30);
        self
    }

    /// After this long without a word from a consumer, others get its partitions: 45 s. A broker takes 6 s to 30 minutes
    /// unless it is set up otherwise.
    pub fn session(mut self, session: Duration) -> Self {
        self.session = session.clamp(Duration::from_secs(1), Duration::from_secs(1_800));
        self
    }

    /// After this long in which nobody asked for messages, others get them: five minutes, and at least the session. Long
    /// work does not get there, because it is [kept](crate::source::Source::keep); a process that hangs does.
    pub fn max_poll_interval(mut self, interval: Duration) -> Self {
        self.max_poll = interval.clamp(Duration::from_secs(1), Duration::from_secs(86_400));
        self
    }

    /// The longest that the broker is waited for where something cannot go on without it: 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.clamp(Duration::from_millis(100), Duration::from_secs(300));
        self
    }

    /// Any other property of librdkafka's, such as `client.id`, `group.instance.id` or `sasl.username`.
    ///
    /// # Errors
    /// The properties that the promises rest on cannot be set.
    pub fn set(mut self, property: &str, value: &str) -> Result<Self, SourceError> {
        if OURS.contains(&property) {
            return Err(SourceError::for_good(format!(
                "the property {property} is not to be set: what the source promises rests on it, or it has an option"
            )));
        }
        self.own.push((property.to_owned(), value.to_owned()));
        Ok(self)
    }

    /// A consumer of the group. The broker need not be there yet.
    ///
    /// # Errors
    /// When there is no group or no topic, or librdkafka does not understand a property.
    pub fn open(self) -> Result<KafkaSource, SourceError> {
        KafkaSource::open(self)
    }

    /// How often a group that wants something is heard while messages are worked on.
    pub(crate) fn keep_every(&self) -> Duration {
        KEEP.min(self.max_poll / 4)
    }

    /// What cannot work.
    pub(crate) fn check(&self) -> Result<(), SourceError> {
        if self.group.is_empty() {
            return Err(SourceError::for_good("the consumer group has no name"));
        }
        if self.topics.is_empty() {
            return Err(SourceError::for_good("there is no topic to read"));
        }
        Ok(())
    }

    /// For questions that have nothing to do with the group.
    pub(super) fn client(&self) -> ClientConfig {
        let mut config = client(&self.bootstrap, &self.own);
        // Properties of a consumer that others would warn of.
        config.remove("group.instance.id");
        config
    }

    pub(crate) fn consumer(&self) -> ClientConfig {
        let mut config = client(&self.bootstrap, &self.own);
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
            config.set("fetch.queue.backoff.ms", LOOK_AGAIN_MS);
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
    fn room_for_more_is_looked_for_soon_unless_told_otherwise() {
        let options = KafkaSourceOptions::new("localhost:1", "g");
        assert_eq!(options.consumer().get("fetch.queue.backoff.ms"), Some(LOOK_AGAIN_MS));
        let options = options.set("fetch.queue.backoff.ms", "250").unwrap();
        assert_eq!(options.consumer().get("fetch.queue.backoff.ms"), Some("250"));
    }

    #[test]
    fn what_cannot_work_is_an_error_when_opened() {
        let options = KafkaSourceOptions::new("localhost:1", "g").topics(&["t"]);
        let told = |options: KafkaSourceOptions| options.open().err().unwrap().to_string();
        assert!(told(options.clone().set("no.such.property", "1").unwrap()).contains("no.such.property"));
        assert!(told(options.clone().topics(&[])).contains("topic"));
        assert!(told(KafkaSourceOptions::new("localhost:1", "").topics(&["t"])).contains("group"));
        assert!(options.open().is_ok(), "the broker need not be there");
    }
}
