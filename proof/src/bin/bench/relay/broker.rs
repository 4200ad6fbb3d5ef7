//! The Kafka side: a topic that is new for each measurement, and clients with the sink's settings.

use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};

use semel::sink::kafka::{KafkaSink, KafkaTransactions};

use super::place::TOPIC;
use crate::Failed;

/// Where exactly once keeps its positions.
const POSITIONS: &str = "semel-bench-positions";
const PARTITIONS: i32 = 4;
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Broker {
    bootstrap: String,
    admin: AdminClient<DefaultClientContext>,
}

impl Broker {
    pub(super) fn open(bootstrap: &str) -> Result<Self, Failed> {
        let admin = ClientConfig::new().set("bootstrap.servers", bootstrap).create()?;
        Ok(Self { bootstrap: bootstrap.to_owned(), admin })
    }

    pub(super) fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// An empty topic. A topic that was removed is there for a moment longer.
    pub(super) async fn fresh_topic(&self) -> Result<(), Failed> {
        self.remove_topic().await?;
        let until = Instant::now() + PATIENCE;
        loop {
            let topic = NewTopic::new(TOPIC, PARTITIONS, TopicReplication::Fixed(1));
            let made = self.admin.create_topics([&topic], &AdminOptions::new()).await?;
            match made.into_iter().next() {
                Some(Ok(_)) => return Ok(()),
                Some(Err((_, Code::TopicAlreadyExists))) if Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Some(Err((_, code))) => return Err(format!("the topic {TOPIC} is not made: {code}").into()),
                None => return Err("the broker said nothing of the topic".into()),
            }
        }
    }

    pub(super) async fn remove_topic(&self) -> Result<(), Failed> {
        self.remove(TOPIC).await
    }

    /// All that is left there at the end.
    pub(super) async fn remove_all(&self) -> Result<(), Failed> {
        self.remove(POSITIONS).await?;
        self.remove(TOPIC).await
    }

    async fn remove(&self, topic: &str) -> Result<(), Failed> {
        match self.admin.delete_topics(&[topic], &AdminOptions::new()).await?.into_iter().next() {
            Some(Err((_, code))) if code != Code::UnknownTopicOrPartition => {
                Err(format!("the topic {topic} is not removed: {code}").into())
            }
            _ => Ok(()),
        }
    }

    /// A sink that publishes in transactions, under a name of its own: no position of an earlier run is found.
    pub(super) fn transactions(&self) -> Result<KafkaTransactions, Failed> {
        let id = format!("{TOPIC}-{}", uuid::Uuid::now_v7());
        Ok(KafkaSink::options(&self.bootstrap).position_topic(POSITIONS).exactly_once(&id)?)
    }

    /// A producer set up as the sink's own is. See `KafkaOptions`.
    pub(super) fn producer(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (property, value) in [
            ("bootstrap.servers", self.bootstrap.as_str()),
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("enable.gapless.guarantee", "true"),
            ("message.timeout.ms", "0"),
            ("max.in.flight.requests.per.connection", "1"),
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

    /// A reader of all partitions from the beginning.
    pub(super) fn consumer(&self) -> Result<BaseConsumer, Failed> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap).set("group.id", TOPIC);
        config.set("enable.auto.commit", "false").set("fetch.wait.max.ms", "100");
        let consumer: BaseConsumer = config.create()?;
        let mut all = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            all.add_partition_offset(TOPIC, partition, Offset::Beginning)?;
        }
        consumer.assign(&all)?;
        Ok(consumer)
    }

    /// How many records the topic has.
    pub(super) fn records(&self) -> Result<u64, Failed> {
        let consumer: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", &self.bootstrap).set("group.id", TOPIC).create()?;
        let mut records = 0;
        for partition in 0..PARTITIONS {
            let (low, high) = consumer.fetch_watermarks(TOPIC, partition, PATIENCE)?;
            records += u64::try_from(high - low)?;
        }
        Ok(records)
    }
}
