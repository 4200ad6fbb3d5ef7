//! A corner of its own for each test, with a slot and a publication in it, and relays.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use semel::outbox;
use semel::relay::cdc::{CdcOutbox, CdcOutboxOptions};
use semel::relay::{
    Batch, OutboxReader, OutboxReaderError, Relay, RelayError, RelayOptions, RelayStats, RelayStopHandle,
    Settled,
};
use semel::tx::driver::Dialect;
use testkit::services::{Lease, Service, require};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::relay::sink::{TestSink, text};

/// So long that a busy machine does not have it lost. No test waits for its end: see [`World::lease_over`].
pub const LEASE: Duration = Duration::from_secs(20);
/// Appended to a URL: a busy server takes longer than usual to greet.
pub const PATIENT: &str = "&connect_timeout=60s";
/// Nothing here takes this long on a machine that works.
const SOON: Duration = Duration::from_secs(180);

static COUNT: AtomicU32 = AtomicU32::new(0);
/// The server has 20 slots for everybody.
static PLACES: Semaphore = Semaphore::const_new(6);
static SWEPT: OnceCell<()> = OnceCell::const_new();

pub struct World {
    pub url: String,
    pub name: String,
    _lease: Option<Lease>,
    _place: SemaphorePermit<'static>,
}

impl World {
    /// `None` when the run goes without PostgreSQL.
    pub async fn new() -> Option<Self> {
        // First the server, which another test may have alone: who has it waits for a place.
        let lease = require(Service::Postgres)?;
        let place = PLACES.acquire().await.unwrap();
        let url = lease.url().to_owned();
        Some(Self::at(url, Some(lease), place).await)
    }

    /// On a server that the test has alone.
    pub async fn on(url: &str) -> Self {
        let place = PLACES.acquire().await.unwrap();
        Self::at(url.to_owned(), None, place).await
    }

    async fn at(url: String, lease: Option<Lease>, place: SemaphorePermit<'static>) -> Self {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cdc_{}_{count}_{:x}", std::process::id(), fastrand::u32(..));
        let world = Self { url, name, _lease: lease, _place: place };
        SWEPT.get_or_init(|| sweep(&world.url)).await;
        let client = connect(&world.url).await;
        let (name, tables) = (&world.name, outbox::schema(Dialect::Postgres));
        client
            .batch_execute(&format!("CREATE SCHEMA {name}; SET search_path = {name}; {tables}"))
            .await
            .unwrap();
        world
    }

    pub fn url(&self) -> String {
        format!("{}?schema={}{PATIENT}", self.url, self.name)
    }

    pub fn options(&self) -> CdcOutboxOptions {
        self.options_at(&self.url())
    }

    pub fn options_at(&self, url: &str) -> CdcOutboxOptions {
        let options = CdcOutbox::options(url).unwrap();
        let options = options.slot(&self.name).unwrap().publication(&self.name).unwrap();
        options.lease(LEASE).checkpoint_interval(Duration::from_millis(50))
    }

    pub async fn outbox(&self) -> CdcOutbox {
        self.options().open().await.unwrap()
    }

    pub async fn connect(&self) -> Client {
        let client = connect(&self.url).await;
        client.batch_execute(&format!("SET search_path = {}", self.name)).await.unwrap();
        client
    }

    /// The leases of all who had one are over. For tests in which somebody has died.
    pub async fn lease_over(&self) {
        let over = "UPDATE semel_outbox_relay SET lease_until = clock_timestamp()";
        self.connect().await.batch_execute(over).await.unwrap();
    }

    /// A column of the slot, as text.
    pub async fn slot(&self, column: &str) -> Option<String> {
        let client = connect(&self.url).await;
        let query =
            format!("SELECT {column}::text FROM pg_replication_slots WHERE slot_name = '{}'", self.name);
        client.query_opt(&query, &[]).await.unwrap().and_then(|row| row.get(0))
    }

    /// Whether the relay reads from the slot, and the slot has its beginning: what is committed from now on is read. While it
    /// is being made it is active, too, and waits for other transactions.
    pub async fn streams(&self) -> bool {
        self.slot("(active AND confirmed_flush_lsn IS NOT NULL)").await.as_deref() == Some("true")
    }

    pub async fn end(self) {
        let client = connect(&self.url).await;
        let name = &self.name;
        client.batch_execute(&format!("DROP SCHEMA {name} CASCADE")).await.unwrap();
        client.batch_execute(&format!("DROP PUBLICATION IF EXISTS {name}")).await.unwrap();
        drop_slot(&client, name).await;
    }
}

