//! Sagas that sleep or are parked, beside others at work: what they cost in memory, and in speed.

use std::time::Duration;

use super::CALLERS;
use super::load::{Load, Loaded};
use super::place::Place;
use super::shop::{self, Kind};
use crate::Failed;
use crate::table::Table;

/// Half of them sleep for a year, half are parked; each has done a step.
const SQLITE: [&str; 2] = [
    "INSERT INTO semel_saga (id, status, reason, epoch, due_at, signals, cancelled, name, version, scope, operation, key, \
     recipe, digest, input, created_at) \
     WITH RECURSIVE g (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < ?1) \
     SELECT randomblob(32), iif(n % 2, 1, 3), iif(n % 2, NULL, 0), 1, \
     iif(n % 2, (unixepoch() + 31536000) * 1000 + n, NULL), 0, 0, 'remote', 1, 't:waits', 'remote', 'waits-' || n, 1, \
     zeroblob(32), CAST('\"order\"' AS BLOB), unixepoch() * 1000 FROM g",
    "INSERT INTO semel_saga_entry (saga, seq, kind, step, nth, op, attempt, epoch, at, input, body) \
     SELECT n, seq, seq, 'reserve', 0, 0, 1, 1, unixepoch() * 1000, iif(seq, NULL, CAST('\"order\"' AS BLOB)), \
     iif(seq, CAST('7' AS BLOB), NULL) FROM semel_saga, (SELECT 0 AS seq UNION ALL SELECT 1) WHERE scope = 't:waits'",
];
const POSTGRES: [&str; 2] = [
    "INSERT INTO semel_saga (id, status, reason, epoch, due_at, signals, cancelled, name, version, scope, operation, key, \
     recipe, digest, input, created_at) \
     SELECT sha256(('waits-' || n)::bytea), CASE n % 2 WHEN 1 THEN 1 ELSE 3 END, CASE n % 2 WHEN 0 THEN 0 END, 1, \
     CASE n % 2 WHEN 1 THEN (extract(epoch FROM now()) + 31536000)::bigint * 1000 + n END, 0, 0, 'remote', 1, 't:waits', \
     'remote', 'waits-' || n, 1, sha256(''), '\"order\"', extract(epoch FROM now())::bigint * 1000 \
     FROM generate_series(1, $1::bigint) n",
    "INSERT INTO semel_saga_entry (saga, seq, kind, step, nth, op, attempt, epoch, at, input, body) \
     SELECT n, seq, seq, 'reserve', 0, 0, 1, 1, s.created_at, CASE seq WHEN 0 THEN '\"order\"'::bytea END, \
     CASE seq WHEN 1 THEN '7'::bytea END FROM semel_saga s, generate_series(0, 1) seq \
     WHERE scope = 't:waits' AND $1::bigint > 0",
];

/// Rounds of both by turns: the machine's mood is the same for them.
const ROUNDS: usize = 7;

/// In two journals: one with only those at work, and a crowded one.
pub(super) async fn measure(
    place: &Place,
    crowded: &Place,
    parked: u64,
    size: usize,
    table: &mut Table,
) -> Result<(), Failed> {
    insert(crowded, i64::try_from(parked)?).await?;
    let before = crate::usage::resident(std::process::id())?;
    let mut loads = [Vec::new(), Vec::new()];
    let mut works = Vec::new();
    for place in [place, crowded] {
        works.push((place, shop::start(place.journal().await?, Kind::Remote)?));
    }
    for round in 0..ROUNDS {
        for ((place, (sagas, registered)), loads) in works.iter().zip(&mut loads) {
            let load = Load { kind: Kind::Remote, callers: CALLERS, sagas: 600 * size, round };
            loads.push(load.run_on(place, sagas, registered).await?);
        }
    }
    let after = crate::usage::resident(std::process::id())?;
    for (_, (sagas, _)) in &works {
        sagas.drain(Duration::from_secs(10)).await;
    }
    let [alone, beside] = loads.map(|loads| {
        let cpu = |load: &Loaded| load.cpu_ms + load.server_ms.unwrap_or_default();
        [median(&loads, |load| load.per_s), median(&loads, cpu)]
    });
    let name = place.name();
    let what = format!("{name}: three-step sagas beside {parked} that sleep or are parked");
    let ratio = format!("{:.2} × without them ({:.0}/s)", beside[0] / alone[0], alone[0]);
    table.row(&what, beside[0], "/s", ratio);
    let ratio = format!("{:.2} × without them, with the server", beside[1] / alone[1]);
    table.row(&format!("{name}: processor time of a saga beside them"), beside[1], "ms", ratio);
    let [before, after] = [before, after].map(|bytes| bytes as f64 / f64::from(1 << 20));
    let note = format!("{before:.1} MiB before any saga ran; both journals, {CALLERS} callers each");
    table.row(&format!("{name}: resident beside them"), after, "MiB", note);
    Ok(())
}

fn median(loads: &[Loaded], of: impl Fn(&Loaded) -> f64) -> f64 {
    let mut values: Vec<f64> = loads.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

async fn insert(place: &Place, parked: i64) -> Result<(), Failed> {
    match place {
        Place::Sqlite(path) => {
            let mut db = Place::sqlite(path)?;
            let tx = db.transaction()?;
            tx.execute(SQLITE[0], [parked])?;
            tx.execute(SQLITE[1], [])?;
            tx.commit()?;
            db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?;
        }
        Place::Postgres(schema) => {
            let client = Place::postgres(schema).await?;
            for insert in POSTGRES {
                client.execute(insert, &[&parked]).await?;
            }
            for alone in ["VACUUM ANALYZE semel_saga", "VACUUM ANALYZE semel_saga_entry", "CHECKPOINT"] {
                client.batch_execute(alone).await?;
            }
        }
    }
    Ok(())
}
