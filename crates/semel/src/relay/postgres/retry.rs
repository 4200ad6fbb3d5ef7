//! Retries parked events that are due, in order within each key.

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::leased_session::{LeasedSession, get};
use super::read::bound;
use crate::relay::outbox_reader::{LeftOut, OutboxReaderError, Pending, Settled};
use crate::relay::parking::{OF_KEY_MAX, Retry, RetryBatch, RetryResult};
use crate::relay::row::Columns;
use crate::store::postgres::statement::Sql;

impl LeasedSession {
    fn owned(&self) -> Vec<(i16, i64)> {
        let partitions = self
            .groups
            .iter()
            .flat_map(|group| group.partitions.iter().copied().zip(group.epochs.iter().copied()));
        partitions.collect()
    }

    /// Due parked events of our partitions.
    pub(in crate::relay) async fn due(&self) -> Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError> {
        let partitions: Vec<i16> = self.owned().into_iter().map(|(partition, _)| partition).collect();
        let values: [&(dyn ToSql + Sync); 3] =
            [&partitions, &OF_KEY_MAX, &bound(self.outbox.options.bounds.bytes_max)];
        let rows = self.query(&self.outbox.statements.due, &values).await?;
        self.parked(&rows)
    }

    /// These events, if they are still parked.
    pub(in crate::relay) async fn still_parked(
        &self,
        ns: &[i64],
    ) -> Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError> {
        let rows = self.query(&self.outbox.statements.still_parked, &[&ns]).await?;
        self.parked(&rows)
    }

    fn parked(&self, rows: &[Row]) -> Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError> {
        let owned = self.owned();
        if owned.is_empty() || rows.is_empty() {
            return Ok(None);
        }
        let (mut tried, mut fence, mut events) = (RetryBatch::default(), Vec::new(), Vec::new());
        for row in rows {
            let partition: i16 = get(row, 14)?;
            if let Some(owned) = owned.iter().find(|(owned, _)| *owned == partition)
                && !fence.contains(owned)
            {
                fence.push(*owned);
            }
            let (n, key): (i64, String) = (get(row, 0)?, get(row, 13)?);
            if n == 0 {
                tried.empty.push(key);
                continue;
            }
            events.push(Columns::read(row, 1)?.pending(false));
            tried.ns.push(n);
            tried.keys.push(key);
            tried.due.push(get(row, 15)?);
        }
        Ok(Some((Retry { tried, fence }, events)))
    }

    /// Marks these as published if they are still parked: a sink that keeps the position has them.
    pub(in crate::relay) async fn published(
        &self,
        numbers: &[i64],
        left_out: &[LeftOut],
    ) -> Result<(), OutboxReaderError> {
        static PARKED: Sql = Sql {
            text: "SELECT n, parked_key FROM semel_outbox_parked
                   WHERE n = ANY ($1::bigint[]) AND NOT EXISTS (
                       SELECT FROM unnest($2::text[], $3::text[]) AS l (id, topic)
                       WHERE l.id::uuid = semel_outbox_parked.id
                         AND (l.topic IS NULL OR l.topic = semel_outbox_parked.topic)
                   ) ORDER BY n",
            types: &[Type::INT8_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY],
        };
        let ids: Vec<String> = left_out.iter().map(|left| left.event.to_string()).collect();
        let topics: Vec<Option<&str>> = left_out.iter().map(|left| left.topic.as_deref()).collect();
        let rows = self.query(&PARKED, &[&numbers, &ids, &topics]).await?;
        let Some(group) = self.groups.first().filter(|_| !rows.is_empty()) else { return Ok(()) };
        let fence = group.partitions.iter().copied().zip(group.epochs.iter().copied()).collect();
        let mut tried = RetryBatch::default();
        for row in &rows {
            tried.ns.push(get(row, 0)?);
            tried.keys.push(get(row, 1)?);
        }
        let settled = vec![Settled::Confirmed; tried.ns.len()];
        self.retried(&Retry { tried, fence }, &settled).await
    }

    /// Stores the results of a retry.
    pub(in crate::relay) async fn retried(
        &self,
        retry: &Retry,
        settled: &[Settled],
    ) -> Result<(), OutboxReaderError> {
        let RetryResult { confirmed, failed, errors, later, for_good, due, on } =
            &RetryResult::of(&retry.tried, settled);
        let pause_ms = self.outbox.options.retry_ms();
        let values: [&(dyn ToSql + Sync); 8] =
            [confirmed, failed, errors, later, for_good, due, on, &pause_ms];
        let (partitions, epochs): (Vec<i16>, Vec<i64>) = retry.fence.iter().copied().unzip();
        self.fenced(&self.outbox.statements.retried, (&partitions, &epochs), &values).await.map(drop)
    }
}
