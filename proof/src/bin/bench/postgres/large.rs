//! Many records: what they do to the tail, and what forgetting them costs.

use std::time::Instant;

use semel::store::Store;

use super::{CALLERS, Place};
use crate::Failed;
use crate::load;
use crate::table::Table;

/// Finished records, made by the server itself.
fn fill(place: &Place<'_>, from: u64, to: u64, expires_at: &str) -> Result<(), Failed> {
    const CHUNK: u64 = 500_000;
    let mut at = from;
    while at < to {
        let end = (at + CHUNK).min(to);
        place.execute(&format!(
            "INSERT INTO semel_intent (seq, epoch, lease_until, created_at, changed_at, expires_at, recipe, operation,
                attempts, state, effect, id, owner, fingerprint, scope, key, outcome)
            SELECT n, n, 1, 1, 1, {expires_at}, 1, 1, 1, 2, 0, sha256(int8send(n)), substr(sha256(int8send(-n)), 1, 16),
                sha256('request'), 'acme', 'filled-' || n, decode(repeat('78', 210), 'hex')
            FROM generate_series({at} + 1, {end}::bigint) n"
        ))?;
        at = end;
        eprintln!("postgres: {at} records …");
    }
    place.execute("VACUUM ANALYZE semel_intent")?;
    place.execute("CHECKPOINT")
}

const NEVER_SOON: &str = "9000000000000 + n";

/// The tail of claims at 100,000 records and at many.
pub(crate) fn tail(place: &Place<'_>, size: usize, records: u64, table: &mut Table) -> Result<(), Failed> {
    place.empty()?;
    let mut few = None;
    let mut filled = 0;
    for records in [100_000, records.max(100_000)] {
        fill(place, filled, records, NEVER_SOON)?;
        filled = records;
        let store = place.store()?;
        load::run(place.runtime, &store, CALLERS, 20, &format!("warm-{records}"))?;
        let mut best: Option<(f64, f64)> = None;
        for round in 0..3 {
            let mut run =
                load::run(place.runtime, &store, CALLERS, 100 * size, &format!("tail-{records}-{round}"))?;
            let tail = (run.claims.percentile_us(0.99), run.claims.percentile_us(0.5));
            best = Some(best.map_or(tail, |best| if tail.0 < best.0 { tail } else { best }));
        }
        place.runtime.block_on(store.close());
        let (p99, p50) = best.unwrap_or_default();
        let name = format!("postgres: claim p99, 64 callers, {records} records");
        let note = match few {
            None => format!("p50 {:.2} ms; the floor", p50 / 1e3),
            Some(few) => format!("p50 {:.2} ms; {:.2} × the floor", p50 / 1e3, p99 / few),
        };
        few.get_or_insert(p99);
        table.row(&name, p99 / 1e3, "ms", note);
    }
    Ok(())
}

/// How fast expired records are forgotten, and what the callers notice of it.
pub(crate) fn sweep(place: &Place<'_>, size: usize, table: &mut Table) -> Result<(), Failed> {
    place.empty()?;
    let store = place.store()?;
    load::run(place.runtime, &store, CALLERS, 20, "warm")?;
    let mut without = load::run(place.runtime, &store, CALLERS, 100 * size, "without")?;
    let records = 100_000 * size as u64;
    fill(place, 1_000_000_000, 1_000_000_000 + records, "1")?;
    let sweeper = std::sync::Arc::clone(&store);
    let begin = Instant::now();
    let sweep = place.runtime.spawn(async move {
        let swept = sweeper.sweep(usize::MAX).await;
        (swept, begin.elapsed())
    });
    let mut with = load::run(place.runtime, &store, CALLERS, 100 * size, "with")?;
    let (swept, took) = place.runtime.block_on(sweep)?;
    let swept = swept?;
    if swept as u64 != records {
        return Err(format!("{swept} of {records} were forgotten").into());
    }
    place.runtime.block_on(store.close());
    let rate = swept as f64 / took.as_secs_f64();
    table.row("postgres: sweep, beside 64 callers", rate, "/s", format!("{swept} records"));
    let (before, during) = (without.claims.percentile_us(0.99), with.claims.percentile_us(0.99));
    let note = format!("{:.2} × the {:.2} ms without", during / before, before / 1e3);
    table.row("postgres: claim p99 while sweeping", during / 1e3, "ms", note);
    Ok(())
}
