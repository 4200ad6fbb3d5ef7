//! A chunk of events: found, recorded, read, acked.

use super::leased_session::{LeasedMysqlSession, NOW, PartitionCursor, get};
use super::{PartitionsChunk, PartitionsCursor};
use crate::relay::outbox_reader::OutboxReaderError;
use crate::relay::parking::ParkedRows;
use crate::relay::poll::reader::ChunkRead;
use crate::relay::row::Columns;
use crate::store::mysql::literal;

/// The ordering key of an event.
pub(super) const KEY: &str = "COALESCE(o.`key`, o.aggregate_id, o.id)";

/// The event, in twelve columns. Converted, because the driver reads text in a binary collation as bytes.
pub(super) const EVENT: &str = "CONVERT(o.id USING utf8mb4), CONVERT(o.topic USING utf8mb4), \
    CONVERT(o.type USING utf8mb4), CONVERT(o.`key` USING utf8mb4), CONVERT(o.aggregate_type USING utf8mb4), \
    CONVERT(o.aggregate_id USING utf8mb4), CONVERT(o.content_type USING utf8mb4), \
    CONVERT(o.headers USING utf8mb4), CONVERT(o.idempotency_key USING utf8mb4), \
    CONVERT(o.trace_parent USING utf8mb4), o.intent, o.payload";

impl LeasedMysqlSession {
    /// The cursors of the recorded chunk, if there is one.
    pub(super) fn recorded(&self) -> Vec<PartitionCursor> {
        self.cursors.iter().copied().filter(|cursor| cursor.recorded.is_some()).collect()
    }

