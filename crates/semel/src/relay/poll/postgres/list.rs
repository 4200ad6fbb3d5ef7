//! Lists events and their status, and checks the privileges a relay needs.

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::leased_session::get;
use super::read::{bound, columns, readable, readable_if_any};
use super::{PostgresOutbox, unreadable};
use crate::relay::listing::{
    EventDetail, EventFilter, EventStatus, EventSummary, LOOKED_EVENTS_MAX, MissingPrivilege, moment,
};
use crate::relay::outbox_reader::OutboxReaderError;
use crate::store::StoreError;
use crate::store::postgres::statement::Sql;

/// The status of the event `o`, by the cursor `c` of its partition (column `lane`).
const STANDING: &str = "coalesce(
        (SELECT CASE WHEN p.error IS NULL THEN 'held' ELSE 'parked' END
         FROM semel_outbox_parked p WHERE p.id = o.id AND p.topic = o.topic LIMIT 1),
        CASE WHEN pg_visible_in_snapshot(o.xid, c.low) THEN 'published'
             WHEN c.high IS NULL OR NOT pg_visible_in_snapshot(o.xid, c.high) THEN 'waiting'
             WHEN o.seq <= c.after_seq THEN 'published'
             WHEN o.seq <= c.until_seq THEN 'sending'
             ELSE 'waiting' END)";

/// Nothing below is unpublished: what some `low` does not see has an id from the lowest xmin on.
const UNPUBLISHED: &str =
    "o.xid >= (SELECT pg_snapshot_xmin(low) FROM semel_outbox_cursor ORDER BY pg_snapshot_xmin(low) LIMIT 1)";

/// The privileges a relay needs and lacks. `prunes`: only pruning needs it.
const NEEDED: &str = "SELECT what || ' on ' || place, prunes FROM (VALUES
        ('semel_outbox', 'SELECT', false), ('semel_outbox_meta', 'SELECT', false),
        ('semel_outbox_cursor', 'SELECT', false), ('semel_outbox_cursor', 'UPDATE', false),
        ('semel_outbox_relay', 'SELECT', false), ('semel_outbox_relay', 'INSERT', false),
        ('semel_outbox_relay', 'UPDATE', false), ('semel_outbox_relay', 'DELETE', false),
        ('semel_outbox_parked_key', 'SELECT', false), ('semel_outbox_parked_key', 'INSERT', false),
        ('semel_outbox_parked_key', 'UPDATE', false), ('semel_outbox_parked_key', 'DELETE', false),
        ('semel_outbox_parked', 'SELECT', false), ('semel_outbox_parked', 'INSERT', false),
        ('semel_outbox_parked', 'UPDATE', false), ('semel_outbox_parked', 'DELETE', false),
        ('semel_outbox_key', 'SELECT', true), ('semel_outbox_key', 'DELETE', true),
        ('semel_outbox_0', 'TRUNCATE', true), ('semel_outbox_1', 'TRUNCATE', true),
        ('semel_outbox_2', 'TRUNCATE', true), ('semel_outbox_3', 'TRUNCATE', true)
    ) AS needed (place, what, prunes)
    WHERE NOT has_table_privilege(place, what) ORDER BY prunes, place, what";

impl PostgresOutbox {
    /// Events with their status.
    pub async fn list(&self, listing: &EventFilter) -> Result<Vec<EventSummary>, OutboxReaderError> {
        let from = if listing.unpublished { UNPUBLISHED } else { "true" };
        let order = match (listing.unpublished, listing.oldest_first) {
            (true, true) => "o.xid, o.seq",
            (true, false) => "o.xid DESC, o.seq DESC",
            (false, true) => "o.seq",
            (false, false) => "o.seq DESC",
        };
        let text = include_str!("../sql/postgres_list.sql")
            .replace("{from}", from)
            .replace("{order}", order)
            .replace("{standing}", STANDING);
        let types = [Type::INT8, Type::TEXT, Type::TEXT, Type::BOOL, Type::INT8];
        let values: [&(dyn ToSql + Sync); 5] = [
            &bound(LOOKED_EVENTS_MAX),
            &listing.topic,
            &listing.key,
            &listing.unpublished,
            &bound(listing.events_max),
        ];
        let rows = self.ask_text(&text, &types, &values).await?;
        let listed = rows.iter().map(|row| {
            let (id, bytes, standing): (String, i64, String) = (get(row, 0)?, get(row, 5)?, get(row, 6)?);
            Ok(EventSummary {
                id: Uuid::parse_str(&id).map_err(|error| unreadable(&error.to_string()))?,
                topic: readable(row, 1)?,
                kind: readable(row, 2)?,
                key: readable_if_any(row, 3)?,
                made_at: moment(get(row, 4)?),
                payload_bytes: bytes.unsigned_abs(),
                standing: EventStatus::read(&standing),
            })
        });
        Ok(listed.collect::<Result<_, StoreError>>()?)
    }

    /// One event, if it is parked or among the newest [`LOOKED_EVENTS_MAX`].
    pub async fn find(&self, id: Uuid) -> Result<Option<EventDetail>, OutboxReaderError> {
        let text = include_str!("../sql/postgres_find.sql").replace("{standing}", STANDING);
        let values: [&(dyn ToSql + Sync); 2] = [&id.to_string(), &bound(LOOKED_EVENTS_MAX)];
        let rows = self.ask_text(&text, &[Type::TEXT, Type::INT8], &values).await?;
        let stored = rows.first().map(|row| {
            let standing: String = get(row, 14)?;
            Ok(EventDetail {
                event: columns(row)?.event(),
                made_at: moment(get(row, 13)?),
                standing: EventStatus::read(&standing),
                error: get(row, 15)?,
                parked_key: get(row, 16)?,
            })
        });
        Ok(stored.transpose().map_err(|error: StoreError| error)?)
    }

    /// Checks whether a relay could run here, and returns the privileges it lacks. That the tables exist, have the
    /// right version and lineage, and are not on a standby was checked on opening.
    pub async fn check(&self) -> Result<Vec<MissingPrivilege>, OutboxReaderError> {
        static RIGHTS: Sql = Sql { text: NEEDED, types: &[] };
        let rows = self.ask(&RIGHTS, &[]).await?;
        let missing =
            rows.iter().map(|row| Ok(MissingPrivilege { right: get(row, 0)?, only_to_prune: get(row, 1)? }));
        Ok(missing.collect::<Result<_, StoreError>>()?)
    }
}
