//! Lists events and their status, and checks the privileges a relay needs.

use uuid::Uuid;

use super::MysqlOutbox;
use super::chunk::{EVENT, columns};
use super::leased_session::{LeasedSession, get};
use crate::relay::listing::{
    EventDetail, EventFilter, EventStatus, EventSummary, LOOKED_EVENTS_MAX, MissingPrivilege, moment,
};
use crate::relay::outbox_reader::OutboxReaderError;
use crate::relay::poll::LANES;
use crate::relay::poll::row::event_uuid;
use crate::store::mysql::literal;
use crate::store::{Fate, StoreError};

/// The status of the event `o`, by the cursor `c` of its partition (column `part`).
const STANDING: &str = "COALESCE(
        (SELECT IF(p.error IS NULL, 'held', 'parked') FROM semel_outbox_parked p WHERE p.id = o.id AND p.topic = o.topic LIMIT 1),
        CASE WHEN o.n <= c.after_n THEN 'published' WHEN o.n <= c.until_n THEN 'sending' ELSE 'waiting' END)";

const MADE_AT: &str = "CAST(UNIX_TIMESTAMP(o.made_at) * 1000 AS SIGNED)";

/// The privileges a relay needs, each with a statement on no row. Only pruning needs the last.
const NEEDED: [(&str, &str); 12] = [
    ("SELECT on semel_outbox", "SELECT n FROM semel_outbox WHERE 1 = 0"),
    ("UPDATE on semel_outbox_cursor", "UPDATE semel_outbox_cursor SET epoch = epoch WHERE 1 = 0"),
    (
        "INSERT on semel_outbox_relay",
        "INSERT INTO semel_outbox_relay (id, lease_until) SELECT id, lease_until FROM semel_outbox_relay WHERE 1 = 0",
    ),
    ("UPDATE on semel_outbox_relay", "UPDATE semel_outbox_relay SET lease_until = lease_until WHERE 1 = 0"),
    ("DELETE on semel_outbox_relay", "DELETE FROM semel_outbox_relay WHERE 1 = 0"),
    (
        "INSERT on semel_outbox_parked_key",
        "INSERT INTO semel_outbox_parked_key (hash, part) SELECT hash, part FROM semel_outbox_parked_key WHERE 1 = 0",
    ),
    ("UPDATE on semel_outbox_parked_key", "UPDATE semel_outbox_parked_key SET tries = tries WHERE 1 = 0"),
    ("DELETE on semel_outbox_parked_key", "DELETE FROM semel_outbox_parked_key WHERE 1 = 0"),
    (
        "INSERT on semel_outbox_parked",
        "INSERT INTO semel_outbox_parked (hash, parked_key, id, topic, type, content_type, payload)
         SELECT hash, parked_key, id, topic, type, content_type, payload FROM semel_outbox_parked WHERE 1 = 0",
    ),
    ("UPDATE on semel_outbox_parked", "UPDATE semel_outbox_parked SET error = error WHERE 1 = 0"),
    ("DELETE on semel_outbox_parked", "DELETE FROM semel_outbox_parked WHERE 1 = 0"),
    ("DELETE on semel_outbox", "DELETE FROM semel_outbox WHERE 1 = 0"),
];

/// Error numbers of a missing privilege.
const DENIED: [u16; 3] = [1142, 1143, 1044];

