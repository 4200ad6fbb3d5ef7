//! A topic, queue or stream, its consumers, a table of effects, and who judges it.

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant};

use semel::inbox;
use semel::tx::driver::Dialect;
use testkit::child::Child;
use testkit::services::{Lease, Service, require};

use crate::broker::Broker;
use crate::{SOON, unique};

const KEYS: usize = 20;
const EFFECT: &str =
    "CREATE TABLE effect (seq bigserial PRIMARY KEY, id text NOT NULL, key text, n integer NOT NULL);";

pub struct Scene {
    pub brokers: String,
    pub topic: String,
    url: String,
    broker: Broker,
    database: tokio_postgres::Client,
    /// Of each key, how many messages were published.
    published: HashMap<String, usize>,
    _database: Lease,
}

impl Scene {
    /// `None` when the run goes without PostgreSQL.
    pub async fn new(brokers: &str) -> Option<Self> {
        Self::of(brokers, "").await
    }

    /// With a queue of a kind, where the broker has kinds.
    pub async fn of(brokers: &str, kind: &str) -> Option<Self> {
        let lease = require(Service::Postgres)?;
        let topic = unique("sources");
        let broker = Broker::new(brokers, &topic, kind).await;
        let (database, connection) =
            tokio_postgres::connect(lease.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let tables = inbox::schema(Dialect::Postgres);
        let schema = format!("CREATE SCHEMA {topic}; SET search_path = {topic}; {tables}; {EFFECT}");
        database.batch_execute(&schema).await.unwrap();
        Some(Self {
            brokers: brokers.to_owned(),
            url: lease.url().to_owned(),
            broker,
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
        self.broker.publish(&sent).await;
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

    fn expected(&self) -> usize {
        self.published.values().sum()
    }

    /// Waits until there are so many effects, as long as they become more.
    pub async fn reach(&self, effects: usize) {
        let (mut so_far, mut until) = (0, Instant::now() + SOON);
        while so_far < effects {
            let now = self.effects().await;
            if now > so_far {
                (so_far, until) = (now, Instant::now() + SOON);
            }
            assert!(Instant::now() < until, "{so_far} of {effects} effects");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until everything that was published has an effect.
    pub async fn reach_all(&self) {
        self.reach(self.expected()).await;
    }

    /// Messages, repeated ones included, that the broker was not told to be done.
    pub async fn behind(&self) -> i64 {
        self.broker.behind().await
    }

    /// Waits until the broker was told of all but so many.
    pub async fn behind_at_most(&self, messages: i64) {
        let until = Instant::now() + SOON;
        while self.behind().await > messages {
            assert!(Instant::now() < until, "{} messages are not done", self.behind().await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Works until everything has its effect and the broker was told so, asked when nobody holds anything.
    pub async fn finish(&self, mut worker: Child, member: &str) {
        let until = Instant::now() + SOON;
        self.reach_all().await;
        loop {
            self.behind_at_most(0).await;
            stop(worker);
            let behind = self.behind().await;
            if behind == 0 {
                return;
            }
            assert!(Instant::now() < until, "{behind} messages are not done");
            worker = self.worker("right", member, None);
        }
    }

    /// What is wrong with the effects: each message once, and those of a key in order.
    pub async fn judge(&self) -> Vec<String> {
        self.judge_by(|_| ()).await
    }

    /// What is wrong with the effects: each message once, where the broker promises no order.
    pub async fn judge_without_order(&self) -> Vec<String> {
        self.judge_by(|seen| seen.sort_unstable()).await
    }

    async fn judge_by(&self, arrange: fn(&mut Vec<usize>)) -> Vec<String> {
        let rows = self.database.query("SELECT key, n FROM effect ORDER BY seq", &[]).await.unwrap();
        let mut seen: HashMap<String, Vec<usize>> = HashMap::new();
        for row in rows {
            let n = usize::try_from(row.get::<_, i32>(1)).unwrap();
            seen.entry(row.get(0)).or_default().push(n);
        }
        let wrong = self.published.iter().filter_map(|(key, count)| {
            let mut seen = seen.get(key).cloned().unwrap_or_default();
            arrange(&mut seen);
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
