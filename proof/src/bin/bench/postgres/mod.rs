//! The PostgreSQL store against pgbench running the same statements one by one on the same server, and
//! against the bare statement.

mod large;
mod pgbench;

use std::sync::Arc;
use std::time::Instant;

use semel::store::postgres::PostgresStore;
use semel::{Key, Owner};
use testkit::services::{Service, find};
use tokio::runtime::Runtime;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

use crate::Failed;
use crate::load::{self, Loaded};
use crate::table::Table;
use crate::times::Times;

pub(crate) const CALLERS: usize = 64;

/// The statements as the store has them.
pub(crate) const CLAIM: &str = include_str!("../../../../../crates/semel/src/store/postgres/sql/claim.sql");
pub(crate) const FINISH: &str = include_str!("../../../../../crates/semel/src/store/postgres/sql/finish.sql");

/// Tables of the benchmark's own, gone with this.
pub(crate) struct Place<'a> {
    runtime: &'a Runtime,
    pub(crate) server: String,
    pub(crate) schema: String,
}

impl<'a> Place<'a> {
    fn new(runtime: &'a Runtime, server: &str) -> Result<Self, Failed> {
        let schema = format!("semel_bench_{}", std::process::id());
        let place = Self { runtime, server: server.to_owned(), schema };
        place.empty()?;
        Ok(place)
    }

    /// Nothing there, not even dead rows.
    pub(crate) fn empty(&self) -> Result<(), Failed> {
        let schema = &self.schema;
        self.execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}"))?;
        let store = self.store()?;
        self.runtime.block_on(async { store.close().await });
        Ok(())
    }

    pub(crate) fn store(&self) -> Result<Arc<PostgresStore>, Failed> {
        let url = format!("{}?schema={}", self.server, self.schema);
        Ok(Arc::new(self.runtime.block_on(PostgresStore::open(&url))?))
    }

    /// A plain connection with the settings a store's connection has.
    pub(crate) fn client(&self) -> Result<Client, Failed> {
        self.runtime.block_on(async {
            let mut config: tokio_postgres::Config = self.server.parse()?;
            config.options(pgbench::settings(&self.schema));
            let (client, connection) = config.connect(NoTls).await?;
            tokio::spawn(connection);
            Ok(client)
        })
    }

    pub(crate) fn execute(&self, sql: &str) -> Result<(), Failed> {
        let client = self.client()?;
        let with_statement = |error: tokio_postgres::Error| match error.as_db_error() {
            Some(error) => format!("{error}: {sql}"),
            None => error.to_string(),
        };
        Ok(self.runtime.block_on(client.batch_execute(sql)).map_err(with_statement)?)
    }

    pub(crate) fn number(&self, sql: &str) -> Result<f64, Failed> {
        let client = self.client()?;
        let row = self.runtime.block_on(client.query_one(sql, &[]))?;
        Ok(row.try_get::<_, i64>(0)? as f64)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let _ = self.execute(&format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema));
    }
}

/// `records` is how many a large table has.
pub(crate) fn measure(
    runtime: &Runtime,
    size: usize,
    records: Option<u64>,
    table: &mut Table,
) -> Result<(), Failed> {
    let Some(server) = find(Service::Postgres) else {
        eprintln!("postgres: left out, it does not run; start it: cargo xtask services up --only postgres");
        return Ok(());
    };
    let place = Place::new(runtime, &server)?;
    pairs(&place, size, table)?;
    alone(&place, size, table)?;
    on_disk(&place, size, table)?;
    large::sweep(&place, size, table)?;
    if let Some(records) = records {
        large::tail(&place, size, records, table)?;
    }
    Ok(())
}

