//! What a look and a batch cost on a large table, whatever the statistics say, in rows that are read: straight to the server,
//! where the session's settings keep the planner to the indexes, and through a pooler, where there are none.

use std::time::Duration;

use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{OutboxReader, Settled};
use testkit::services::Pooler;
use tokio_postgres::Client;

use crate::relay::world::{LEASE, Postgres, insert};

const MANY: i64 = 30_000;
const BATCH: usize = 200;
/// Of this outbox: the server is full of others' tables.
const ANALYZE: &str = "ANALYZE semel_outbox";

/// A role of its own, so that its tables are found without a setting and its sessions can be recognised.
struct Reader<'a> {
    world: &'a Postgres,
    client: Client,
    role: String,
    pooler: bool,
}

impl<'a> Reader<'a> {
    async fn new(world: &'a Postgres, pooler: bool) -> Self {
        let client = world.connect().await;
        let role = format!("{}_reader", world.schema());
        let path = world.schema();
        let made = format!("CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET search_path = {path}");
        client.batch_execute(&made).await.unwrap();
        Self { world, client, role, pooler }
    }

    /// Rows that are read while so many batches are published by one who comes and leaves.
    async fn cost(&self, batches: usize) -> i64 {
        let before = self.rows().await;
        let pooler = self.pooler.then(|| pooler(&self.world.address(), &self.role));
        let direct = format!("postgres://{}@{}/postgres", self.role, self.world.address());
        let url = pooler.as_ref().map_or(direct, Pooler::url);
        let options = PostgresOutbox::options(&format!("{url}?connect_timeout=60s")).unwrap();
        let outbox = options.batch_max(BATCH, 1 << 20).lease(LEASE).open().await.unwrap();
        let mut source = outbox.source();
        for _ in 0..batches {
            let batch = source.next().await.unwrap().expect("there is a batch");
            source.ack(&vec![Settled::Confirmed; batch.events.len()]).await.unwrap();
        }
        source.release().await.unwrap();
        drop(pooler);
        self.rows().await - before
    }

    /// All that was ever read of the events' tables. Sessions tell it when they end.
    async fn rows(&self) -> i64 {
        let there = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1";
        while self.client.query_one(there, &[&self.role]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let read = "SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables
                            WHERE schemaname = $1 AND relname ~ '^semel_outbox_[0-3]$')::bigint
                         + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes
                            WHERE schemaname = $1 AND relname ~ '^semel_outbox_[0-3]$')::bigint";
        self.client.query_one(read, &[&self.world.schema()]).await.unwrap().get(0)
    }

    async fn end(self) {
        let role = &self.role;
        self.client.batch_execute(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await.unwrap();
    }
}

/// Its port may be taken by somebody else before it listens there: then it has another.
pub fn pooler(server: &str, user: &str) -> Pooler {
    for _ in 0..4 {
        if let Ok(pooler) = Pooler::start(server, user) {
            return pooler;
        }
    }
    Pooler::start(server, user).unwrap()
}

async fn many(client: &Client, fresh: bool) {
    let fill = format!(
        "INSERT INTO semel_outbox (topic, type, key, payload)
         SELECT 't', 'made', 'k' || n % 500, '{{}}' FROM generate_series(1, {MANY}) n"
    );
    // Known to be large, or still believed to be empty.
    let order = if fresh { [fill.as_str(), ANALYZE] } else { [ANALYZE, fill.as_str()] };
    for text in order {
        client.batch_execute(text).await.unwrap();
    }
}

async fn costs(pooler: bool, fresh: bool) {
    let Some(world) = Postgres::new().await else { return };
    let reader = Reader::new(&world, pooler).await;
    let client = world.connect().await;
    many(&client, fresh).await;
    // Of a large window the next batch is read, not all that is left: what more batches cost is theirs alone.
    let (few, more) = (reader.cost(2).await, reader.cost(12).await);
    // And to find out where it begins each of it is looked at once.
    assert!(few <= MANY + 20_000, "{few} rows are read for the first batches");
    let each = (more - few) / 10;
    assert!(each <= 3 * BATCH as i64, "{each} rows are read for a batch of {BATCH}");
    // Of a large table the few that are new are read, not all that was published.
    PostgresOutbox::rebase(&world.url(), semel::relay::Rebase::FromNow).await.unwrap();
    for n in 0..50 {
        client.batch_execute(&insert(&format!("k{n}"), "new")).await.unwrap();
    }
    let rows = reader.cost(1).await;
    assert!(rows <= 1_000, "{rows} rows are read for 50 events");
    reader.end().await;
    world.end().await;
}

