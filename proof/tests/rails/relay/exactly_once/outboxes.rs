//! The three outboxes behind one face, and the judge.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use semel::relay::poll::mysql::MysqlOutbox;
use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::poll::sqlite::SqliteOutbox;
use semel::relay::{OutboxReader, Parked, Relay, RelayError, RelayOptions, RelayStats, RelayStopHandle};
use semel::sink::ExactlyOnce;
use tempfile::TempDir;
use testkit::services::Service;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::broker::{Broker, Bug};
use crate::relay::mysql_world::World as MysqlWorld;
use crate::relay::world::{Postgres, insert};
use crate::relay::{sqlite, world};

pub const LEASE: Duration = Duration::from_secs(2);

/// An outbox of any kind.
pub trait Outbox: Sized {
    async fn append(&self, events: &[(&str, &str)]);
    fn source(&self) -> impl OutboxReader;
    async fn parked(&self) -> Vec<Parked>;
    async fn retry(&self, key: Option<&str>);
    async fn skip(&self, id: Uuid);
    async fn end(self) {}

    async fn parked_texts(&self) -> Vec<String> {
        let text = |one: &Parked| String::from_utf8(one.event.payload().to_vec()).unwrap();
        self.parked().await.iter().map(text).collect()
    }

    async fn until_parked(&self, events: usize) {
        for _ in 0..2_400 {
            if self.parked().await.len() == events {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{events} events were never parked: {:?}", self.parked_texts().await);
    }

    fn start(&self, broker: &Broker, bug: Bug) -> Running {
        Running::start(self.source(), broker.sink(bug), quick())
    }

    /// A last event, and behind it everything is done: a batch is only published when the one before it is done.
    async fn drained(&self, broker: &Broker) {
        self.append(&[("the-end", "the-end")]).await;
        broker.until("the last event", |state| state.seen.iter().any(|(_, text, _)| text == "the-end")).await;
        broker.state().seen.retain(|(_, text, _)| text != "the-end");
    }
}

pub fn quick() -> RelayOptions {
    world::quick()
}

/// A relay that runs beside the test.
pub struct Running {
    pub task: JoinHandle<Result<RelayStats, RelayError>>,
    pub stop: RelayStopHandle,
}

impl Running {
    pub fn start(source: impl OutboxReader, sink: impl ExactlyOnce, options: RelayOptions) -> Self {
        let relay = Relay::new(source, sink, options);
        let stop = relay.stop_handle();
        Self { task: tokio::spawn(relay.run_exactly_once()), stop }
    }

    pub async fn stop(self) -> RelayStats {
        self.stop.stop();
        self.task.await.unwrap().unwrap()
    }

    /// As a crash would.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// What readers see, against what was appended and is not parked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub lost: Vec<String>,
    pub twice: Vec<String>,
    pub overtaken: usize,
}

impl Verdict {
    pub fn of(appended: &[(String, String)], broker: &Broker, parked: &[String]) -> Self {
        let seen = broker.state().seen.clone();
        let mut verdict = Self::default();
        let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
        for (key, text, _) in &seen {
            *counts.entry((key, text)).or_default() += 1;
        }
        let mut last: HashMap<&str, usize> = HashMap::new();
        let places: HashMap<(&str, &str), usize> = appended
            .iter()
            .enumerate()
            .map(|(at, (key, text))| ((key.as_str(), text.as_str()), at))
            .collect();
        for (key, text, _) in &seen {
            let at = places[&(key.as_str(), text.as_str())];
            if last.insert(key, at).is_some_and(|before| before > at) {
                verdict.overtaken += 1;
            }
        }
        for (key, text) in appended {
            let published = counts.get(&(key.as_str(), text.as_str())).copied().unwrap_or(0);
            // Parked and seen is once too often as well.
            match published + usize::from(parked.contains(text)) {
                0 => verdict.lost.push(text.clone()),
                1 => {}
                _ => verdict.twice.push(text.clone()),
            }
        }
        verdict
    }
}

pub async fn verdict(outbox: &impl Outbox, broker: &Broker, appended: &[(&str, &str)]) -> Verdict {
    let appended: Vec<_> =
        appended.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
    Verdict::of(&appended, broker, &outbox.parked_texts().await)
}

pub struct InSqlite {
    pub path: PathBuf,
    pub outbox: SqliteOutbox,
    _directory: TempDir,
}

impl InSqlite {
    pub fn new() -> Self {
        let (directory, path, outbox) = sqlite::file();
        Self {
            path,
            outbox: outbox.lease(LEASE).retry_after(Duration::from_secs(600)),
            _directory: directory,
        }
    }
}

impl Outbox for InSqlite {
    async fn append(&self, events: &[(&str, &str)]) {
        sqlite::append(&self.path, events);
    }
    fn source(&self) -> impl OutboxReader {
        self.outbox.source()
    }
    async fn parked(&self) -> Vec<Parked> {
        self.outbox.parked(None, 1_000).await.unwrap()
    }
    async fn retry(&self, key: Option<&str>) {
        self.outbox.retry(key).await.unwrap();
    }
    async fn skip(&self, id: Uuid) {
        assert!(self.outbox.skip(id).await.unwrap());
    }
}

pub struct InPostgres {
    pub world: Postgres,
    pub outbox: PostgresOutbox,
}

impl InPostgres {
    pub async fn new() -> Option<Self> {
        Self::leased(LEASE).await
    }

    pub async fn leased(lease: Duration) -> Option<Self> {
        let world = Postgres::new().await?;
        let options = world.options().lease(lease).retry_after(Duration::from_secs(600));
        let outbox = options.open().await.unwrap();
        Some(Self { world, outbox })
    }
}

impl Outbox for InPostgres {
    async fn append(&self, events: &[(&str, &str)]) {
        let client = self.world.connect().await;
        for (key, text) in events {
            client.batch_execute(&insert(key, text)).await.unwrap();
        }
    }
    fn source(&self) -> impl OutboxReader {
        self.outbox.source()
    }
    async fn parked(&self) -> Vec<Parked> {
        self.outbox.parked(None, 1_000).await.unwrap()
    }
    async fn retry(&self, key: Option<&str>) {
        self.outbox.retry(key).await.unwrap();
    }
    async fn skip(&self, id: Uuid) {
        assert!(self.outbox.skip(id).await.unwrap());
    }
    async fn end(self) {
        self.world.end().await;
    }
}

pub struct InMysql {
    world: MysqlWorld,
    outbox: MysqlOutbox,
}

impl InMysql {
    pub async fn new(server: Service) -> Option<Self> {
        let world = MysqlWorld::new(server).await?;
        let outbox = world.outbox.clone().lease(LEASE).retry_after(Duration::from_secs(600));
        Some(Self { world, outbox })
    }
}

impl Outbox for InMysql {
    async fn append(&self, events: &[(&str, &str)]) {
        self.world.append(events).await;
    }
    fn source(&self) -> impl OutboxReader {
        self.outbox.source()
    }
    async fn parked(&self) -> Vec<Parked> {
        self.outbox.parked(None, 1_000).await.unwrap()
    }
    async fn retry(&self, key: Option<&str>) {
        self.outbox.retry(key).await.unwrap();
    }
    async fn skip(&self, id: Uuid) {
        assert!(self.outbox.skip(id).await.unwrap());
    }
    async fn end(self) {
        self.world.end().await;
    }
}
