//! Kafka: a topic and a group of its name, for scenes and for the laws of all sources.

use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use semel::conformance::source::{Abilities, Lease, Sent, SourceHarness};
use semel::source::kafka::KafkaSource;
use testkit::services;

use crate::sources::scene::Broker;
use crate::sources::{SOON, unique};

/// For one question; it is asked again.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Kafka {
    pub brokers: String,
    pub topic: String,
    partitions: i32,
    producer: FutureProducer,
}

/// A key, headers and a payload.
type Plain<'a> = (Option<&'a str>, &'a [(&'a str, &'a str)], Bytes);

impl Kafka {
    async fn make_with(brokers: &str, topic: &str, partitions: i32) -> Self {
        let admin: AdminClient<DefaultClientContext> = config(brokers).create().unwrap();
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1)).set("retention.ms", "3600000");
        admin.create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        Self::at(brokers, topic, partitions)
    }

    fn at(brokers: &str, topic: &str, partitions: i32) -> Self {
        let producer = config(brokers).create().unwrap();
        Self { brokers: brokers.to_owned(), topic: topic.to_owned(), partitions, producer }
    }

    async fn send(&self, messages: &[Plain<'_>]) {
        let mut reports = Vec::new();
        for (key, headers, payload) in messages {
            let mut all = OwnedHeaders::new();
            for (name, text) in *headers {
                all = all.insert(Header { key: name, value: Some(*text) });
            }
            let mut record = FutureRecord::to(&self.topic).payload(payload.as_ref()).headers(all);
            if let Some(key) = key {
                record = record.key(*key);
            }
            reports.push(self.producer.send_result(record).map_err(|(error, _)| error).unwrap());
        }
        for report in reports {
            report.await.unwrap().map_err(|(error, _)| error).unwrap();
        }
    }
}

fn config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("enable.idempotence", "true");
    config
}

impl Broker for Kafka {
    const NAME: &'static str = "kafka";

    async fn make(url: &str, topic: &str) -> Self {
        Self::make_with(url, topic, 3).await
    }

    async fn publish(&self, messages: &[(String, usize)]) {
        let ids: Vec<(String, String)> =
            messages.iter().map(|(key, n)| (format!("{key}/{n}"), n.to_string())).collect();
        let headers: Vec<_> = ids.iter().map(|(id, _)| [("semel-id", id.as_str())]).collect();
        let all: Vec<_> = (0..messages.len())
            .map(|at| (Some(messages[at].0.as_str()), &headers[at][..], Bytes::from(ids[at].1.clone())))
            .collect();
        self.send(&all).await;
    }

    /// A broker that is back, or a topic that is new: not everybody knows it yet.
    async fn behind(&self) -> usize {
        let until = Instant::now() + SOON;
        loop {
            match self.try_behind() {
                Ok(behind) => return behind,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

impl Kafka {
    fn try_behind(&self) -> KafkaResult<usize> {
        let group: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &self.brokers)
            .set("group.id", &self.topic)
            .create()?;
        let mut parts = TopicPartitionList::new();
        parts.add_partition_range(&self.topic, 0, self.partitions - 1);
        let committed = group.committed_offsets(parts, PATIENCE)?;
        let mut behind = 0;
        for part in committed.elements() {
            let (low, high) = group.fetch_watermarks(&self.topic, part.partition(), PATIENCE)?;
            behind += match part.offset() {
                Offset::Offset(offset) => high - offset,
                _ => high - low,
            };
        }
        Ok(usize::try_from(behind).unwrap())
    }
}

/// The broker, for the laws: topics with one partition.
struct Law(services::Lease);

impl SourceHarness for Law {
    type Source = KafkaSource;

    async fn queue(&self, lease: Lease) -> String {
        let name = unique(if lease == Lease::Long { "long" } else { "short" });
        Kafka::make_with(self.0.url(), &name, 1).await;
        name
    }

    async fn publish(&self, queue: &str, messages: &[Sent]) {
        let kafka = Kafka::at(self.0.url(), queue, 1);
        for message in messages {
            let headers: Vec<_> =
                message.headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
            kafka.send(&[(message.key.as_deref(), &headers, message.payload.clone())]).await;
        }
    }

    async fn source(&self, queue: &str) -> KafkaSource {
        let options = KafkaSource::options(self.0.url(), queue).topics(&[queue]);
        let options = options.session(SHORT).set("heartbeat.interval.ms", "300").unwrap();
        let poll = if queue.starts_with("short") { SHORT } else { Duration::from_secs(120) };
        options.max_poll_interval(poll).open().unwrap()
    }

    async fn left(&self, queue: &str) -> Option<usize> {
        Some(Kafka::at(self.0.url(), queue, 1).behind().await)
    }

    fn abilities(&self) -> Abilities {
        Abilities { one_by_one: false, counts: false, lease: Some(SHORT), ..Abilities::default() }
    }
}

/// The shortest that the broker takes.
const SHORT: Duration = Duration::from_secs(6);

mod laws {
    semel::source_conformance!(testkit::services::require(testkit::services::Service::Kafka).map(super::Law));
}
