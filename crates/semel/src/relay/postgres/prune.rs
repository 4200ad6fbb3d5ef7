//! Retention: prunes published events. Also the lag: how much is left to publish.

use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::leased_session::{LeasedSession, get};
use super::partition_group::PartitionGroup;
use crate::relay::outbox_reader::{Lag, OutboxReaderError, Pruned};
use crate::store::postgres::statement::Sql;

/// Tables in the ring, and how many numbers each takes in its turn, as a power of two. Must match the schema.
const RING: i64 = 4;
const TURN_BITS: u32 = 20;
/// Keys deleted by one statement, and statements in one call.
const CHUNK_ROWS: i64 = 1_000;
const CHUNKS_MAX: u32 = 20;
/// Counting stops here.
const COUNT_MAX: i64 = 10_000;

impl LeasedSession {
    /// Truncates the tables of the ring that may be pruned, and deletes old keys. The table written to next need not be
    /// old: better now, while it has no writers, than never.
    pub(in crate::relay) async fn prune(
        &mut self,
        older_than: Duration,
    ) -> Result<Pruned, OutboxReaderError> {
        static FILLED: Sql = Sql {
            text: "SELECT (SELECT last_value FROM semel_outbox_seq), ARRAY[
                       EXISTS (SELECT FROM semel_outbox_0), EXISTS (SELECT FROM semel_outbox_1),
                       EXISTS (SELECT FROM semel_outbox_2), EXISTS (SELECT FROM semel_outbox_3)]",
            types: &[],
        };
        let age_ms = i64::try_from(older_than.as_millis()).unwrap_or(i64::MAX).min(1 << 48);
        let before = self.query(&FILLED, &[]).await?;
        let Some(row) = before.first() else { return Ok(Pruned::default()) };
        let (last, filled): (i64, Vec<bool>) = (get(row, 0)?, get(row, 1)?);
        let now = (last >> TURN_BITS) % RING;
        let mut pruned = Pruned::default();
        if filled.contains(&true) {
            self.record_low().await?;
        }
        for (part, filled) in (0..RING).zip(filled) {
            if !filled {
                continue;
            }
            let next = part == (now + 1) % RING;
            self.empty(part, if next { 0 } else { age_ms }).await?;
            let gone = Sql { text: EMPTY[usize::try_from(part).unwrap_or(0)], types: &[] };
            pruned.tables += u32::from(self.query(&gone, &[]).await?.is_empty());
        }
        for _ in 0..CHUNKS_MAX {
            let rows = self.query(&self.outbox.statements.prune_keys, &[&age_ms, &CHUNK_ROWS]).await?.len();
            pruned.rows += rows as u64;
            self.heartbeat_if_due().await?;
            if rows < usize::try_from(CHUNK_ROWS).unwrap_or(0) {
                break;
            }
        }
        Ok(pruned)
    }

    /// Records completed windows: empty polls have moved `low` in memory only.
    async fn record_low(&mut self) -> Result<(), OutboxReaderError> {
        for at in 0..self.groups.len() {
            let Some(group) = self.groups.get(at).filter(|group| group.window.is_none()) else { continue };
            let rows =
                self.fenced(&self.outbox.statements.settle, group.fence(), &[&group.low.text()]).await?;
            self.moved(at, &rows)?;
        }
        Ok(())
    }

    /// One statement and so one transaction: it cannot stop half way with the lock held.
    async fn empty(&self, part: i64, age_ms: i64) -> Result<(), OutboxReaderError> {
        let text = include_str!("sql/prune.sql")
            .replace("{part}", &part.to_string())
            .replace("{age_ms}", &age_ms.to_string());
        match self.session.batch(&text).await {
            // The table has an active writer. A later call tries again.
            Err(error) if error.is_of_locks() => Ok(()),
            answered => answered.map_err(|error| error.explain().into()),
        }
    }

    pub(in crate::relay) async fn lag(&self) -> Result<Lag, OutboxReaderError> {
        let mut lag = Lag::default();
        for PartitionGroup { partitions, epochs, low, window, .. } in &self.groups {
            let high = window.as_ref().map(|window| window.high.text());
            let after = window.as_ref().map_or(0, |window| window.after);
            let values: [&(dyn ToSql + Sync); 5] = [&low.text(), &high, &after, partitions, &COUNT_MAX];
            let rows = self.read_by_index(&self.outbox.statements.lag, &values).await?;
            let Some(row) = rows.first() else { continue };
            let (events, oldest, parked): (i64, Option<i64>, i64) =
                (get(row, 0)?, get(row, 1)?, get(row, 2)?);
            let oldest = oldest.map(|ms| Duration::from_millis(ms.max(0).unsigned_abs()));
            lag.events = (lag.events + events.unsigned_abs()).min(COUNT_MAX.unsigned_abs());
            lag.oldest = lag.oldest.max(oldest);
            lag.parked = parked.unsigned_abs();
            lag.partitions += u32::try_from(partitions.len()).unwrap_or(0);
            lag.epoch = lag.epoch.max(epochs.iter().map(|epoch| epoch.unsigned_abs()).max());
        }
        Ok(lag)
    }
}

const EMPTY: [&str; 4] = [
    "SELECT 1 WHERE EXISTS (SELECT FROM semel_outbox_0)",
    "SELECT 1 WHERE EXISTS (SELECT FROM semel_outbox_1)",
    "SELECT 1 WHERE EXISTS (SELECT FROM semel_outbox_2)",
    "SELECT 1 WHERE EXISTS (SELECT FROM semel_outbox_3)",
];