    /// The recorded chunk, or the next one, recorded first.
    pub(super) async fn chunk(&mut self) -> Result<Option<ChunkRead<Self>>, OutboxReaderError> {
        let mut recorded = self.recorded();
        if recorded.is_empty() {
            recorded = self.find().await?;
            if recorded.is_empty() {
                return Ok(None);
            }
            let cases: Vec<String> = recorded
                .iter()
                .map(|cursor| {
                    format!("WHEN {} THEN {}", cursor.partition, cursor.recorded.unwrap_or(cursor.after))
                })
                .collect();
            let set = format!("until_n = CASE part {} END", cases.join(" "));
            self.fenced(&fence(&recorded), &set, &[]).await?;
            for cursor in &mut self.cursors {
                if let Some(found) = recorded.iter().find(|found| found.partition == cursor.partition) {
                    cursor.recorded = found.recorded;
                }
            }
        }
        let selects: Vec<String> = recorded
            .iter()
            .map(|cursor| {
                format!(
                    "(SELECT {EVENT}, o.part, o.n, EXISTS (SELECT 1 FROM semel_outbox_parked_key p
                          WHERE p.hash = UNHEX(SHA2({KEY}, 256)))
                      FROM semel_outbox o WHERE o.part = {} AND o.n > {} AND o.n <= {} ORDER BY o.n)",
                    cursor.partition,
                    cursor.after,
                    cursor.recorded.unwrap_or(cursor.after)
                )
            })
            .collect();
        // Separate, because a UNION need not keep the order of its SELECTs.
        let (mut numbers, mut events) = (Vec::new(), Vec::new());
        for row in &self.rows(&selects.join("; ")).await? {
            numbers.push((get(row, 12)?, get(row, 13)?));
            let held = get::<i64>(row, 14)? != 0;
            events.push(Columns::read(row, 0)?.pending(held));
        }
        let (cursor, chunk) =
            (PartitionsCursor::of(&recorded), PartitionsChunk { cursors: recorded, numbers });
        Ok(Some(ChunkRead { cursor, events, chunk }))
    }

    /// How far the next chunk goes in each partition, by the sizes alone.
    async fn find(&mut self) -> Result<Vec<PartitionCursor>, OutboxReaderError> {
        let count = self.cursors.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let bounds = self.outbox.options.bounds;
        let most = (bounds.events_max / count * 2).clamp(1, bounds.events_max);
        self.first_partition = (self.first_partition + 1) % count;
        let mut cursors = self.cursors.clone();
        cursors.rotate_left(self.first_partition);
        let selects: Vec<String> = cursors
            .iter()
            .map(|cursor| {
                format!(
                    "(SELECT part, n, LENGTH(payload) FROM semel_outbox WHERE part = {} AND n > {}
                      ORDER BY n LIMIT {most})",
                    cursor.partition, cursor.after
                )
            })
            .collect();
        let mut sizes: Vec<(i16, i64, i64)> = Vec::new();
        for row in &self.rows(&selects.join(" UNION ALL ")).await? {
            sizes.push((get(row, 0)?, get(row, 1)?, get(row, 2)?));
        }
        let (mut events, mut bytes) = (0, 0);
        for cursor in &mut cursors {
            let mut of_part: Vec<_> = sizes.iter().filter(|(part, ..)| *part == cursor.partition).collect();
            of_part.sort_unstable();
            for (_, n, size) in of_part {
                if events >= bounds.events_max || bytes >= bounds.bytes_max {
                    break;
                }
                events += 1;
                bytes += usize::try_from(*size).unwrap_or(0);
                cursor.recorded = Some(*n);
            }
        }
        cursors.retain(|cursor| cursor.recorded.is_some());
        Ok(cursors)
    }

    /// Acks the chunk, and parks the rest. `parked.seqs` are indices into `numbers`.
    pub(super) async fn advance(
        &mut self,
        cursors: &[PartitionCursor],
        numbers: &[(i16, i64)],
        parked: &ParkedRows,
    ) -> Result<(), OutboxReaderError> {
        let mut also = Vec::new();
        for (at, index) in parked.seqs.iter().enumerate() {
            let Some((part, n)) = usize::try_from(*index).ok().and_then(|index| numbers.get(index)) else {
                continue;
            };
            let flag = |flags: &[bool]| flags.get(at).copied().unwrap_or(false);
            let error = parked.errors.get(at).cloned().flatten();
            let Some(key) = parked.keys.get(at).map(|key| literal::text(key)) else { continue };
            if error.is_some() {
                let due = if flag(&parked.for_good) {
                    "NULL".to_owned()
                } else {
                    format!("{NOW} + {}", self.outbox.options.retry_ms())
                };
                also.push(format!(
                    "INSERT INTO semel_outbox_parked_key (hash, part, due_at)
                     SELECT UNHEX(SHA2({key}, 256)), {part}, {due} FROM semel_outbox o
                     WHERE o.part = {part} AND o.n = {n} ON DUPLICATE KEY UPDATE part = VALUES(part)"
                ));
            }
            let error = error.map_or_else(|| "NULL".to_owned(), |error| literal::text(&error));
            also.push(format!(
                "INSERT INTO semel_outbox_parked
                     (hash, parked_key, error, made_at, id, topic, type, `key`, aggregate_type, aggregate_id,
                      content_type, headers, idempotency_key, trace_parent, intent, payload)
                 SELECT UNHEX(SHA2({key}, 256)), {key}, {error}, o.made_at, o.id, o.topic, o.type, o.`key`,
                        o.aggregate_type, o.aggregate_id, o.content_type, o.headers, o.idempotency_key, o.trace_parent,
                        o.intent, o.payload
                 FROM semel_outbox o WHERE o.part = {part} AND o.n = {n}"
            ));
        }
        // MySQL assigns from left to right.
        self.fenced(&fence(cursors), "after_n = COALESCE(until_n, after_n), until_n = NULL", &also).await?;
        for cursor in &mut self.cursors {
            if let Some(done) = cursors.iter().find(|done| done.partition == cursor.partition) {
                cursor.after = done.recorded.unwrap_or(cursor.after);
                cursor.recorded = None;
            }
        }
        Ok(())
    }
}

/// The fence for changes to these partitions: each with the epoch of its lease.
fn fence(cursors: &[PartitionCursor]) -> Vec<(i16, i64)> {
    cursors.iter().map(|cursor| (cursor.partition, cursor.epoch)).collect()
}
