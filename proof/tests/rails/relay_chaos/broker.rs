//! Topics, who follows them while a test waits, and the stranger whose reading is judged.

use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Headers;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use testkit::services::kafka::console_consumer_shown;

use crate::relay_chaos::SOON;
use crate::relay_chaos::judge::Counted;

const PARTITIONS: i32 = 4;

/// A new topic.
pub async fn topic(bootstrap: &str) -> String {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let name = format!("chaos-{}-{nanos}", std::process::id());
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
    let topic = NewTopic::new(&name, PARTITIONS, TopicReplication::Fixed(1));
    admin.create_topics([&topic], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    name
}

/// Reads along, to know when everything has come. What it reads is not judged.
pub struct Follower {
    consumer: BaseConsumer,
    topic: String,
    seen: HashSet<String>,
}

impl Follower {
    pub fn new(bootstrap: &str, topic: &str) -> Self {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", bootstrap)
            .set("group.id", topic)
            .set("isolation.level", "read_committed")
            .set("enable.auto.commit", "false")
            .create()
            .unwrap();
        let mut all = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            all.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&all).unwrap();
        Self { consumer, topic: topic.to_owned(), seen: HashSet::new() }
    }

    /// How many different events have come so far.
    pub fn count(&mut self) -> usize {
        while self.step(Duration::ZERO) {}
        self.seen.len()
    }

    /// Waits until so many more have come.
    pub fn more(&mut self, events: usize) {
        let (wanted, until) = (self.count() + events, Instant::now() + SOON);
        while self.seen.len() < wanted {
            assert!(Instant::now() < until, "{} of {wanted} events came", self.seen.len());
            self.step(Duration::from_millis(50));
        }
    }

    /// Waits until all of these have come, or nothing new comes any more.
    pub fn all(&mut self, table: &[Counted], quiet: Duration) {
        let mut last = Instant::now();
        loop {
            let before = self.seen.len();
            self.step(Duration::from_millis(50));
            if table.iter().all(|counted| self.seen.contains(&counted.id)) {
                return;
            }
            if self.seen.len() > before {
                last = Instant::now();
            }
            if last.elapsed() > quiet {
                return;
            }
        }
    }

    fn step(&mut self, patience: Duration) -> bool {
        // A broker that is down says so here as well.
        let Some(Ok(message)) = self.consumer.poll(patience) else { return false };
        let id = message.headers().and_then(|headers| {
            headers.iter().find(|header| header.key == "semel-id").and_then(|header| header.value)
        });
        self.seen.insert(String::from_utf8_lossy(id.unwrap_or_default()).into_owned());
        true
    }

    /// What the topic has, in numbers of places.
    fn places(&self) -> usize {
        let ends = (0..PARTITIONS).map(|partition| {
            let (low, high) = self.consumer.fetch_watermarks(&self.topic, partition, SOON).unwrap();
            usize::try_from(high - low).unwrap()
        });
        ends.sum()
    }

    /// What Kafka's own consumer reads of the committed, partition by partition in order.
    pub fn judged(&self, bootstrap: &str) -> Vec<Counted> {
        let places = self.places();
        let until = Instant::now() + SOON;
        // Control records take places too; and on a busy machine it may give up before its first fetch, many times over.
        let mut shown = loop {
            let shown = console_consumer_shown(bootstrap, &self.topic, places.max(1)).unwrap();
            // Repeated ones count once, as among those that were seen.
            let ids =
                shown.iter().filter_map(|record| record.header("semel-id")).collect::<HashSet<_>>().len();
            if ids >= self.seen.len() || Instant::now() >= until {
                break shown;
            }
        };
        shown.sort_by_key(|record| (record.partition, record.offset));
        let counted = shown.iter().map(|record| Counted {
            id: record.header("semel-id").expect("each record has its id").to_owned(),
            key: record.key.clone(),
            n: record.value.parse().expect("each record is a number"),
        });
        counted.collect()
    }
}
