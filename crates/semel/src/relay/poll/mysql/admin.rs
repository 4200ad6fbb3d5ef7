//! Operator commands: list, retry and skip parked events.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::MysqlOutbox;
use super::chunk::{EVENT, columns};
use super::leased_session::{NOW, get};
use crate::relay::outbox_reader::{OutboxReaderError, Parked};
use crate::relay::poll::row::event_uuid;
use crate::relay::poll::to_skip;
use crate::store::mysql::literal;
use crate::store::mysql::session::Brought;
use crate::store::{Fate, StoreError};

/// Now, but never the same time as before: by that a relay that just retried sees that an operator was here.
fn at_once() -> String {
    format!("{NOW} + (COALESCE(due_at, 0) = {NOW})")
}

impl MysqlOutbox {
    pub(super) async fn ask(&self, text: String) -> Result<Vec<Brought>, OutboxReaderError> {
        let open = self.dial.open().await;
        let mut session = open.map_err(|error| error.explain(&self.server, Fate::NotApplied))?;
        let brought = session.run(text).await;
        session.close().await;
        Ok(brought.map_err(|failed| failed.trouble.explain(&self.server, Fate::InDoubt))?)
    }

    /// Parked and held events, of one key or of all, in the order in which they would be published.
    pub async fn parked(
        &self,
        key: Option<&str>,
        events_max: usize,
    ) -> Result<Vec<Parked>, OutboxReaderError> {
        let of = key.map_or_else(String::new, |key| {
            format!("WHERE o.hash = UNHEX(SHA2({}, 256))", literal::text(key))
        });
        let text = format!(
            "SELECT {EVENT}, CONVERT(o.parked_key USING utf8mb4), CONVERT(o.error USING utf8mb4),
                    CAST(UNIX_TIMESTAMP(o.parked_at) * 1000 AS SIGNED)
             FROM semel_outbox_parked o {of} ORDER BY o.n LIMIT {events_max}"
        );
        let rows = self.ask(text).await?.pop().unwrap_or_default().rows;
        let parked = rows.iter().map(|row| {
            let ms: i64 = get(row, 14)?;
            Ok(Parked {
                key: get(row, 12)?,
                event: columns(row)?.event(),
                error: get(row, 13)?,
                since: SystemTime::UNIX_EPOCH + Duration::from_millis(ms.max(0).unsigned_abs()),
            })
        });
        Ok(parked.collect::<Result<_, StoreError>>()?)
    }

    /// Retries a parked key now, or all of them with `None`. Returns the number of keys.
    pub async fn retry(&self, key: Option<&str>) -> Result<u64, OutboxReaderError> {
        let of = key
            .map_or_else(String::new, |key| format!("WHERE hash = UNHEX(SHA2({}, 256))", literal::text(key)));
        let text = format!("UPDATE semel_outbox_parked_key SET due_at = {} {of}", at_once());
        Ok(self.ask(text).await?.pop().unwrap_or_default().matched)
    }

    /// Number and topic of the parked events with this id. A stored id that is not a UUID is hashed into one.
    async fn of_id(&self, id: Uuid) -> Result<Vec<(i64, String)>, OutboxReaderError> {
        let text = format!(
            "SELECT n, CONVERT(topic USING utf8mb4), CONVERT(id USING utf8mb4) FROM semel_outbox_parked
             WHERE id = {} OR id NOT LIKE '________-____-____-____-____________' ORDER BY n LIMIT 10000",
            literal::text(&id.to_string())
        );
        let rows = self.ask(text).await?.pop().unwrap_or_default().rows;
        let mut found = Vec::new();
        for row in &rows {
            let (n, topic, text): (i64, String, String) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
            if event_uuid(&text) == id {
                found.push((n, topic));
            }
        }
        Ok(found)
    }

    /// Skips a parked event for good, so that the events behind it in its key continue. `false`: it is not parked.
    ///
    /// # Errors
    /// Also if events with this id are parked on several topics: see [`skip_on`](Self::skip_on).
    pub async fn skip(&self, id: Uuid) -> Result<bool, OutboxReaderError> {
        self.give_up(id, None).await
    }

    /// Like [`skip`](Self::skip), for the event with this id on this topic.
    pub async fn skip_on(&self, id: Uuid, topic: &str) -> Result<bool, OutboxReaderError> {
        self.give_up(id, Some(topic)).await
    }

    async fn give_up(&self, id: Uuid, topic: Option<&str>) -> Result<bool, OutboxReaderError> {
        let ns = to_skip(id, self.of_id(id).await?, topic)?;
        if ns.is_empty() {
            return Ok(false);
        }
        let ns: Vec<String> = ns.iter().map(ToString::to_string).collect();
        let ns = ns.join(",");
        let text = format!(
            "START TRANSACTION;
             UPDATE semel_outbox_parked_key k JOIN semel_outbox_parked p ON p.hash = k.hash
                 SET k.due_at = {}, k.tries = 0 WHERE p.n IN ({ns});
             DELETE FROM semel_outbox_parked WHERE n IN ({ns});
             COMMIT",
            at_once()
        );
        Ok(self.ask(text).await?.get(2).is_some_and(|brought| brought.matched > 0))
    }
}
