//! Many records: what they do to the tail, and what forgetting them costs.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rusqlite::Connection;
use semel::store::Store;
use semel::store::sqlite::SqliteStore;
use tokio::runtime::Runtime;

use super::CALLERS;
use crate::Failed;
use crate::load;
use crate::table::Table;

const NEVER_SOON: &str = "9000000000000";

/// Finished records, written past the store. Random ids, in order within a chunk: the file is the same, made sooner.
fn fill(path: &Path, from: u64, to: u64, expires_at: &str) -> Result<(), Failed> {
    const CHUNK: u64 = 500_000;
    let file = Connection::open(path)?;
    file.execute_batch("PRAGMA synchronous = off; PRAGMA cache_size = -1000000; PRAGMA temp_store = memory")?;
    file.execute("INSERT OR IGNORE INTO operation VALUES (1, 'filled')", [])?;
    let mut at = from;
    while at < to {
        let end = (at + CHUNK).min(to);
        file.execute_batch(&format!(
            "INSERT INTO intent (seq, id, state, effect, epoch, attempts, lease_until, created_at, changed_at, expires_at,
                owner, recipe, fingerprint, operation, scope, key, outcome)
            WITH RECURSIVE numbers(n) AS (SELECT {at} + 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {end}),
                 made(n, id) AS MATERIALIZED (SELECT n, randomblob(32) FROM numbers)
            SELECT n, id, 2, 0, n, 1, 1, 1, 1, {expires_at}, randomblob(16), 1, zeroblob(32), 1, 'acme', 'filled-' || n,
                zeroblob(210)
            FROM made ORDER BY id;
            UPDATE fence SET epoch = max(epoch, {end})"
        ))?;
        at = end;
        eprintln!("sqlite: {at} records …");
    }
    file.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?;
    Ok(())
}

/// The tail of claims at 100,000 records and at many.
pub(crate) fn tail(
    runtime: &Runtime,
    size: usize,
    records: u64,
    directory: &Path,
    table: &mut Table,
) -> Result<(), Failed> {
    let mut few = None;
    for records in [100_000, records.max(100_000)] {
        let path = directory.join(format!("large-{records}"));
        runtime.block_on(runtime.block_on(SqliteStore::open(&path))?.close());
        fill(&path, 0, records, NEVER_SOON)?;
        let store = Arc::new(runtime.block_on(SqliteStore::open(&path))?);
        load::run(runtime, &store, CALLERS, 20, &format!("warm-{records}"))?;
        let mut best: Option<(f64, f64)> = None;
        for round in 0..3 {
            let mut run =
                load::run(runtime, &store, CALLERS, 100 * size, &format!("tail-{records}-{round}"))?;
            let tail = (run.claims.percentile_us(0.99), run.claims.percentile_us(0.5));
            best = Some(best.map_or(tail, |best| if tail.0 < best.0 { tail } else { best }));
        }
        runtime.block_on(store.close());
        let (p99, p50) = best.unwrap_or_default();
        let note = match few {
            None => format!("p50 {:.2} ms; the floor", p50 / 1e3),
            Some(few) => format!("p50 {:.2} ms; {:.2} × the floor", p50 / 1e3, p99 / few),
        };
        few.get_or_insert(p99);
        table.row(&format!("sqlite: claim p99, 64 callers, {records} records"), p99 / 1e3, "ms", note);
        std::fs::remove_file(&path)?;
    }
    Ok(())
}

/// How fast expired records are forgotten, and what the callers notice of it.
pub(crate) fn sweep(
    runtime: &Runtime,
    size: usize,
    directory: &Path,
    table: &mut Table,
) -> Result<(), Failed> {
    let path = directory.join("sweep");
    let records = 20_000 * size as u64;
    let store = Arc::new(runtime.block_on(SqliteStore::open(&path))?);
    load::run(runtime, &store, CALLERS, 20, "warm")?;
    let mut without = load::run(runtime, &store, CALLERS, 100 * size, "without")?;
    runtime.block_on(store.close());
    fill(&path, 1_000_000_000, 1_000_000_000 + records, "1")?;
    let store = Arc::new(runtime.block_on(SqliteStore::open(&path))?);
    let sweeper = Arc::clone(&store);
    let begin = Instant::now();
    let sweep = runtime.spawn(async move { (sweeper.sweep(usize::MAX).await, begin.elapsed()) });
    let mut with = load::run(runtime, &store, CALLERS, 100 * size, "with")?;
    let (swept, took) = runtime.block_on(sweep)?;
    let swept = swept?;
    runtime.block_on(store.close());
    if swept as u64 != records {
        return Err(format!("{swept} of {records} were forgotten").into());
    }
    let rate = swept as f64 / took.as_secs_f64();
    table.row("sqlite: sweep, beside 64 callers", rate, "/s", format!("{swept} records"));
    let (before, during) = (without.claims.percentile_us(0.99), with.claims.percentile_us(0.99));
    let note = format!("{:.2} × the {:.2} ms without", during / before, before / 1e3);
    table.row("sqlite: claim p99 while sweeping", during / 1e3, "ms", note);
    Ok(())
}
