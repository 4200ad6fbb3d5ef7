//! The relay's position in a compacted topic: creates, checks and reads it.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::FromClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use super::options::KafkaOptions;
use crate::broker::kafka::transaction_steps::left;
use crate::sink::SinkError;

/// How far from the end reading begins. A relay's last position is among the last records unless many relays share the
/// topic; then it goes back eight times as far each time.
const TAIL: i64 = 1_000;
/// Pause before checking again.
const STABLE_PAUSE: Duration = Duration::from_millis(50);
const POLL: Duration = Duration::from_millis(200);

/// Creates the topic if it does not exist, and checks that it is compacted.
pub(super) async fn ensure(options: &KafkaOptions) -> Result<(), SinkError> {
    let topic = options.positions.as_str();
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        SinkError::not_published(format!("could not {what} the position topic {topic}: {error}"))
    };
    let mut config = options.client();
    // Inspecting the topic must not create it with the wrong settings.
    config.set("allow.auto.create.topics", "false");
    let admin: AdminClient<DefaultClientContext> =
        AdminClient::from_config(&config).map_err(|error| failed("create", &error))?;
    let bounded = AdminOptions::new()
        .request_timeout(Some(options.timeout))
        .operation_timeout(Some(options.timeout / 2));
    // Small segments, because only closed ones are compacted.
    let wanted = NewTopic::new(topic, 1, TopicReplication::Fixed(-1))
        .set("cleanup.policy", "compact")
        .set("segment.bytes", "16777216")
        .set("segment.ms", "3600000")
        .set("min.cleanable.dirty.ratio", "0.1");
    match admin.create_topics([&wanted], &bounded).await.map_err(|error| failed("create", &error))?.first() {
        // Not permitted to create it, but it may exist: describing it shows.
        None | Some(Ok(_) | Err((_, Code::TopicAlreadyExists | Code::TopicAuthorizationFailed))) => {}
        Some(Err((_, Code::ClusterAuthorizationFailed))) => {}
        Some(Err((_, code))) => return Err(failed("create", code)),
    }
    let until = Instant::now() + options.timeout;
    loop {
        let described = admin
            .describe_configs([&ResourceSpecifier::Topic(topic)], &bounded)
            .await
            .map_err(|error| failed("inspect", &error))?;
        let found = described.first().map(|found| found.as_ref().map(|found| found.get("cleanup.policy")));
        match found {
            Some(Ok(Some(entry))) => {
                return check_compacted(topic, entry.value.as_deref().unwrap_or(""));
            }
            Some(Err(Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed)) => {
                tracing::warn!(
                    target: "semel::kafka",
                    topic,
                    "not permitted to check whether the position topic is compacted; make sure that it is"
                );
                return Ok(());
            }
            // Just created: not every broker knows it yet.
            Some(Ok(None) | Err(Code::UnknownTopicOrPartition)) if Instant::now() < until => {
                tokio::time::sleep(STABLE_PAUSE).await;
            }
            Some(Err(code)) => return Err(failed("inspect", code)),
            Some(Ok(None)) | None => return Err(failed("inspect", &"no answer")),
        }
    }
}

fn check_compacted(topic: &str, policy: &str) -> Result<(), SinkError> {
    if policy.trim() == "compact" {
        return Ok(());
    }
    Err(SinkError::not_published(format!(
        "the position topic {topic} has cleanup.policy={policy:?} and would lose the position: set it to compact, or \
         use another topic"
    )))
}

/// Reads the last committed position of this id. Only final after fencing.
pub(super) fn read(options: &KafkaOptions, id: &str, until: Instant) -> Result<Option<Vec<u8>>, SinkError> {
    let topic = options.positions.as_str();
    let failed = |error: KafkaError| {
        SinkError::not_published(format!("could not read the position from {topic}: {error}"))
    };
    let all = consumer(options, "read_uncommitted").map_err(failed)?;
    let committed = consumer(options, "read_committed").map_err(failed)?;
    only_one_partition(&all, topic, until)?;
    // Readers of committed data stop at the first open transaction, also at one of another relay that began before our
    // last commit. Wait for its end: our position may lie behind it.
    let (first, end) = all.fetch_watermarks(topic, 0, left(until)).map_err(failed)?;
    let mut reached = 0;
    while reached < end {
        match committed.fetch_watermarks(topic, 0, left(until)) {
            Ok((_, stable)) => reached = stable,
            Err(error) if reached == 0 => return Err(failed(error)),
            // Too little time was left for this request.
            Err(_) => {}
        }
        if reached < end && Instant::now() >= until {
            return Err(SinkError::not_published(format!(
                "the position topic {topic} has an open transaction of another relay; this relay continues when it has \
                 ended. One left behind by a killed broker does not end by itself: find it with `kafka-transactions.sh \
                 describe-producers`, and end it with `abort`"
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
    // librdkafka requires a group; nothing is ever committed under it.
    config.set("group.id", "semel-positions");
    config.set("enable.auto.commit", "false");
    config.set("enable.partition.eof", "true");
    // The end of the partition comes with a response, and the broker delays an empty response this long.
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
            // Just created: not every broker knows it yet.
            Ok(0) | Err(_) if Instant::now() < until => std::thread::sleep(STABLE_PAUSE),
            Ok(count) => {
                return Err(SinkError::not_published(format!(
                    "the position topic {topic} has {count} partitions but must have one: use another topic"
                )));
            }
            Err(error) => {
                return Err(SinkError::not_published(format!(
                    "could not read the metadata of the position topic {topic}: {error}"
                )));
            }
        }
    }
}

/// The last value of this key, from that offset to the end of the committed records.
fn last(
    consumer: &BaseConsumer,
    topic: &str,
    key: &str,
    from: i64,
    until: Instant,
) -> Result<Option<Vec<u8>>, KafkaError> {
    let mut start = TopicPartitionList::new();
    start.add_partition_offset(topic, 0, Offset::Offset(from))?;
    consumer.assign(&start)?;
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
            // librdkafka also reports errors that it recovers from by itself.
            Some(Err(_)) | None => {}
        }
    }
}