/// A transaction of many events that was under way when a window began, and has committed since. Others appended meanwhile.
async fn late(client: &Client, world: &Postgres, reader: &Reader<'_>, rows: i64) {
    let bulk = world.connect().await;
    let half = format!(
        "INSERT INTO semel_outbox (topic, type, key, payload)
         SELECT 't', 'made', 'k' || n % 500, convert_to(repeat('x', 256), 'UTF8') FROM generate_series(1, {}) n",
        rows / 2
    );
    bulk.batch_execute(&format!("BEGIN; {half}")).await.unwrap();
    // The snapshot of this look is where the next window begins.
    client.batch_execute(&insert("a", "before")).await.unwrap();
    reader.cost(1).await;
    client.batch_execute(&insert("a", "between")).await.unwrap();
    bulk.batch_execute(&format!("{half}; COMMIT")).await.unwrap();
    client.batch_execute(&insert("a", "after")).await.unwrap();
}

async fn late_costs(pooler: bool) {
    let Some(world) = Postgres::new().await else { return };
    let reader = Reader::new(&world, pooler).await;
    let client = world.connect().await;
    late(&client, &world, &reader, MANY).await;
    let (few, more) = (reader.cost(2).await, reader.cost(12).await);
    let each = (more - few) / 10;
    assert!(each <= 3 * BATCH as i64, "{each} rows are read for a batch of {BATCH}");
    // Also where it was appended last of all, behind what the others did.
    let rows = reader.cost((MANY as usize + 2) / BATCH - 13).await;
    assert!(rows <= 4 * MANY + 20_000, "{rows} rows are read for the rest");
    reader.end().await;
    world.end().await;
}

#[tokio::test]
async fn a_chunk_of_a_late_transaction_costs_what_is_in_it() {
    late_costs(false).await;
}

/// Slow: a transaction of tens of thousands of events, each through the pooler.
#[tokio::test]
async fn a_chunk_of_a_late_transaction_costs_what_is_in_it_behind_a_pooler() {
    late_costs(true).await;
}

/// `SEMEL_MESSAGES`: how many events the late transaction has.
#[tokio::test]
#[ignore = "prove: a large transaction, to see how long it takes"]
async fn a_large_late_transaction_is_published() {
    let Some(world) = Postgres::new().await else { return };
    let rows = std::env::var("SEMEL_MESSAGES").ok().and_then(|rows| rows.parse().ok()).unwrap_or(200_000_i64);
    let reader = Reader::new(&world, false).await;
    let client = world.connect().await;
    late(&client, &world, &reader, rows).await;
    let mut source = world.outbox().await.source();
    let (mut events, mut last) = (0, 0);
    let began = std::time::Instant::now();
    let mut first = None;
    while let Some(batch) = source.next().await.unwrap() {
        first.get_or_insert(began.elapsed());
        let settled = vec![Settled::Confirmed; batch.events.len()];
        (events, last) = (events + settled.len(), last + 1);
        source.ack(&settled).await.unwrap();
    }
    let took = began.elapsed();
    // The one before came twice at most: it was published already.
    assert_eq!(events as i64, rows + 2);
    println!(
        "figures: {events} events of a late transaction in {last} batches: first {first:?}, all {took:?}"
    );
    source.release().await.unwrap();
    reader.end().await;
    world.end().await;
}

#[tokio::test]
async fn a_batch_costs_what_is_in_it() {
    costs(false, true).await;
    costs(false, false).await;
}

#[tokio::test]
#[ignore = "prove: many rows, twice"]
async fn a_batch_costs_what_is_in_it_behind_a_pooler() {
    costs(true, true).await;
    costs(true, false).await;
}
