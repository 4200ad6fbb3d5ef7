//! What a person asks and decides about parked events.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::MysqlOutbox;
use super::chunk::{EVENT, columns};
use super::link::{NOW, get};
use crate::relay::poll::row::named;
use crate::relay::source::{Parked, SourceError};
use crate::store::mysql::literal;
use crate::store::mysql::session::Brought;
use crate::store::{Fate, StoreError};

/// Now, and in any case another time than before: a relay that has just tried tells by it that a person was here.
fn at_once() -> String {
    format!("{NOW} + (COALESCE(due_at, 0) = {NOW})")
}

impl MysqlOutbox {
    pub(super) async fn ask(&self, text: String) -> Result<Vec<Brought>, SourceError> {
        let open = self.dial.open().await;
        let mut session = open.map_err(|trouble| trouble.explain(&self.server, Fate::NotApplied))?;
        let brought = session.run(text).await;
        session.close().await;
        Ok(brought.map_err(|failed| failed.trouble.explain(&self.server, Fate::InDoubt))?)
    }

    /// Parked and held events, in the order they would be published in: of one key, or of all.
    pub async fn parked(&self, key: Option<&str>, events_max: usize) -> Result<Vec<Parked>, SourceError> {
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

    /// Has a parked key tried again now, or with `None` all of them. Tells how many.
    pub async fn retry(&self, key: Option<&str>) -> Result<u64, SourceError> {
        let of = key
            .map_or_else(String::new, |key| format!("WHERE hash = UNHEX(SHA2({}, 256))", literal::text(key)));
        let text = format!("UPDATE semel_outbox_parked_key SET due_at = {} {of}", at_once());
        Ok(self.ask(text).await?.pop().unwrap_or_default().matched)
    }

    /// The id as the table has it, where it is no UUID.
    async fn written(&self, id: Uuid) -> Result<String, SourceError> {
        let odd = "SELECT DISTINCT id FROM semel_outbox_parked \
                   WHERE id NOT LIKE '________-____-____-____-____________' LIMIT 10000";
        let rows = self.ask(odd.to_owned()).await?.pop().unwrap_or_default().rows;
        for row in &rows {
            let text: String = get(row, 0)?;
            if named(&text) == id {
                return Ok(literal::text(&text));
            }
        }
        Ok(literal::text(&id.to_string()))
    }

    /// Gives a parked event up for ever; what is behind it in its key goes on. `false`: it is not parked.
    pub async fn skip(&self, id: Uuid) -> Result<bool, SourceError> {
        let id = self.written(id).await?;
        let text = format!(
            "START TRANSACTION;
             UPDATE semel_outbox_parked_key k JOIN semel_outbox_parked p ON p.hash = k.hash
                 SET k.due_at = {}, k.tries = 0 WHERE p.id = {id};
             DELETE FROM semel_outbox_parked WHERE id = {id};
             COMMIT",
            at_once()
        );
        Ok(self.ask(text).await?.get(2).is_some_and(|brought| brought.matched > 0))
    }
}
