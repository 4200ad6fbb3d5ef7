//! A topic of three partitions and a group.

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::SOON;

const PARTITIONS: i32 = 3;

pub struct Kafka {
    brokers: String,
    topic: String,
    producer: FutureProducer,
}

impl Kafka {
    pub async fn new(brokers: &str, topic: &str) -> Self {
        let config = || {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", brokers).set("enable.idempotence", "true");
            config
        };
        let admin: AdminClient<DefaultClientContext> = config().create().unwrap();
        let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1)).set("retention.ms", "3600000");
        admin.create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        let producer = config().create().unwrap();
        Self { brokers: brokers.to_owned(), topic: topic.to_owned(), producer }
    }

    pub async fn publish(&self, sent: &[(String, usize)]) {
        let reports: Vec<_> = sent.iter().map(|(key, n)| self.send(key, *n)).collect();
        for report in reports {
            report.await.unwrap().unwrap();
        }
    }

    fn send(&self, key: &str, n: usize) -> DeliveryFuture {
        let (id, payload) = (format!("{key}/{n}"), n.to_string());
        let headers = OwnedHeaders::new().insert(Header { key: "semel-id", value: Some(&id) });
        let record = FutureRecord::to(&self.topic).key(key).payload(&payload).headers(headers);
        self.producer.send_result(record).map_err(|(error, _)| error).unwrap()
    }

    pub fn behind(&self) -> i64 {
        let group: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &self.brokers)
            .set("group.id", &self.topic)
            .create()
            .unwrap();
        let mut parts = TopicPartitionList::new();
        parts.add_partition_range(&self.topic, 0, PARTITIONS - 1);
        let committed = group.committed_offsets(parts, SOON).unwrap();
        let behind = committed.elements().into_iter().map(|part| {
            let (low, high) = group.fetch_watermarks(&self.topic, part.partition(), SOON).unwrap();
            match part.offset() {
                Offset::Offset(offset) => high - offset,
                _ => high - low,
            }
        });
        behind.sum()
    }
}
