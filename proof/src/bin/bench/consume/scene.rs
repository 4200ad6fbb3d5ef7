//! The Kafka side: a topic of messages that are all there before anything begins, and topics for what is made of them.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::Failed;

pub(super) type Bare = ThreadedProducer<DefaultProducerContext>;

pub(super) const PARTITIONS: i32 = 4;
pub(super) const PAYLOAD_BYTES: usize = 200;
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
const KEYS: u64 = 1_000;

pub(super) struct Scene {
    pub(super) brokers: String,
    pub(super) name: String,
    pub(super) messages: u64,
    admin: AdminClient<DefaultClientContext>,
}

impl Scene {
    pub(super) async fn make(brokers: &str, messages: u64) -> Result<Self, Failed> {
        let admin = client(brokers).create()?;
        let name = format!("semel-bench-eos-{}", uuid::Uuid::now_v7());
        let scene = Self { brokers: brokers.to_owned(), name, messages, admin };
        let input = scene.topic("input").await?;
        let producer: Bare = scene.producer().create()?;
        for n in 0..messages {
            let key = format!("account-{}", n % KEYS);
            send(&producer, &input, key.as_bytes(), &payload(n))?;
        }
        producer.flush(PATIENCE)?;
        Ok(scene)
    }

    pub(super) fn input(&self) -> String {
        self.named("input")
    }

    fn named(&self, which: &str) -> String {
        format!("{}-{which}", self.name)
    }

    /// A new topic of the scene's.
    pub(super) async fn topic(&self, which: &str) -> Result<String, Failed> {
        let topic = self.named(which);
        let new = NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(1));
        let made = self.admin.create_topics([&new], &AdminOptions::new()).await?;
        match made.first() {
            Some(Err((_, code))) => Err(format!("the topic {topic} is not made: {code}").into()),
            _ => Ok(topic),
        }
    }

    pub(super) async fn remove(&self, topic: &str) -> Result<(), Failed> {
        match self.admin.delete_topics(&[topic], &AdminOptions::new()).await?.into_iter().next() {
            Some(Err((_, code))) => Err(format!("the topic {topic} is not removed: {code}").into()),
            _ => Ok(()),
        }
    }

    /// As the pipeline's own, but for the transactions.
    pub(super) fn producer(&self) -> ClientConfig {
        let mut config = client(&self.brokers);
        for (property, value) in [
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("max.in.flight.requests.per.connection", "5"),
            ("partitioner", "murmur2_random"),
            ("linger.ms", "1"),
            ("batch.size", "1000000"),
            ("queue.buffering.max.kbytes", "16384"),
            ("compression.type", "none"),
        ] {
            config.set(property, value);
        }
        config
    }

    /// Somebody who asks how far this group has committed. It does not join it, and gets what is committed also while a
    /// transaction is open; a reader of committed data would have to wait for its end.
    pub(super) fn asks_about(&self, group: &str) -> Result<BaseConsumer, Failed> {
        let mut config = client(&self.brokers);
        Ok(config.set("group.id", group).set("isolation.level", "read_uncommitted").create()?)
    }

    /// How many messages of the input are committed, by offset: each partition's began with 0.
    pub(super) fn committed(&self, asks: &BaseConsumer) -> Result<u64, Failed> {
        let (input, mut all) = (self.input(), TopicPartitionList::new());
        for partition in 0..PARTITIONS {
            all.add_partition(&input, partition);
        }
        let offsets = asks.committed_offsets(all, PATIENCE)?;
        let next = offsets.elements().into_iter().map(|element| match element.offset() {
            Offset::Offset(next) => next.unsigned_abs(),
            _ => 0,
        });
        Ok(next.sum())
    }
}

/// Which message it is comes first, so that a judge can tell.
fn payload(n: u64) -> Vec<u8> {
    let mut payload = n.to_be_bytes().to_vec();
    payload.resize(PAYLOAD_BYTES, b'x');
    payload
}

pub(super) fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

pub(super) fn send(producer: &Bare, topic: &str, key: &[u8], payload: &[u8]) -> Result<(), Failed> {
    let mut record = BaseRecord::to(topic).key(key).payload(payload);
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(Code::QueueFull), back)) => {
                record = back;
                std::thread::sleep(Duration::from_millis(2));
            }
            Err((error, _)) => return Err(error.into()),
        }
    }
}
