//! Operator commands: list, retry and skip parked events.

use std::time::{Duration, SystemTime};

use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use super::SqliteOutbox;
use super::table::{Table, columns, explain, readable};
use crate::relay::outbox_reader::{OutboxReaderError, Parked};
use crate::relay::poll::row::event_uuid;
use crate::relay::poll::to_skip;

const LIST: &str = "SELECT id, topic, type, key, aggregate_type, aggregate_id, content_type, headers, \
     idempotency_key, trace_parent, intent, payload, parked_key, error, parked_at \
     FROM semel_outbox_parked WHERE ?1 IS NULL OR parked_key = ?1 ORDER BY n LIMIT ?2";
/// Never sets the same time as before: by that a relay that just retried sees that an operator was here.
const RETRY: &str = "UPDATE semel_outbox_parked_key SET due_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) \
     + (due_at IS CAST(unixepoch('subsec') * 1000 AS INTEGER)) \
     WHERE ?1 IS NULL OR key = ?1";

/// Number and topic of the parked events with this id. A stored id that is not a UUID is hashed into one.
fn of_id(tx: &Connection, id: Uuid) -> rusqlite::Result<Vec<(i64, String)>> {
    let query = "SELECT n, topic, id FROM semel_outbox_parked WHERE id = ?1 \
                 OR id NOT LIKE '________-____-____-____-____________' ORDER BY n LIMIT 10000";
    let mut statement = tx.prepare(query)?;
    let rows = statement
        .query_map([id.to_string()], |row| Ok((row.get(0)?, readable(row, 1)?, readable(row, 2)?)))?;
    let mut found = Vec::new();
    for row in rows {
        let (n, topic, text): (i64, String, String) = row?;
        if event_uuid(&text) == id {
            found.push((n, topic));
        }
    }
    Ok(found)
}

impl SqliteOutbox {
    /// Parked and held events, of one key or of all, in the order in which they would be published.
    pub async fn parked(
        &self,
        key: Option<&str>,
        events_max: usize,
    ) -> Result<Vec<Parked>, OutboxReaderError> {
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

    /// Retries a parked key now, or all of them with `None`. Returns the number of keys.
    pub async fn retry(&self, key: Option<&str>) -> Result<u64, OutboxReaderError> {
        let (key, path) = (key.map(str::to_owned), self.path.clone());
        self.with(move |table: &Table| {
            let due = table.connection.execute(RETRY, params![key]);
            due.map(|keys| keys as u64).map_err(|error| explain(&path, &error))
        })
        .await
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
        self.give_up(id, Some(topic.to_owned())).await
    }

    async fn give_up(&self, id: Uuid, topic: Option<String>) -> Result<bool, OutboxReaderError> {
        let path = self.path.clone();
        self.with(move |table: &Table| {
            let explained = |error| explain(&path, &error);
            let parked = of_id(&table.connection, id).map_err(explained)?;
            let ns = to_skip(id, parked, topic.as_deref())?;
            let skip = || {
                let tx = table.connection.unchecked_transaction()?;
                let mut any = false;
                for n in &ns {
                    let gone = "DELETE FROM semel_outbox_parked WHERE n = ?1 RETURNING parked_key";
                    let key: Option<String> = tx.query_row(gone, [n], |row| row.get(0)).optional()?;
                    if let Some(key) = key {
                        tx.execute(RETRY, params![key])?;
                        any = true;
                    }
                }
                tx.commit()?;
                Ok(any)
            };
            skip().map_err(explained)
        })
        .await
    }
}
