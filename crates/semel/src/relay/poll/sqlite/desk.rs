//! What a person asks and decides about parked events.

use std::time::{Duration, SystemTime};

use rusqlite::{Connection, params};
use uuid::Uuid;

use super::SqliteOutbox;
use super::table::{Table, columns, explain};
use crate::relay::poll::row::named;
use crate::relay::source::{Parked, SourceError};

const LIST: &str = "SELECT id, topic, type, key, aggregate_type, aggregate_id, content_type, headers, \
     idempotency_key, trace_parent, intent, payload, parked_key, error, parked_at \
     FROM semel_outbox_parked WHERE ?1 IS NULL OR parked_key = ?1 ORDER BY n LIMIT ?2";
/// In any case to another time than before: a relay that has just tried tells by it that a person was here.
const RETRY: &str = "UPDATE semel_outbox_parked_key SET due_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) \
     + (due_at IS CAST(unixepoch('subsec') * 1000 AS INTEGER)) \
     WHERE ?1 IS NULL OR key = ?1";

/// The id as the table has it, where it is no UUID.
fn written(tx: &Connection, id: Uuid) -> rusqlite::Result<String> {
    let odd = "SELECT DISTINCT id FROM semel_outbox_parked \
               WHERE id NOT LIKE '________-____-____-____-____________' LIMIT 10000";
    let mut odd = tx.prepare(odd)?;
    for text in odd.query_map([], |row| row.get::<_, String>(0))? {
        let text = text?;
        if named(&text) == id {
            return Ok(text);
        }
    }
    Ok(id.to_string())
}

impl SqliteOutbox {
    /// Parked and held events, in the order they would be published in: of one key, or of all.
    pub async fn parked(&self, key: Option<&str>, events_max: usize) -> Result<Vec<Parked>, SourceError> {
        let (key, path) = (key.map(str::to_owned), self.path.clone());
        self.with(move |table: &Table| {
            let list = || {
                let mut statement = table.connection.prepare(LIST)?;
                let most = i64::try_from(events_max).unwrap_or(i64::MAX);
                let rows = statement.query_map(params![key, most], |row| {
                    let ms: i64 = row.get(14)?;
                    Ok(Parked {
                        key: row.get(12)?,
                        event: columns(row)?.event(),
                        error: row.get(13)?,
                        since: SystemTime::UNIX_EPOCH + Duration::from_millis(ms.max(0).unsigned_abs()),
                    })
                })?;
                rows.collect::<Result<Vec<_>, rusqlite::Error>>()
            };
            list().map_err(|error| explain(&path, &error))
        })
        .await
    }

    /// Has a parked key tried again now, or with `None` all of them. Tells how many.
    pub async fn retry(&self, key: Option<&str>) -> Result<u64, SourceError> {
        let (key, path) = (key.map(str::to_owned), self.path.clone());
        self.with(move |table: &Table| {
            let due = table.connection.execute(RETRY, params![key]);
            due.map(|keys| keys as u64).map_err(|error| explain(&path, &error))
        })
        .await
    }

    /// Gives a parked event up for ever; what is behind it in its key goes on. `false`: it is not parked.
    pub async fn skip(&self, id: Uuid) -> Result<bool, SourceError> {
        let path = self.path.clone();
        self.with(move |table: &Table| {
            let skip = || {
                let tx = table.connection.unchecked_transaction()?;
                let id = written(&tx, id)?;
                let mut gone =
                    tx.prepare("DELETE FROM semel_outbox_parked WHERE id = ?1 RETURNING parked_key")?;
                let keys: Vec<String> = gone.query_map([id], |row| row.get(0))?.collect::<Result<_, _>>()?;
                drop(gone);
                for key in &keys {
                    tx.execute(RETRY, params![key])?;
                }
                tx.commit()?;
                Ok(!keys.is_empty())
            };
            skip().map_err(|error| explain(&path, &error))
        })
        .await
    }
}
