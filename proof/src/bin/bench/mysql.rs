//! The MySQL store on MariaDB against a bare loop: the least statements that claim and finish one row, each
//! prepared and committed by itself, and the store's own packets without travelling together.

use std::sync::Arc;
use std::time::Instant;

use semel::Owner;
use semel::store::mysql::MysqlStore;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use testkit::services::{Service, find};
use tokio::runtime::Runtime;

use crate::Failed;
use crate::load::{self, Loaded};
use crate::table::Table;
use crate::times::Times;

const CALLERS: usize = 64;

const CLAIM: &str = "INSERT INTO semel_intent (id, state, effect, epoch, attempts, lease_until, created_at, changed_at, \
     owner, recipe, fingerprint, operation, scope, `key`) \
     VALUES (?, 0, 0, 1, 1, 9000000000000, 1, 1, ?, 1, ?, 1, 'acme', ?) ON DUPLICATE KEY UPDATE id = id";

const FINISH: &str = "UPDATE semel_intent SET state = 2, changed_at = 2, expires_at = 9000000000000, outcome = ? \
     WHERE id = ? AND owner = ? AND epoch = 1 AND state < 2";

/// A database of the benchmark's own, gone with this.
struct Place<'a> {
    runtime: &'a Runtime,
    server: String,
    name: String,
}

impl<'a> Place<'a> {
    fn new(runtime: &'a Runtime, server: &str) -> Self {
        Self { runtime, server: server.to_owned(), name: format!("semel_bench_{}", std::process::id()) }
    }

    fn url(&self) -> String {
        format!("{}/{}", self.server.rsplit_once('/').map_or("", |(host, _)| host), self.name)
    }

    fn root(&self, sql: String) -> Result<(), Failed> {
        self.runtime.block_on(async {
            let mut connection = MySqlConnection::connect(&self.server).await?;
            connection.execute(AssertSqlSafe(sql)).await?;
            Ok(())
        })
    }

    fn empty(&self) -> Result<(), Failed> {
        let name = &self.name;
        self.root(format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}"))?;
        self.runtime.block_on(semel::store::migrate(&self.url()))?;
        Ok(())
    }

    fn number(&self, sql: &str) -> Result<f64, Failed> {
        self.runtime.block_on(async {
            let mut connection = MySqlConnection::connect(&self.url()).await?;
            let sql = format!("SELECT CAST(({sql}) AS SIGNED)");
            let number: i64 = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut connection).await?;
            Ok(number as f64)
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let _ = self.root(format!("DROP DATABASE IF EXISTS {}", self.name));
    }
}

pub(crate) fn measure(runtime: &Runtime, size: usize, table: &mut Table) -> Result<(), Failed> {
    let Some(server) = find(Service::Mariadb) else {
        eprintln!("mysql: left out, it does not run; start it: cargo xtask services up --only mariadb");
        return Ok(());
    };
    let place = Place::new(runtime, &server);
    pairs(&place, size, table)?;
    alone(&place, size, table)?;
    on_disk(&place, size, table)
}

fn pairs(place: &Place<'_>, size: usize, table: &mut Table) -> Result<(), Failed> {
    let (mut ours, mut bare, mut single) = (Vec::new(), Vec::new(), Vec::new());
    // Alternating rounds: the disk's mood is the same for the subject and its floors.
    for round in 0..2 {
        for clients in [16, 64] {
            place.empty()?;
            bare.push((bare_pairs(place, clients, 6_400 * size / clients)?, clients));
            place.empty()?;
            let options = MysqlStore::options().connections(clients).batch_max(1);
            let run = through(place, options, 60 * size, &format!("single-{round}"))?;
            single.push((run.pairs_per_s, clients));
        }
        place.empty()?;
        ours.push(through(place, MysqlStore::options(), 200 * size, &format!("together-{round}"))?);
    }
    let best =
        |runs: &[(f64, usize)]| runs.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0)).ok_or("no run");
    let (floor, clients) = best(&bare)?;
    let note = format!("the floor: best of 16 and 64 connections, here {clients}");
    table.row("mysql: claim+finish pairs/s, bare loop, two prepared statements", floor, "/s", note);
    let (alone, clients) = best(&single)?;
    let note = format!("{:.2} × the floor, best of 16 and 64 connections, here {clients}", alone / floor);
    table.row("mysql: claim+finish pairs/s, 64 callers, none together", alone, "/s", note);
    let mut ours = ours.into_iter().max_by(|a, b| a.pairs_per_s.total_cmp(&b.pairs_per_s)).ok_or("no run")?;
    let note = format!("{:.2} × the floor, 4 connections", ours.pairs_per_s / floor);
    table.row("mysql: claim+finish pairs/s, 64 callers", ours.pairs_per_s, "/s", note);
    for (name, times) in [("claim", &mut ours.claims), ("finish", &mut ours.finishes)] {
        let (p50, p99) = (times.percentile_us(0.50), times.percentile_us(0.99));
        let name = format!("mysql: {name} p99, 64 callers");
        table.row(&name, p99 / 1_000.0, "ms", format!("p50 {:.2} ms", p50 / 1_000.0));
    }
    Ok(())
}

