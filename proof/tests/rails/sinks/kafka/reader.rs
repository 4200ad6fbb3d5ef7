//! A bare client that reads what the broker has, and makes topics.

use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Headers;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use semel::conformance::sink::ReadMessage;

use crate::sinks::{SOON, unique};

/// A record where it was found.
pub struct Found {
    pub partition: i32,
    pub key: Option<String>,
    pub seen: ReadMessage,
}

impl Found {
    pub fn text(&self) -> String {
        String::from_utf8(self.seen.payload.to_vec()).unwrap()
    }
}

/// A new topic with so many partitions and these settings.
pub async fn topic(bootstrap: &str, name: &str, partitions: i32, settings: &[(&str, &str)]) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
    let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    for (setting, value) in settings {
        topic = topic.set(setting, value);
    }
    let made = admin.create_topics([&topic], &AdminOptions::new()).await.unwrap();
    made[0].as_ref().unwrap();
}

/// Waits until every transaction on the topic has ended. The coordinator answers a commit before the markers are in the
/// partitions. Until then a `read_committed` consumer reports the end of the partition before the last events.
pub fn wait_for_transactions(bootstrap: &str, topic: &str) {
    let asker = |isolation: &str| -> BaseConsumer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap).set("isolation.level", isolation);
        config.create().unwrap()
    };
    let (committed, all) = (asker("read_committed"), asker("read_uncommitted"));
    let metadata = all.fetch_metadata(Some(topic), SOON).unwrap();
    let until = Instant::now() + SOON;
    for partition in metadata.topics()[0].partitions() {
        let end = |asker: &BaseConsumer| asker.fetch_watermarks(topic, partition.id(), SOON).unwrap().1;
        while end(&committed) < end(&all) {
            assert!(Instant::now() < until, "a transaction on {topic} does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Everything in a topic that this isolation may see.
pub fn read(bootstrap: &str, topic: &str, isolation: &str) -> Vec<Found> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", unique("reader"))
        .set("isolation.level", isolation)
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), SOON).unwrap();
    let partitions = metadata.topics()[0].partitions().len();
    let mut all = TopicPartitionList::new();
    for partition in 0..partitions {
        all.add_partition_offset(topic, i32::try_from(partition).unwrap(), Offset::Beginning).unwrap();
    }
    consumer.assign(&all).unwrap();
    let (mut found, mut ended) = (Vec::new(), 0);
    let until = Instant::now() + SOON;
    while ended < partitions {
        assert!(Instant::now() < until, "the end of {topic} was not reached");
        match consumer.poll(Duration::from_millis(500)) {
            Some(Ok(message)) => {
                let headers = message.headers().map_or_else(Vec::new, |headers| {
                    let text = |value: Option<&[u8]>| String::from_utf8(value.unwrap().to_vec()).unwrap();
                    headers.iter().map(|header| (header.key.to_owned(), text(header.value))).collect()
                });
                let pairs = headers.iter().map(|(name, text)| (name.as_str(), text.as_str()));
                found.push(Found {
                    partition: message.partition(),
                    key: message.key().map(|key| String::from_utf8(key.to_vec()).unwrap()),
                    seen: ReadMessage::new(
                        Bytes::copy_from_slice(message.payload().expect("a value")),
                        pairs,
                    ),
                });
            }
            Some(Err(KafkaError::PartitionEOF(_))) => ended += 1,
            Some(Err(error)) => panic!("{topic}: {error}"),
            None => {}
        }
    }
    found
}