/// Drops a slot, and ends its reader.
pub async fn drop_slot(client: &Client, name: &str) {
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        let end = format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
             WHERE slot_name = '{name}' AND active_pid IS NOT NULL"
        );
        client.batch_execute(&end).await.unwrap();
        let drop = format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{name}'"
        );
        match client.batch_execute(&drop).await {
            Ok(()) => return,
            Err(error) => assert_eq!(error.code().unwrap().code(), "55006", "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the slot {name} does not become free");
}

/// Slots of processes that ended early. Not those of a process that still runs: while a relay has lost its lease its slot
/// is idle, too, and dropping it sends the relay back to the table.
async fn sweep(url: &str) {
    let client = connect(url).await;
    let rows = client
        .query(
            "SELECT slot_name::text FROM pg_replication_slots WHERE slot_name ~ '^cdc_' AND NOT active",
            &[],
        )
        .await
        .unwrap();
    for row in rows {
        let name: String = row.get(0);
        if !is_of_a_running_process(&name) {
            drop_slot(&client, &name).await;
        }
    }
}

fn is_of_a_running_process(slot: &str) -> bool {
    let pid = slot.split('_').nth(1).unwrap_or_default();
    std::path::Path::new("/proc").join(pid).join("stat").exists()
}

#[tokio::test]
async fn only_slots_of_processes_that_ended_are_swept() {
    let Some(lease) = require(Service::Postgres) else { return };
    let _place = PLACES.acquire_many(2).await.unwrap();
    let client = connect(lease.url()).await;
    // Process 1 always runs; no process has a number as high as the other.
    let end = fastrand::u32(..);
    let [running, ended] = [1, u32::MAX].map(|pid| format!("cdc_{pid}_0_{end:x}"));
    for name in [&running, &ended] {
        let create = format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')");
        client.batch_execute(&create).await.unwrap();
    }
    sweep(lease.url()).await;
    let find = "SELECT slot_name::text FROM pg_replication_slots WHERE slot_name = ANY ($1)";
    let left = client.query(find, &[&vec![&running, &ended]]).await.unwrap();
    let left: Vec<String> = left.iter().map(|row| row.get(0)).collect();
    drop_slot(&client, &running).await;
    assert_eq!(left, [running]);
}

pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The statement that appends an event by hand.
pub fn insert(key: &str, text: &str) -> String {
    format!("INSERT INTO semel_outbox (topic, type, key, payload) VALUES ('t', 'made', '{key}', '{text}');")
}

/// Quick to notice, quick to try again.
pub fn quick() -> RelayOptions {
    RelayOptions::default().backoff(Duration::from_millis(1), Duration::from_millis(50)).keep_all()
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

/// The next batch, waited for.
pub async fn batch(source: &mut impl OutboxReader) -> Batch {
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        match source.next().await {
            Ok(Some(batch)) => return batch,
            Ok(None) => {}
            Err(error) if error.may_retry() => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no batch came");
}

/// One look that is to find nothing. A busy machine may be too slow to keep its lease, and looks again later.
pub async fn nothing(source: &mut impl OutboxReader) {
    match source.next().await {
        Ok(None) => {}
        Ok(Some(batch)) => panic!("{:?} came", texts(&batch)),
        Err(error) if error.may_retry() => tokio::time::sleep(Duration::from_millis(10)).await,
        Err(error) => panic!("{error}"),
    }
}

/// Polls until the source refuses for good, and gives its reason.
pub async fn refusal(source: &mut impl OutboxReader) -> OutboxReaderError {
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        match source.next().await {
            Ok(None) => {}
            Ok(Some(batch)) => panic!("{:?} came", texts(&batch)),
            Err(error) if error.may_retry() => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => return error,
        }
    }
    panic!("it goes on");
}

pub fn texts(batch: &Batch) -> Vec<String> {
    batch.events.iter().map(|pending| text(&pending.event)).collect()
}

/// Batches, each done at once, until so many events have come.
pub async fn drained(source: &mut impl OutboxReader, events: usize) -> Vec<String> {
    let mut read = Vec::new();
    while read.len() < events {
        let batch = batch(source).await;
        match source.ack(&vec![Settled::Confirmed; batch.events.len()]).await {
            Ok(()) => read.extend(texts(&batch)),
            // A busy machine was too slow to keep its lease: it comes again.
            Err(error) => assert!(error.may_retry(), "{error}"),
        }
    }
    read
}

/// Looks until it is so.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: not within {SOON:?}");
}
