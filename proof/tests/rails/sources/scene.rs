//! A queue, a group, a table of effects, and who judges it, whatever the broker.

use std::collections::HashMap;
use std::future::Future;
use std::process::Command;
use std::time::{Duration, Instant};

use semel::inbox;
use semel::inbox::dead_letter::DeadLetterStore;
use semel::tx::driver::Dialect;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Row};
use testkit::child::Child;
use testkit::services::{Lease, Service, require};

use crate::sources::{SOON, unique};

const KEYS: usize = 20;
const EFFECT: &str =
    "CREATE TABLE effect (seq bigserial PRIMARY KEY, id text NOT NULL, key text, n integer NOT NULL);";

/// A queue at a broker, and its group.
pub trait Broker: Sized + Sync {
    /// What the worker knows it by.
    const NAME: &'static str;

    /// A new queue, which has this name.
    fn make(url: &str, name: &str) -> impl Future<Output = Self> + Send;

    /// Publishes messages, each the `n`th of its key: `key/n` is its id and `n` its payload.
    fn publish(&self, messages: &[(String, usize)]) -> impl Future<Output = ()> + Send;

    /// Messages, repeated ones included, that the group has not acked.
    fn behind(&self) -> impl Future<Output = usize> + Send;
}

pub struct Scene<B> {
    pub broker: B,
    /// The queue, its group, and the schema.
    pub name: String,
    broker_url: String,
    url: String,
    database: PgPool,
    /// Of each key, how many messages were published.
    published: HashMap<String, usize>,
    /// How many of them once more.
    pub twice: usize,
    _database: Option<Lease>,
}

impl<B: Broker> Scene<B> {
    /// `None` when the run goes without PostgreSQL.
    pub async fn new(broker_url: &str) -> Option<Self> {
        let lease = require(Service::Postgres)?;
        let scene = Self::over(broker_url, lease.url()).await;
        Some(Self { _database: Some(lease), ..scene })
    }

    /// With a database that somebody else looks after.
    pub async fn over(broker_url: &str, url: &str) -> Self {
        let name = unique("sources");
        let broker = B::make(broker_url, &name).await;
        let options: PgConnectOptions = url.parse().unwrap();
        let database = PgPoolOptions::new()
            .max_connections(2)
            .connect_with(options.options([("search_path", &name)]))
            .await
            .unwrap();
        let schema = format!("CREATE SCHEMA {name}; {}; {EFFECT}", inbox::schema(Dialect::Postgres));
        sqlx::raw_sql(AssertSqlSafe(schema)).execute(&database).await.unwrap();
        Self {
            broker,
            name,
            broker_url: broker_url.to_owned(),
            url: url.to_owned(),
            database,
            published: HashMap::new(),
            twice: 0,
            _database: None,
        }
    }

    /// Publishes so many messages over all keys, and each third one twice, the second time behind others.
    pub async fn publish(&mut self, messages: usize) {
        let sent = self.next(messages);
        self.broker.publish(&sent).await;
    }

    /// What is to be published then.
    pub fn next(&mut self, messages: usize) -> Vec<(String, usize)> {
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
        self.twice += sent.len() - messages;
        sent
    }

    /// A consumer as a process. `member` is a name among those of the group, or `-`.
    pub fn worker(&self, how: &str, member: &str, crash_at: Option<&str>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proof-worker"));
        command.arg("consume");
        command.args([B::NAME, &self.broker_url, &self.name, &self.url, &self.name, how, member]);
        Child::spawn(command, crash_at).unwrap()
    }

    pub async fn effects(&self) -> usize {
        let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM effect").fetch_one(&self.database);
        usize::try_from(count.await.unwrap()).unwrap()
    }

    /// The inbox that the workers have.
    pub async fn tables(&self) -> DeadLetterStore {
        DeadLetterStore::open(&format!("{}?schema={}", self.url, self.name)).await.unwrap()
    }

    /// The ids of all letters.
    pub async fn letters(&self) -> Vec<String> {
        let look = "SELECT coalesce(message_id, source) FROM semel_inbox_dead ORDER BY n";
        sqlx::query_scalar(look).fetch_all(&self.database).await.unwrap()
    }

    /// The ids of all effects.
    pub async fn ids(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT id FROM effect ORDER BY seq").fetch_all(&self.database).await.unwrap()
    }

    pub fn expected(&self) -> usize {
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

    /// Messages, repeated ones included, that the group has not acked.
    pub async fn behind(&self) -> usize {
        self.broker.behind().await
    }

    /// Waits until the group is so far.
    pub async fn behind_at_most(&self, messages: usize) {
        let until = Instant::now() + SOON;
        while self.behind().await > messages {
            assert!(Instant::now() < until, "{} messages are not acknowledged", self.behind().await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Works until everything has its effect and is acked.
    pub async fn finish(&self, worker: Child, member: &str) {
        self.reach_all().await;
        self.empty(worker, member).await;
    }

    /// Works until everything the broker has is acked, asked when no consumer holds anything.
    pub async fn empty(&self, mut worker: Child, member: &str) {
        let until = Instant::now() + SOON;
        loop {
            self.behind_at_most(0).await;
            stop(worker);
            let behind = self.behind().await;
            if behind == 0 {
                return;
            }
            assert!(Instant::now() < until, "{behind} messages are not acknowledged");
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
        let look = sqlx::query("SELECT key, n FROM effect ORDER BY seq").fetch_all(&self.database);
        let mut seen: HashMap<String, Vec<usize>> = HashMap::new();
        for row in look.await.unwrap() {
            let n = usize::try_from(row.get::<i32, _>(1)).unwrap();
            seen.entry(row.get(0)).or_default().push(n);
        }
        let wrong = self.published.iter().filter_map(|(key, count)| {
            let mut seen = seen.get(key).cloned().unwrap_or_default();
            arrange(&mut seen);
            let at = (0..seen.len().max(*count)).find(|at| seen.get(*at) != Some(&(at + 1)))?;
            let around = &seen[at.saturating_sub(1).min(seen.len())..seen.len().min(at + 4)];
            Some(format!("{key} has {} of {count}, and from its {at}. on {around:?}", seen.len()))
        });
        wrong.collect()
    }

    pub async fn end(self) {
        let drop = format!("DROP SCHEMA {} CASCADE", self.name);
        sqlx::raw_sql(AssertSqlSafe(drop)).execute(&self.database).await.unwrap();
    }
}

/// Stops a worker in order.
pub fn stop(mut worker: Child) {
    worker.terminate().unwrap();
    let ended = worker.wait(SOON).unwrap();
    assert!(ended.status.success(), "{ended:?}");
}
