//! Retries parked events that are due, in order within each key.

use super::chunk::EVENT;
use super::leased_session::{LeasedMysqlSession, NOW, get};
use crate::relay::outbox_reader::{OutboxReaderError, Pending, Settled};
use crate::relay::parking::{OF_KEY_MAX, Retry, RetryBatch, RetryResult};
use crate::relay::row::Columns;
use crate::store::mysql::literal;

impl LeasedMysqlSession {
    /// Due parked events of our partitions (column `part`). Keys are hashes in hexadecimal.
    pub(super) async fn due(&mut self) -> Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError> {
        let (mut tried, mut fence, mut events, mut bytes) =
            (RetryBatch::default(), Vec::new(), Vec::new(), 0);
        let owned: Vec<String> = self.cursors.iter().map(|cursor| cursor.partition.to_string()).collect();
        if owned.is_empty() {
            return Ok(None);
        }
        let due = format!(
            "SELECT HEX(hash), part, due_at FROM semel_outbox_parked_key WHERE due_at <= {NOW} AND part IN ({})
             ORDER BY due_at LIMIT 100",
            owned.join(",")
        );
        for row in &self.rows(&due).await? {
            let (hash, part, due): (String, i16, Option<i64>) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
            self.fence_by(part, &mut fence);
            let text = format!(
                "SELECT {EVENT}, o.n FROM semel_outbox_parked o WHERE o.hash = UNHEX('{hash}')
                 ORDER BY o.n LIMIT {OF_KEY_MAX}"
            );
            let rows = self.rows(&text).await?;
            if rows.is_empty() {
                tried.empty.push(hash);
                continue;
            }
            for row in &rows {
                let pending = Columns::read(row, 0)?.pending(false);
                bytes += pending.event.payload().len();
                events.push(pending);
                tried.ns.push(get(row, 12)?);
                tried.keys.push(hash.clone());
                tried.due.push(due);
            }
            if bytes >= self.outbox.options.bounds.bytes_max {
                break;
            }
        }
        let any = !tried.ns.is_empty() || !tried.empty.is_empty();
        Ok(any.then_some((Retry { tried, fence }, events)))
    }

    /// Adds a partition of ours to those under whose epochs something is stored.
    fn fence_by(&self, part: i16, fence: &mut Vec<(i16, i64)>) {
        if let Some(cursor) = self.cursors.iter().find(|cursor| cursor.partition == part)
            && !fence.contains(&(part, cursor.epoch))
        {
            fence.push((part, cursor.epoch));
        }
    }

    /// These events, if they are still parked.
    pub(super) async fn still_parked(
        &mut self,
        ns: &[i64],
    ) -> Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError> {
        let (mut tried, mut fence, mut events) = (RetryBatch::default(), Vec::new(), Vec::new());
        let ns: Vec<String> = ns.iter().map(ToString::to_string).collect();
        let text = format!(
            "SELECT {EVENT}, o.n, HEX(o.hash), k.part, k.due_at FROM semel_outbox_parked o
             JOIN semel_outbox_parked_key k ON k.hash = o.hash WHERE o.n IN ({}) ORDER BY o.n",
            ns.join(",")
        );
        for row in &self.rows(&text).await? {
            let part: i16 = get(row, 14)?;
            self.fence_by(part, &mut fence);
            events.push(Columns::read(row, 0)?.pending(false));
            tried.ns.push(get(row, 12)?);
            tried.keys.push(get(row, 13)?);
            tried.due.push(get(row, 15)?);
        }
        Ok((!events.is_empty()).then_some((Retry { tried, fence }, events)))
    }

    /// Stores the results of a retry.
    pub(super) async fn retried(
        &mut self,
        retry: &Retry,
        settled: &[Settled],
    ) -> Result<(), OutboxReaderError> {
        let retried = RetryResult::of(&retry.tried, settled);
        let mut also = Vec::new();
        if !retried.confirmed.is_empty() {
            let gone: Vec<String> = retried.confirmed.iter().map(ToString::to_string).collect();
            also.push(format!("DELETE FROM semel_outbox_parked WHERE n IN ({})", gone.join(",")));
        }
        for (n, error) in retried.failed.iter().zip(&retried.errors) {
            let error = literal::text(error);
            also.push(format!("UPDATE semel_outbox_parked SET error = {error} WHERE n = {n}"));
        }
        let retry_ms = self.outbox.options.retry_ms();
        for ((hash, for_good), seen) in retried.later.iter().zip(&retried.for_good).zip(&retried.due) {
            let seen = seen.map_or_else(|| "NULL".to_owned(), |seen| seen.to_string());
            let due = if *for_good {
                "NULL".to_owned()
            } else {
                format!("{NOW} + LEAST({retry_ms} * POW(2, LEAST(tries, 20)), GREATEST({retry_ms}, 60000))")
            };
            also.push(format!(
                "UPDATE semel_outbox_parked_key SET tries = tries + 1, due_at = {due}
                 WHERE hash = UNHEX('{hash}') AND due_at <=> {seen}"
            ));
        }
        for hash in &retried.on {
            also.push(format!(
                "UPDATE semel_outbox_parked_key SET tries = 0, due_at = {NOW} WHERE hash = UNHEX('{hash}')"
            ));
            also.push(format!(
                "DELETE FROM semel_outbox_parked_key WHERE hash = UNHEX('{hash}') AND NOT EXISTS (
                     SELECT 1 FROM semel_outbox_parked p WHERE p.hash = UNHEX('{hash}'))"
            ));
        }
        self.fenced(&retry.fence, "epoch = epoch", &also).await
    }
}