fn through(
    place: &Place<'_>,
    options: semel::store::mysql::MysqlOptions,
    each: usize,
    name: &str,
) -> Result<Loaded, Failed> {
    let store = Arc::new(place.runtime.block_on(options.open(&place.url()))?);
    load::run(place.runtime, &store, CALLERS, 5, &format!("warm-{name}"))?;
    let loaded = load::run(place.runtime, &store, CALLERS, each, name);
    place.runtime.block_on(store.close());
    loaded
}

async fn bare_claim(connection: &mut MySqlConnection, key: &str, owner: Owner) -> Result<(), Failed> {
    let intent = load::intent(key)?;
    let claim = sqlx::query(CLAIM)
        .bind(&intent.id().as_bytes()[..])
        .bind(&owner.as_bytes()[..])
        .bind(&load::fingerprint().digest()[..])
        .bind(key);
    claim.execute(connection).await?;
    Ok(())
}

async fn bare_finish(connection: &mut MySqlConnection, key: &str, owner: Owner) -> Result<(), Failed> {
    let intent = load::intent(key)?;
    let finish = sqlx::query(FINISH)
        .bind(load::outcome().encode().to_vec())
        .bind(&intent.id().as_bytes()[..])
        .bind(&owner.as_bytes()[..]);
    if finish.execute(connection).await?.rows_affected() == 1 {
        Ok(())
    } else {
        Err("nothing was finished".into())
    }
}

fn bare_pairs(place: &Place<'_>, clients: usize, each: usize) -> Result<f64, Failed> {
    place.runtime.block_on(async {
        let mut connections = Vec::new();
        for _ in 0..clients {
            let mut connection = MySqlConnection::connect(&place.url()).await?;
            connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
            connections.push(connection);
        }
        let begin = Instant::now();
        let tasks: Vec<_> = connections
            .into_iter()
            .enumerate()
            .map(|(caller, mut connection)| {
                tokio::spawn(async move {
                    for n in 0..each {
                        let (key, owner) = (format!("bare-{caller}-{n}"), Owner::random());
                        bare_claim(&mut connection, &key, owner).await?;
                        bare_finish(&mut connection, &key, owner).await?;
                    }
                    Ok::<_, Failed>(())
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        Ok((clients * each) as f64 / begin.elapsed().as_secs_f64())
    })
}

/// One caller at a time, against the bare statements, interleaved.
fn alone(place: &Place<'_>, size: usize, table: &mut Table) -> Result<(), Failed> {
    place.empty()?;
    let store = place.runtime.block_on(MysqlStore::options().connections(1).open(&place.url()))?;
    let mut bare = place.runtime.block_on(MySqlConnection::connect(&place.url()))?;
    let (mut bare_claims, mut bare_finishes) = (Times::default(), Times::default());
    let (mut claims, mut finishes) = (Times::default(), Times::default());
    for n in 0..200 * size {
        let (key, owner) = (format!("bare-{n}"), Owner::random());
        let begin = Instant::now();
        place.runtime.block_on(bare_claim(&mut bare, &key, owner))?;
        bare_claims.push(begin.elapsed());
        let begin = Instant::now();
        place.runtime.block_on(bare_finish(&mut bare, &key, owner))?;
        bare_finishes.push(begin.elapsed());
        let intent = load::intent(&format!("alone-{n}"))?;
        place.runtime.block_on(load::pair(&store, intent, Some((&mut claims, &mut finishes))))?;
    }
    for (name, bare, times) in
        [("claim", &mut bare_claims, &mut claims), ("finish", &mut bare_finishes, &mut finishes)]
    {
        let (floor, us) = (bare.percentile_us(0.5), times.percentile_us(0.5));
        table.row(&format!("mysql: bare {name}, one caller, p50"), floor, "µs", "the floor");
        let note = format!("{:.2} × the floor", us / floor);
        table.row(&format!("mysql: {name}, one caller, p50"), us, "µs", note);
    }
    place.runtime.block_on(store.close());
    Ok(())
}

fn on_disk(place: &Place<'_>, size: usize, table: &mut Table) -> Result<(), Failed> {
    place.empty()?;
    let each = 150 * size;
    through(place, MysqlStore::options(), each, "size")?;
    place.root(format!("ANALYZE TABLE {}.semel_intent", place.name))?;
    let bytes = place.number(&format!(
        "SELECT data_length + index_length FROM information_schema.tables \
         WHERE table_schema = '{}' AND table_name = 'semel_intent'",
        place.name
    ))?;
    let records = (CALLERS * (each + 5)) as f64;
    let note = format!("200-byte body, {records:.0} records, indexes included");
    table.row("mysql: bytes on disk per record", bytes / records, "bytes", note);
    Ok(())
}
