//! The SQLite store against the same work with one transaction per call, and against a bare commit.

mod large;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use semel::store::Store;
use semel::store::sqlite::SqliteStore;
use tokio::runtime::Runtime;

use crate::Failed;
use crate::load::{self, Loaded};
use crate::table::Table;
use crate::times::Times;

const CALLERS: usize = 64;

pub(crate) fn measure(
    runtime: &Runtime,
    size: usize,
    records: Option<u64>,
    directory: &Path,
    table: &mut Table,
) -> Result<(), Failed> {
    // Alternating rounds: the disk's mood is the same for the subject and its floor.
    let (mut grouped, mut single) = (Vec::new(), Vec::new());
    for round in 0..2 {
        single.push(many(runtime, directory, &format!("single-{round}"), 1, 12 * size)?);
        grouped.push(many(runtime, directory, &format!("grouped-{round}"), 0, 120 * size)?);
    }
    let rate = |runs: &[Loaded]| runs.iter().map(|run| run.pairs_per_s).fold(0.0, f64::max);
    let (grouped_rate, single_rate) = (rate(&grouped), rate(&single));
    table.row(
        "sqlite: claim+finish pairs/s, 64 callers, one transaction per call",
        single_rate,
        "/s",
        "the floor",
    );
    let ratio = format!("{:.1} × the floor", grouped_rate / single_rate);
    table.row("sqlite: claim+finish pairs/s, 64 callers, group commit", grouped_rate, "/s", ratio);
    let mut best =
        grouped.into_iter().max_by(|a, b| a.pairs_per_s.total_cmp(&b.pairs_per_s)).ok_or("no run")?;
    for (name, times) in [("claim", &mut best.claims), ("finish", &mut best.finishes)] {
        let (p50, p99) = (times.percentile_us(0.50), times.percentile_us(0.99));
        table.row(
            &format!("sqlite: {name} p99, 64 callers"),
            p99 / 1_000.0,
            "ms",
            format!("p50 {:.2} ms", p50 / 1_000.0),
        );
    }
    alone(runtime, size, directory, table)?;
    on_disk(runtime, size, directory, table)?;
    large::sweep(runtime, size, directory, table)?;
    match records {
        Some(records) => large::tail(runtime, size, records, directory, table),
        None => Ok(()),
    }
}

fn many(
    runtime: &Runtime,
    directory: &Path,
    name: &str,
    batch_max: usize,
    each: usize,
) -> Result<Loaded, Failed> {
    let options = SqliteStore::options();
    let options = if batch_max > 0 { options.batch_max(batch_max) } else { options };
    let store = Arc::new(runtime.block_on(options.open(directory.join(name)))?);
    let loaded = load::run(runtime, &store, CALLERS, each, name);
    runtime.block_on(store.close());
    loaded
}

/// One caller at a time, against a bare durable insert of a row of the same size, interleaved.
fn alone(runtime: &Runtime, size: usize, directory: &Path, table: &mut Table) -> Result<(), Failed> {
    let bare = rusqlite::Connection::open(directory.join("bare"))?;
    bare.pragma_update(None, "journal_mode", "wal")?;
    bare.pragma_update(None, "synchronous", "full")?;
    bare.execute_batch("CREATE TABLE t (n INTEGER PRIMARY KEY, id BLOB UNIQUE, body BLOB)")?;
    let store = runtime.block_on(SqliteStore::open(directory.join("alone")))?;
    let (mut floor, mut claims, mut finishes) = (Times::default(), Times::default(), Times::default());
    for n in 0..200 * size {
        let intent = load::intent(&format!("alone-{n}"))?;
        let begin = Instant::now();
        let mut insert = bare.prepare_cached("INSERT INTO t (id, body) VALUES (?1, ?2)")?;
        insert.execute((intent.id().as_bytes().as_slice(), vec![7u8; 200]))?;
        floor.push(begin.elapsed());
        runtime.block_on(load::pair(&store, intent, Some((&mut claims, &mut finishes))))?;
    }
    let bare_us = floor.percentile_us(0.5);
    table.row("sqlite: bare durable commit, one caller, p50", bare_us, "µs", "the floor");
    for (name, times) in [("claim", &mut claims), ("finish", &mut finishes)] {
        let us = times.percentile_us(0.5);
        table.row(
            &format!("sqlite: {name}, one caller, p50"),
            us,
            "µs",
            format!("{:.2} × the floor", us / bare_us),
        );
    }
    Ok(())
}

fn on_disk(runtime: &Runtime, size: usize, directory: &Path, table: &mut Table) -> Result<(), Failed> {
    let path = directory.join("size");
    let store = Arc::new(runtime.block_on(SqliteStore::open(&path))?);
    let each = 150 * size;
    load::run(runtime, &store, CALLERS, each, "size")?;
    runtime.block_on(store.close());
    let bytes = std::fs::metadata(&path)?.len() as f64;
    let records = (CALLERS * each) as f64;
    table.row(
        "sqlite: bytes on disk per record",
        bytes / records,
        "bytes",
        format!("200-byte body, {records:.0} records, indexes included"),
    );
    let store = Arc::new(runtime.block_on(SqliteStore::open(&path))?);
    let swept = runtime.block_on(store.sweep(1))?;
    if swept != 0 { Err("something expired".into()) } else { Ok(()) }
}