fn pairs(place: &Place<'_>, size: usize, table: &mut Table) -> Result<(), Failed> {
    let mut ours: Vec<Loaded> = Vec::new();
    let (mut same, mut by_hand) = (Vec::new(), Vec::new());
    // Alternating rounds: the disk's mood is the same for the subject and its floor.
    for round in 0..2 {
        for clients in [16, 64] {
            place.empty()?;
            same.push((pgbench::pairs_per_s(place, clients, size, pgbench::Script::Same)?, clients));
            place.empty()?;
            by_hand.push((pgbench::pairs_per_s(place, clients, size, pgbench::Script::ByHand)?, clients));
        }
        place.empty()?;
        let store = place.store()?;
        load::run(place.runtime, &store, CALLERS, 5, &format!("warm-{round}"))?;
        ours.push(load::run(place.runtime, &store, CALLERS, 400 * size, &format!("pairs-{round}"))?);
        place.runtime.block_on(store.close());
    }
    let best =
        |runs: &[(f64, usize)]| runs.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0)).ok_or("no run");
    let (floor, clients) = best(&same)?;
    let (hand, hand_clients) = best(&by_hand)?;
    let mut ours = ours.into_iter().max_by(|a, b| a.pairs_per_s.total_cmp(&b.pairs_per_s)).ok_or("no run")?;
    let note = format!("the floor: best of 16 and 64 clients, here {clients}");
    table.row("postgres: claim+finish pairs/s, pgbench, the same statements", floor, "/s", note);
    let note = format!("best of 16 and 64 clients, here {hand_clients}");
    table.row("postgres: claim+finish pairs/s, pgbench, one-row statements", hand, "/s", note);
    let rate = ours.pairs_per_s;
    let note = format!("{:.1} × the floor, {:.1} × one-row statements", rate / floor, rate / hand);
    table.row("postgres: claim+finish pairs/s, 64 callers", rate, "/s", note);
    for (name, times) in [("claim", &mut ours.claims), ("finish", &mut ours.finishes)] {
        let (p50, p99) = (times.percentile_us(0.50), times.percentile_us(0.99));
        let name = format!("postgres: {name} p99, 64 callers");
        table.row(&name, p99 / 1_000.0, "ms", format!("p50 {:.2} ms", p50 / 1_000.0));
    }
    Ok(())
}

/// One caller at a time, against the very statement on a connection of its own, interleaved.
fn alone(place: &Place<'_>, size: usize, table: &mut Table) -> Result<(), Failed> {
    place.empty()?;
    let store = place.store()?;
    let client = place.client()?;
    let runtime = place.runtime;
    runtime.block_on(load::pair(&*store, load::intent("warm")?, None))?;
    let statement = runtime.block_on(client.prepare_typed(CLAIM, CLAIM_TYPES))?;
    let (mut floor, mut claims, mut finishes) = (Times::default(), Times::default(), Times::default());
    let (print, body) = (load::fingerprint(), "request");
    for n in 0..400 * size {
        let intent = load::intent(Key::random().as_str())?;
        let (id, owner) = (intent.id(), Owner::random());
        let begin = Instant::now();
        // On the runtime's threads, as the store's lanes are.
        let rows = runtime.block_on(client.query(
            &statement,
            &[
                &[&id.as_bytes()[..]].as_slice(),
                &[n as i64].as_slice(),
                &[&owner.as_bytes()[..]].as_slice(),
                &[&print.digest()[..]].as_slice(),
                &[print.recipe().as_u64().cast_signed()].as_slice(),
                &[0i16].as_slice(),
                &[30_000i64].as_slice(),
                &["acme"].as_slice(),
                &["payment.create"].as_slice(),
                &[body].as_slice(),
                &[true].as_slice(),
                &65_536i32,
            ],
        ))?;
        floor.push(begin.elapsed());
        if rows.len() != 1 {
            return Err("the bare statement did not claim".into());
        }
        let intent = load::intent(&format!("alone-{n}"))?;
        runtime.block_on(load::pair(&*store, intent, Some((&mut claims, &mut finishes))))?;
    }
    runtime.block_on(store.close());
    let bare_us = floor.percentile_us(0.5);
    table.row("postgres: bare claim statement, one caller, p50", bare_us, "µs", "the floor");
    let us = claims.percentile_us(0.5);
    table.row("postgres: claim, one caller, p50", us, "µs", format!("{:.2} × the floor", us / bare_us));
    table.row("postgres: finish, one caller, p50", finishes.percentile_us(0.5), "µs", "");
    Ok(())
}

const CLAIM_TYPES: &[Type] = &[
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
    Type::BYTEA_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
    Type::INT2_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::BOOL_ARRAY,
    Type::INT4,
];

fn on_disk(place: &Place<'_>, size: usize, table: &mut Table) -> Result<(), Failed> {
    place.empty()?;
    let store = place.store()?;
    let each = 320 * size;
    load::run(place.runtime, &store, CALLERS, each, "size")?;
    place.runtime.block_on(store.close());
    let records = (CALLERS * each) as f64;
    for (what, function) in [("table", "pg_table_size"), ("index", "pg_indexes_size")] {
        let bytes = place.number(&format!("SELECT {function}('semel_intent')"))?;
        table.row(
            &format!("postgres: {what} bytes per million records"),
            bytes / records * 1e6 / f64::from(1 << 20),
            "MiB",
            format!("from {records:.0} records, each claimed and finished, 200-byte body"),
        );
    }
    Ok(())
}
