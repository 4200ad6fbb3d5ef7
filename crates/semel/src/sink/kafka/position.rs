//! The relay's position in a compacted topic: made, checked, read back.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::FromClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use super::options::KafkaOptions;
use super::transaction_steps::left;
use crate::sink::SinkError;

/// How far from the end the reading begins. A relay's last position is among the last records unless many relays share
/// the topic; then it goes back further, eight times as far each time.
const TAIL: i64 = 1_000;
/// How long to wait before asking again how far the committed records reach.
const STABLE_PAUSE: Duration = Duration::from_millis(50);
const POLL: Duration = Duration::from_millis(200);

/// Makes the topic if it is missing, and checks that it keeps what it is given.
pub(super) async fn ensure(options: &KafkaOptions) -> Result<(), SinkError> {
    let topic = options.positions.as_str();
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        SinkError::not_published(format!("the position topic {topic} could not be {what}: {error}"))
    };
    let mut config = options.client();
    // Asking after a topic must not make one with the wrong settings.
    config.set("allow.auto.create.topics", "false");
    let admin: AdminClient<DefaultClientContext> =
        AdminClient::from_config(&config).map_err(|error| failed("made", &error))?;
    let bounded = AdminOptions::new()
        .request_timeout(Some(options.timeout))
        .operation_timeout(Some(options.timeout / 2));
    // Small segments, because only closed ones are compacted.
    let wanted = NewTopic::new(topic, 1, TopicReplication::Fixed(-1))
        .set("cleanup.policy", "compact")
        .set("segment.bytes", "16777216")
        .set("segment.ms", "3600000")
        .set("min.cleanable.dirty.ratio", "0.1");
    match admin.create_topics([&wanted], &bounded).await.map_err(|error| failed("made", &error))?.first() {
        // Not allowed to make it, but perhaps somebody else has: describing it tells.
        None | Some(Ok(_) | Err((_, Code::TopicAlreadyExists | Code::TopicAuthorizationFailed))) => {}
        Some(Err((_, Code::ClusterAuthorizationFailed))) => {}
        Some(Err((_, code))) => return Err(failed("made", code)),
    }
    let until = Instant::now() + options.timeout;
    loop {
        let described = admin
            .describe_configs([&ResourceSpecifier::Topic(topic)], &bounded)
            .await
            .map_err(|error| failed("looked at", &error))?;
        let found = described.first().map(|found| found.as_ref().map(|found| found.get("cleanup.policy")));
        match found {
            Some(Ok(Some(entry))) => {
                return keeps_what_it_is_given(topic, entry.value.as_deref().unwrap_or(""));
            }
            Some(Err(Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed)) => {
                tracing::warn!(target: "semel::kafka", topic, "cannot see whether the position topic is compacted");
                return Ok(());
            }
            // Just made: not every broker knows it yet.
            Some(Ok(None) | Err(Code::UnknownTopicOrPartition)) if Instant::now() < until => {
                tokio::time::sleep(STABLE_PAUSE).await;
            }
            Some(Err(code)) => return Err(failed("looked at", code)),
            Some(Ok(None)) | None => return Err(failed("looked at", &"no answer")),
        }
    }
}

fn keeps_what_it_is_given(topic: &str, policy: &str) -> Result<(), SinkError> {
    if policy.trim() == "compact" {
        return Ok(());
    }
    Err(SinkError::not_published(format!(
        "the position topic {topic} has cleanup.policy={policy:?} and would forget the position: set it to compact, or \
         name another topic"
    )))
}

/// The last committed position of that id. Only after the fence is it the last for good.
pub(super) fn read(options: &KafkaOptions, id: &str, until: Instant) -> Result<Option<Vec<u8>>, SinkError> {
    let topic = options.positions.as_str();
    let failed = |error: KafkaError| {
        SinkError::not_published(format!("the position could not be read back from {topic}: {error}"))
    };
    let all = consumer(options, "read_uncommitted").map_err(failed)?;
    let committed = consumer(options, "read_committed").map_err(failed)?;
    only_one_partition(&all, topic, until)?;
    // Readers of committed data stop at the first open transaction, also one of another relay's that began before our
    // last commit. Its end is waited for: what we look for may lie behind it.
    let (first, end) = all.fetch_watermarks(topic, 0, left(until)).map_err(failed)?;
    let mut reached = 0;
    while reached < end {
        match committed.fetch_watermarks(topic, 0, left(until)) {
            Ok((_, stable)) => reached = stable,
            Err(error) if reached == 0 => return Err(failed(error)),
            // Asked once too often at the end of the time.
            Err(_) => {}
        }
        if reached < end && Instant::now() >= until {
            return Err(SinkError::not_published(format!(
                "the position topic {topic} has an open transaction of another relay's; this one goes on when it has \
                 ended. One that a killed broker left behind does not end by itself: `kafka-transactions.sh \
                 describe-producers` names it, `abort` ends it"
            )));
        }
        if reached < end {
            std::thread::sleep(STABLE_PAUSE);
        }
    }
    let mut tail = TAIL;
    loop {
        let from = end.saturating_sub(tail).max(first);
        let found = last(&committed, topic, id, from, until).map_err(failed)?;
        if found.is_some() || from <= first {
            return Ok(found);
        }
        tail = tail.saturating_mul(8);
    }
}

fn consumer(options: &KafkaOptions, isolation: &str) -> Result<BaseConsumer, KafkaError> {
    let mut config: ClientConfig = options.client();
    config.set("isolation.level", isolation);
    // A name is asked for; nothing is ever committed under it.
    config.set("group.id", "semel-positions");
    config.set("enable.auto.commit", "false");
    config.set("enable.partition.eof", "true");
    // The end is told with an answer, and an answer without records is held back that long.
    config.set("fetch.wait.max.ms", "10");
    config.set("allow.auto.create.topics", "false");
    BaseConsumer::from_config(&config)
}

fn only_one_partition(consumer: &BaseConsumer, topic: &str, until: Instant) -> Result<(), SinkError> {
    loop {
        let count = consumer
            .fetch_metadata(Some(topic), left(until))
            .map(|metadata| metadata.topics().first().map_or(0, |topic| topic.partitions().len()));
        match count {
            Ok(1) => return Ok(()),
            // Just made: not every broker knows it yet.
            Ok(0) | Err(_) if Instant::now() < until => std::thread::sleep(STABLE_PAUSE),
            Ok(count) => {
                return Err(SinkError::not_published(format!(
                    "the position topic {topic} has {count} partitions and must have one: name another topic"
                )));
            }
            Err(error) => {
                return Err(SinkError::not_published(format!(
                    "the position topic {topic} is not known: {error}"
                )));
            }
        }
    }
}

/// The last value under that key, from there to the end of what is committed.
fn last(
    consumer: &BaseConsumer,
    topic: &str,
    key: &str,
    from: i64,
    until: Instant,
) -> Result<Option<Vec<u8>>, KafkaError> {
    let mut place = TopicPartitionList::new();
    place.add_partition_offset(topic, 0, Offset::Offset(from))?;
    consumer.assign(&place)?;
    let mut found = None;
    loop {
        match consumer.poll(POLL) {
            Some(Ok(message)) => {
                if message.key() == Some(key.as_bytes()) {
                    found = message.payload().map(<[u8]>::to_vec);
                }
            }
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(found),
            Some(Err(error)) if Instant::now() >= until => return Err(error),
            None if Instant::now() >= until => {
                return Err(KafkaError::MessageConsumption(Code::OperationTimedOut));
            }
            // librdkafka tells of troubles that it goes on to mend.
            Some(Err(_)) | None => {}
        }
    }
}
