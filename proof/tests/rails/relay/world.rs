//! A corner of its own for each test, and relays in it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use semel::outbox::{self, Event};
use semel::relay::poll::postgres::{PostgresOutbox, PostgresOutboxOptions};
use semel::relay::{Batch, OutboxReader, Relay, RelayError, RelayOptions, RelayStats, RelayStopHandle};
use semel::tx::driver::Dialect;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use testkit::services::{Lease, Service, require};
use tokio::task::JoinHandle;

use crate::relay::sink::TestSink;

/// So long that a busy machine does not have it lost. Who waits for the end of a lease has one of its own.
pub const LEASE: Duration = Duration::from_secs(60);
/// Nothing here takes this long on a machine that works.
const SOON: Duration = Duration::from_secs(120);

static COUNT: AtomicU32 = AtomicU32::new(0);

pub fn corner() -> String {
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("relay_{}_{count}_{:x}", std::process::id(), fastrand::u32(..))
}

pub struct Postgres {
    url: String,
    schema: String,
    _lease: Option<Lease>,
}

impl Postgres {
    /// `None` when the run goes without PostgreSQL.
    pub async fn new() -> Option<Self> {
        let lease = require(Service::Postgres)?;
        Some(Self::at(lease.url().to_owned(), Some(lease)).await)
    }

    /// On a server that the test has alone.
    pub async fn on(url: &str) -> Self {
        Self::at(url.to_owned(), None).await
    }

    async fn at(url: String, lease: Option<Lease>) -> Self {
        let world = Self { url, schema: corner(), _lease: lease };
        let client = connect(&world.url).await;
        let tables = outbox::schema(Dialect::Postgres);
        let schema = &world.schema;
        client
            .batch_execute(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}; {tables}"))
            .await
            .unwrap();
        world
    }

    pub fn url(&self) -> String {
        // A busy server takes longer than usual to greet.
        format!("{}?schema={}&connect_timeout=60s", self.url, self.schema)
    }

    /// Host and port of the server.
    pub fn address(&self) -> String {
        let behind = self.url.rsplit_once('@').unwrap().1;
        behind.split_once('/').unwrap().0.to_owned()
    }

    pub fn schema(&self) -> &str {
        &self.schema
    }

    pub fn options(&self) -> PostgresOutboxOptions {
        PostgresOutbox::options(&self.url()).unwrap().lease(LEASE)
    }

    pub async fn outbox(&self) -> PostgresOutbox {
        self.options().open().await.unwrap()
    }

    pub async fn connect(&self) -> tokio_postgres::Client {
        let client = connect(&self.url).await;
        client.batch_execute(&format!("SET search_path = {}", self.schema)).await.unwrap();
        client
    }

    pub async fn pool(&self, connections: u32) -> PgPool {
        let options: PgConnectOptions = self.url.parse().unwrap();
        let options = options.options([("search_path", self.schema.as_str())]);
        PgPoolOptions::new().max_connections(connections).connect_with(options).await.unwrap()
    }

    /// The leases of those who have partitions are over. For tests in which they have died.
    pub async fn lease_over(&self) {
        let over = "UPDATE semel_outbox_relay SET lease_until = clock_timestamp()
                    WHERE id IN (SELECT owner FROM semel_outbox_cursor)";
        self.connect().await.batch_execute(over).await.unwrap();
    }

    pub async fn end(self) {
        let client = connect(&self.url).await;
        client.batch_execute(&format!("DROP SCHEMA {} CASCADE", self.schema)).await.unwrap();
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The statement that appends an event by hand.
pub fn insert(key: &str, text: &str) -> String {
    format!("INSERT INTO semel_outbox (topic, type, key, payload) VALUES ('t', 'made', '{key}', '{text}');")
}

pub fn event(key: &str, text: &str) -> Event {
    Event::new("t", "made", text.to_owned()).unwrap().key(key).unwrap()
}

/// Quick to notice, quick to try again.
pub fn quick() -> RelayOptions {
    RelayOptions::default().backoff(Duration::from_millis(1), Duration::from_millis(20)).keep_all()
}

/// A relay that runs beside the test.
pub struct Running {
    pub task: JoinHandle<Result<RelayStats, RelayError>>,
    stop: RelayStopHandle,
}

impl Running {
    pub fn start(source: impl OutboxReader, sink: &TestSink, options: RelayOptions) -> Self {
        let relay = Relay::new(source, sink.clone(), options);
        let stop = relay.stop_handle();
        Self { task: tokio::spawn(relay.run()), stop }
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

/// The next batch, waited for. A busy machine may be too slow to keep its lease, and looks again.
pub async fn batch(source: &mut impl OutboxReader) -> Batch {
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        match source.next().await {
            Ok(Some(batch)) => return batch,
            Ok(None) => {}
            Err(error) => assert!(error.may_retry(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no batch came");
}

/// Looks until it is so.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !is_so().await {
        assert!(Instant::now() < until, "{what}: not within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// All batches that are there now, each done at once.
pub async fn drained(source: &mut impl OutboxReader) -> Vec<String> {
    let mut texts = Vec::new();
    let mut idle = 0;
    // A look may only bring partitions together; a second one finds what is there.
    while idle < 3 {
        let batch = match source.next().await {
            Ok(Some(batch)) => batch,
            Ok(None) => {
                idle += 1;
                continue;
            }
            // A busy machine was too slow to keep its lease: what was begun comes again.
            Err(error) if error.may_retry() => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        idle = 0;
        match source.ack(&vec![semel::relay::Settled::Confirmed; batch.events.len()]).await {
            Ok(()) => {
                texts.extend(batch.events.iter().map(|pending| crate::relay::sink::text(&pending.event)))
            }
            Err(error) => assert!(error.may_retry(), "{error}"),
        }
    }
    texts
}

/// A database whose text may be any bytes, on the server at this URL: its URL.
pub async fn ascii_database(url: &str) -> String {
    let (server, _) = url.rsplit_once('/').unwrap();
    let name = corner();
    let make =
        format!("CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
    connect(url).await.batch_execute(&make).await.unwrap();
    format!("{server}/{name}")
}

/// Drops it, with the sessions that are still there.
pub async fn drop_database(url: &str, made: &str) {
    let (_, name) = made.rsplit_once('/').unwrap();
    connect(url).await.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
}

/// A row whose topic is not UTF-8, by plain SQL in a database that does not look.
pub const ODD_ROW: &str = "SET client_encoding = 'SQL_ASCII';
    INSERT INTO semel_outbox (topic, type, key, payload)
        VALUES (convert_from('\\x74ff', 'SQL_ASCII'), 'made', 'odd', 'odd');";
