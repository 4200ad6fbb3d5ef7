//! What it costs to know a message among many: the tail of marking with few and with many ids remembered.

use std::time::Instant;

use semel::inbox::{Identity, Inbox};
use uuid::Uuid;

use super::place::Place;
use crate::Failed;
use crate::table::Table;
use crate::times::Times;

const FEW: u64 = 100_000;
const CHUNK: u64 = 500_000;
const ROUNDS: usize = 3;
/// Messages of one transaction.
const BATCH: usize = 100;

/// What the ids look like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ids {
    /// UUIDs by time, as semel's relay sends them: new marks lie together.
    ByTime,
    /// Any text: each mark is somewhere else.
    Text,
}

impl Ids {
    fn name(self) -> &'static str {
        match self {
            Self::ByTime => "ids by time",
            Self::Text => "ids of any text",
        }
    }

    /// The sixteen bytes of a mark, as SQL makes them of a number: over the two weeks for which marks are kept.
    fn mark(self, ids: u64) -> String {
        match self {
            Self::ByTime => format!(
                "decode(lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - 1209600000 \
                 + n * 1209600000 / {ids}), 12, '0'), 'hex') || substr(sha256(int8send(n)), 1, 10)"
            ),
            Self::Text => "substr(sha256(int8send(n)), 1, 16)".to_owned(),
        }
    }

    fn identity(self) -> Result<Identity, Failed> {
        let id = match self {
            Self::ByTime => Uuid::now_v7().to_string(),
            Self::Text => format!("order {}", fastrand::u64(..)),
        };
        Ok(Identity::new("payments", &id)?)
    }
}

pub(super) async fn measure(place: &Place, size: usize, ids: u64, table: &mut Table) -> Result<(), Failed> {
    for kind in [Ids::ByTime, Ids::Text] {
        place.empty().await?;
        let (mut filled, mut few) = (0, None);
        for ids in [FEW, ids.max(FEW)] {
            fill(place, kind, filled, ids).await?;
            filled = ids;
            mark(place, kind, 20).await?;
            let mut best: Option<(f64, f64)> = None;
            for _ in 0..ROUNDS {
                let mut times = mark(place, kind, 100 * size).await?;
                let tail = (times.percentile_us(0.99), times.percentile_us(0.5));
                best = Some(best.map_or(tail, |best| if tail.0 < best.0 { tail } else { best }));
            }
            let (p99, p50) = best.unwrap_or_default();
            let note = match few {
                None => format!("p50 {:.2} ms; the floor", p50 / 1e3),
                Some(few) => format!("p50 {:.2} ms; {:.2} × the floor (wanted: 1.5)", p50 / 1e3, p99 / few),
            };
            few.get_or_insert(p99);
            let name = format!("inbox: {BATCH} messages p99, {}, {ids} remembered", kind.name());
            table.row(&name, p99 / 1e3, "ms", note);
        }
    }
    Ok(())
}

/// Marks, made by the server itself.
async fn fill(place: &Place, kind: Ids, from: u64, to: u64) -> Result<(), Failed> {
    let mut at = from;
    while at < to {
        let end = (at + CHUNK).min(to);
        place
            .run(&format!(
                "INSERT INTO semel_inbox (batch, id) SELECT -(n / 500) - 1, {} \
                 FROM generate_series({at} + 1, {end}::bigint) n ON CONFLICT (id) DO NOTHING",
                kind.mark(to)
            ))
            .await?;
        at = end;
        eprintln!("inbox: {at} ids …");
    }
    place
        .run(&format!(
            "INSERT INTO semel_inbox_batch (began_at, ended_at, messages, consumer, source, ids)
             SELECT (extract(epoch FROM now()) * 1000)::bigint, 1, 500, 'others', 'payments', ''::bytea
             FROM generate_series({from} / 500 + 1, {to} / 500)"
        ))
        .await?;
    place.run("VACUUM ANALYZE semel_inbox").await?;
    place.run("CHECKPOINT").await
}

/// Times of transactions that mark new messages and do nothing else.
async fn mark(place: &Place, kind: Ids, transactions: usize) -> Result<Times, Failed> {
    let inbox = Inbox::new("bench")?;
    let mut times = Times::default();
    for _ in 0..transactions {
        let messages = (0..BATCH).map(|_| kind.identity()).collect::<Result<Vec<_>, _>>()?;
        let begin = Instant::now();
        let mut tx = place.pool.begin().await?;
        let marked = inbox.mark_all_tx(&mut tx, &messages).await?;
        let fresh = marked.fresh().count();
        marked.end_tx(&mut tx).await?;
        tx.commit().await?;
        times.push(begin.elapsed());
        if fresh != BATCH {
            return Err(format!("{fresh} of {BATCH} new messages were taken for new").into());
        }
    }
    Ok(times)
}
