//! A topic, a group, a table of effects, and who judges it.

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use semel::inbox;
use semel::inbox::dead::InboxTables;
use semel::tx::driver::Dialect;
use testkit::child::Child;
use testkit::services::{Lease, Service, require};

use crate::SOON;

const PARTITIONS: i32 = 3;
const KEYS: usize = 20;
const EFFECT: &str =
    "CREATE TABLE effect (seq bigserial PRIMARY KEY, id text NOT NULL, key text, n integer NOT NULL);";

pub struct Scene {
    pub brokers: String,
    pub topic: String,
    url: String,
    producer: FutureProducer,
    database: tokio_postgres::Client,
    /// Of each key, how many messages were published.
    published: HashMap<String, usize>,
    _database: Lease,
}

impl Scene {
    /// `None` when the run goes without PostgreSQL.
    pub async fn new(brokers: &str) -> Option<Self> {
        let lease = require(Service::Postgres)?;
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let topic = format!("sources_{}_{nanos}", std::process::id());
        let config = || {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", brokers).set("enable.idempotence", "true");
            config
        };
        let admin: AdminClient<DefaultClientContext> = config().create().unwrap();
        let new =
            NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(1)).set("retention.ms", "3600000");
        admin.create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        let (database, connection) =
            tokio_postgres::connect(lease.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let tables = inbox::schema(Dialect::Postgres);
        let schema = format!("CREATE SCHEMA {topic}; SET search_path = {topic}; {tables}; {EFFECT}");
        database.batch_execute(&schema).await.unwrap();
        Some(Self {
            brokers: brokers.to_owned(),
            url: lease.url().to_owned(),
            producer: config().create().unwrap(),
            database,
            published: HashMap::new(),
            topic,
            _database: lease,
        })
    }

    /// Publishes so many messages over all keys, and each third one twice, the second time behind others.
    pub async fn publish(&mut self, messages: usize) {
        let mut sent = Vec::new();
        let mut again: Option<(String, usize)> = None;
        for at in 0..messages {
            let key = format!("key-{}", at % KEYS);
            let n = self.published.entry(key.clone()).or_default();
            *n += 1;
            sent.push((key.clone(), *n));
            if at % 3 == 0 {
                sent.extend(again.replace((key, *n)));
            }
        }
        sent.extend(again);
        let reports: Vec<_> = sent.iter().map(|(key, n)| self.send(key, *n)).collect();
        for report in reports {
            report.await.unwrap().unwrap();
        }
    }

    fn send(&self, key: &str, n: usize) -> rdkafka::producer::DeliveryFuture {
        let (id, payload) = (format!("{key}/{n}"), n.to_string());
        let headers = OwnedHeaders::new().insert(Header { key: "semel-id", value: Some(&id) });
        let record = FutureRecord::to(&self.topic).key(key).payload(&payload).headers(headers);
        self.producer.send_result(record).map_err(|(error, _)| error).unwrap()
    }

    pub fn worker(&self, how: &str, member: &str, crash_at: Option<&str>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_consume_worker"));
        let (brokers, topic) = (&self.brokers, &self.topic);
        command.args([brokers, topic, topic, &self.url, topic, how, member]);
        Child::spawn(command, crash_at).unwrap()
    }

    pub async fn effects(&self) -> usize {
        let row = self.database.query_one("SELECT count(*) FROM effect", &[]).await.unwrap();
        usize::try_from(row.get::<_, i64>(0)).unwrap()
    }

    /// The inbox that the workers have.
    pub async fn tables(&self) -> InboxTables {
        InboxTables::open(&format!("{}?schema={}", self.url, self.topic)).await.unwrap()
    }

    /// The ids of all letters.
    pub async fn letters(&self) -> Vec<String> {
        let rows =
            self.database.query("SELECT source, message_id FROM semel_inbox_dead ORDER BY n", &[]).await;
        let id = |row: &tokio_postgres::Row| row.get::<_, Option<String>>(1).unwrap_or_else(|| row.get(0));
        rows.unwrap().iter().map(id).collect()
    }

    /// The ids of all effects.
    pub async fn ids(&self) -> Vec<String> {
        let rows = self.database.query("SELECT id FROM effect ORDER BY seq", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub fn expected(&self) -> usize {
        self.published.values().sum()
    }

    /// Waits until there are so many effects.
    pub async fn reach(&self, effects: usize) {
        let until = Instant::now() + SOON;
        while self.effects().await < effects {
            assert!(Instant::now() < until, "{} of {effects} effects", self.effects().await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until everything that was published has an effect.
    pub async fn reach_all(&self) {
        self.reach(self.expected()).await;
    }

    /// Messages, repeated ones included, that the group has not told the broker to be done with.
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

    /// Waits until the group is so far.
    pub async fn behind_at_most(&self, messages: i64) {
        let until = Instant::now() + SOON;
        while self.behind() > messages {
            assert!(Instant::now() < until, "{} messages are not committed", self.behind());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What is wrong with the effects: each message once, and those of a key in order.
    pub async fn judge(&self) -> Vec<String> {
        let rows = self.database.query("SELECT key, n FROM effect ORDER BY seq", &[]).await.unwrap();
        let mut seen: HashMap<String, Vec<usize>> = HashMap::new();
        for row in rows {
            let n = usize::try_from(row.get::<_, i32>(1)).unwrap();
            seen.entry(row.get(0)).or_default().push(n);
        }
        let wrong = self.published.iter().filter_map(|(key, count)| {
            let seen = seen.get(key).cloned().unwrap_or_default();
            let right: Vec<usize> = (1..=*count).collect();
            (seen != right).then(|| format!("{key} of {count} has {seen:?}"))
        });
        wrong.collect()
    }

    pub async fn end(self) {
        self.database.batch_execute(&format!("DROP SCHEMA {} CASCADE", self.topic)).await.unwrap();
    }
}

/// Stops a worker in order.
pub fn stop(mut worker: Child) {
    worker.terminate().unwrap();
    let ended = worker.wait(SOON).unwrap();
    assert!(ended.status.success(), "{ended:?}");
}