impl MysqlOutbox {
    /// Events with their status. Each partition has its own numbers, so events of several are sorted by time.
    pub async fn list(&self, listing: &EventFilter) -> Result<Vec<EventSummary>, OutboxReaderError> {
        let order = if listing.oldest_first { "n" } else { "n DESC" };
        let fits = |column: &str, text: &Option<String>| {
            text.as_ref()
                .map_or_else(|| "1 = 1".to_owned(), |text| format!("{column} = {}", literal::text(text)))
        };
        let (topic, key) =
            (fits("o.topic", &listing.topic), fits("COALESCE(o.`key`, o.aggregate_id)", &listing.key));
        let (scanned, most) = (LOOKED_EVENTS_MAX / usize::from(LANES.unsigned_abs()), listing.events_max);
        let selects: Vec<String> = (0..LANES)
            .map(|part| {
                let from = match listing.unpublished {
                    true => format!("AND n > (SELECT after_n FROM semel_outbox_cursor WHERE part = {part})"),
                    false => String::new(),
                };
                format!(
                    "SELECT CONVERT(o.id USING utf8mb4), CONVERT(o.topic USING utf8mb4), CONVERT(o.type USING utf8mb4),
                            CONVERT(COALESCE(o.`key`, o.aggregate_id) USING utf8mb4), {MADE_AT}, LENGTH(o.payload),
                            CONVERT({STANDING} USING utf8mb4)
                     FROM (SELECT * FROM semel_outbox WHERE part = {part} {from} ORDER BY {order} LIMIT {scanned}) o
                     JOIN semel_outbox_cursor c ON c.part = o.part
                     WHERE {topic} AND {key} ORDER BY o.{order} LIMIT {most}"
                )
            })
            .collect();
        let mut listed = Vec::new();
        for brought in self.ask(selects.join("; ")).await? {
            for row in &brought.rows {
                let (id, standing): (String, String) = (get(row, 0)?, get(row, 6)?);
                listed.push(EventSummary {
                    id: event_uuid(&id),
                    topic: get(row, 1)?,
                    kind: get(row, 2)?,
                    key: get(row, 3)?,
                    made_at: moment(get(row, 4)?),
                    payload_bytes: get::<i64>(row, 5)?.unsigned_abs(),
                    standing: EventStatus::read(&standing),
                });
            }
        }
        // A stable sort: events of one partition with the same time keep their order.
        match listing.oldest_first {
            true => listed.sort_by_key(|event| event.made_at),
            false => listed.sort_by_key(|event| std::cmp::Reverse(event.made_at)),
        }
        listed.truncate(most);
        Ok(listed)
    }

    /// One event, if it is parked or among the newest [`LOOKED_EVENTS_MAX`].
    pub async fn find(&self, id: Uuid) -> Result<Option<EventDetail>, OutboxReaderError> {
        let mut selects = vec![format!(
            "SELECT {EVENT}, {MADE_AT}, IF(o.error IS NULL, 'held', 'parked'), CONVERT(o.error USING utf8mb4),
                    CONVERT(o.parked_key USING utf8mb4)
             FROM semel_outbox_parked o WHERE o.id = '{id}'"
        )];
        let scanned = LOOKED_EVENTS_MAX / usize::from(LANES.unsigned_abs());
        selects.extend((0..LANES).map(|part| {
            format!(
                "SELECT {EVENT}, {MADE_AT}, CONVERT({STANDING} USING utf8mb4), NULL, NULL
                 FROM (SELECT * FROM semel_outbox WHERE part = {part} ORDER BY n DESC LIMIT {scanned}) o
                 JOIN semel_outbox_cursor c ON c.part = o.part WHERE o.id = '{id}'"
            )
        }));
        let brought = self.ask(selects.join("; ")).await?;
        let stored = brought.iter().flat_map(|brought| &brought.rows).next().map(|row| {
            let standing: String = get(row, 13)?;
            Ok(EventDetail {
                event: columns(row)?.event(),
                made_at: moment(get(row, 12)?),
                standing: EventStatus::read(&standing),
                error: get(row, 14)?,
                parked_key: get(row, 15)?,
            })
        });
        Ok(stored.transpose().map_err(|error: StoreError| error)?)
    }

    /// Checks whether a relay could run here: the tables exist, have the right version and lineage, and are not on a
    /// replica. Returns the privileges it lacks.
    pub async fn check(&self) -> Result<Vec<MissingPrivilege>, OutboxReaderError> {
        let mut leased = LeasedSession::open(self, "").await?;
        let mut missing = Vec::new();
        for (at, (right, sql)) in NEEDED.iter().enumerate() {
            match leased.session.run((*sql).to_owned()).await {
                Ok(_) => {}
                Err(failed) if failed.trouble.number().is_some_and(|number| DENIED.contains(&number)) => {
                    missing.push(MissingPrivilege {
                        right: (*right).to_owned(),
                        only_to_prune: at + 1 == NEEDED.len(),
                    });
                }
                Err(failed) => return Err(failed.trouble.explain(&self.server, Fate::NotApplied).into()),
            }
        }
        leased.session.close().await;
        Ok(missing)
    }
}
