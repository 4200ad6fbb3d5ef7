//! Lists events and their status, and checks that a relay could run.

use rusqlite::{OptionalExtension, params};
use uuid::Uuid;

use super::SqliteOutbox;
use super::table::{EVENT, Table, columns, explain, readable};
use crate::relay::listing::{
    EventDetail, EventFilter, EventStatus, EventSummary, LOOKED_EVENTS_MAX, MissingPrivilege, moment,
};
use crate::relay::outbox_reader::OutboxReaderError;
use crate::relay::poll::row::event_uuid;

/// The status of the event `o`, by the cursor `c`.
const STANDING: &str = "coalesce(
        (SELECT CASE WHEN p.error IS NULL THEN 'held' ELSE 'parked' END
         FROM semel_outbox_parked p WHERE p.id = o.id AND p.topic = o.topic LIMIT 1),
        CASE WHEN o.seq <= c.after_seq THEN 'published' WHEN o.seq <= c.until_seq THEN 'sending' ELSE 'waiting' END)";

impl SqliteOutbox {
    /// Events with their status.
    pub async fn list(&self, listing: &EventFilter) -> Result<Vec<EventSummary>, OutboxReaderError> {
        let (listing, path) = (listing.clone(), self.path.clone());
        let from = match listing.unpublished {
            true => "seq > (SELECT after_seq FROM semel_outbox_cursor)",
            false => "true",
        };
        let order = if listing.oldest_first { "seq" } else { "seq DESC" };
        let query = format!(
            "SELECT o.id, o.topic, o.type, coalesce(o.key, o.aggregate_id), o.made_at, length(o.payload), {STANDING} AS standing
             FROM (SELECT * FROM semel_outbox WHERE {from} ORDER BY {order} LIMIT {LOOKED_EVENTS_MAX}) o, semel_outbox_cursor c
             WHERE (?1 IS NULL OR o.topic = ?1) AND (?2 IS NULL OR coalesce(o.key, o.aggregate_id) = ?2)
             ORDER BY o.{order} LIMIT ?3"
        );
        self.with(move |table: &Table| {
            let list = || {
                let mut statement = table.connection.prepare(&query)?;
                let most = i64::try_from(listing.events_max).unwrap_or(i64::MAX);
                let rows = statement.query_map(params![listing.topic, listing.key, most], |row| {
                    let (id, standing): (String, String) = (readable(row, 0)?, row.get(6)?);
                    let has_key = row.get_ref(3)? != rusqlite::types::ValueRef::Null;
                    Ok(EventSummary {
                        id: event_uuid(&id),
                        topic: readable(row, 1)?,
                        kind: readable(row, 2)?,
                        key: has_key.then(|| readable(row, 3)).transpose()?,
                        made_at: moment(row.get(4)?),
                        payload_bytes: row.get::<_, i64>(5)?.unsigned_abs(),
                        standing: EventStatus::read(&standing),
                    })
                })?;
                rows.collect::<Result<Vec<_>, rusqlite::Error>>()
            };
            list().map_err(|error| explain(&path, &error))
        })
        .await
    }

    /// One event, if it is parked or among the newest [`LOOKED_EVENTS_MAX`].
    pub async fn find(&self, id: Uuid) -> Result<Option<EventDetail>, OutboxReaderError> {
        let path = self.path.clone();
        let parked = format!(
            "SELECT {EVENT}, o.made_at, CASE WHEN o.error IS NULL THEN 'held' ELSE 'parked' END, o.error, o.parked_key
             FROM semel_outbox_parked o WHERE o.id = ?1"
        );
        let newest = format!(
            "SELECT {EVENT}, o.made_at, {STANDING}, NULL, NULL
             FROM (SELECT * FROM semel_outbox ORDER BY seq DESC LIMIT {LOOKED_EVENTS_MAX}) o, semel_outbox_cursor c
             WHERE o.id = ?1"
        );
        self.with(move |table: &Table| {
            let find = |query: &str| {
                let found = table.connection.query_row(query, [id.to_string()], |row| {
                    let standing: String = row.get(13)?;
                    Ok(EventDetail {
                        event: columns(row)?.event(),
                        made_at: moment(row.get(12)?),
                        standing: EventStatus::read(&standing),
                        error: row.get(14)?,
                        parked_key: row.get(15)?,
                    })
                });
                found.optional().map_err(|error| explain(&path, &error))
            };
            match find(&parked)? {
                Some(found) => Ok(Some(found)),
                None => find(&newest),
            }
        })
        .await
    }

    /// Checks whether a relay could run here: the tables exist and have the right lineage, and the file can be written.
    /// A file has no privileges that could be missing.
    pub async fn check(&self) -> Result<Vec<MissingPrivilege>, OutboxReaderError> {
        let path = self.path.clone();
        self.with(move |table: &Table| {
            let touched =
                table.connection.execute("UPDATE semel_outbox_cursor SET epoch = epoch WHERE false", []);
            touched.map(|_| Vec::new()).map_err(|error| explain(&path, &error))
        })
        .await
    }
}
