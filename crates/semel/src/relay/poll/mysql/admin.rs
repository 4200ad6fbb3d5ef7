//! The statements of operator commands, and rebase after the lineage has changed.

use super::chunk::EVENT;
use super::leased_session::{LeasedMysqlSession, NOW};
use super::{MysqlOutbox, MysqlTables};
use crate::relay::lease::PARTITIONS;
use crate::relay::listing::{EventFilter, LOOKED_EVENTS_MAX, MissingPrivilege};
use crate::relay::outbox_reader::{OutboxReaderError, Rebase};
use crate::relay::poll::admin::{AdminCommand, FromRow, numbers};
use crate::relay::poll::outbox::PollDatabase;
use crate::relay::reader_options::ReaderOptions;
use crate::store::Fate;
use crate::tx::driver::{Value, fill_mysql};

/// The status of the event `o`, by the cursor `c` of its partition (column `part`).
const STANDING: &str = "CONVERT(COALESCE(
        (SELECT IF(p.error IS NULL, 'held', 'parked') FROM semel_outbox_parked p WHERE p.id = o.id AND p.topic = o.topic LIMIT 1),
        CASE WHEN o.n <= c.after_n THEN 'published' WHEN o.n <= c.until_n THEN 'sending' ELSE 'waiting' END) USING utf8mb4)";

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

/// Now, but never the same time as before.
fn at_once() -> String {
    format!("{NOW} + (COALESCE(due_at, 0) = {NOW})")
}

/// One statement for each partition.
fn each_partition(statement: impl Fn(i16) -> String) -> String {
    (0..PARTITIONS).map(statement).collect::<Vec<_>>().join("; ")
}

/// The events of one partition to look at, as `o`.
fn scanned(part: i16, and: &str, order: &str) -> String {
    let scanned = LOOKED_EVENTS_MAX / usize::from(PARTITIONS.unsigned_abs());
    format!("(SELECT * FROM semel_outbox WHERE part = {part} {and} ORDER BY {order} LIMIT {scanned}) o")
}

fn list(listing: &EventFilter) -> String {
    let order = if listing.oldest_first { "n" } else { "n DESC" };
    each_partition(|part| {
        let after = format!("AND n > (SELECT after_n FROM semel_outbox_cursor WHERE part = {part})");
        let scanned = scanned(part, if listing.unpublished { &after } else { "" }, order);
        format!(
            "SELECT CONVERT(o.id USING utf8mb4), CONVERT(o.topic USING utf8mb4), CONVERT(o.type USING utf8mb4),
                    CONVERT(COALESCE(o.`key`, o.aggregate_id) USING utf8mb4), {MADE_AT}, LENGTH(o.payload), {STANDING}
             FROM {scanned} JOIN semel_outbox_cursor c ON c.part = o.part
             WHERE (?1 IS NULL OR o.topic = ?1) AND (?2 IS NULL OR COALESCE(o.`key`, o.aggregate_id) = ?2)
             ORDER BY o.{order} LIMIT ?3"
        )
    })
}

fn find() -> String {
    let newest = each_partition(|part| {
        let scanned = scanned(part, "", "n DESC");
        format!(
            "SELECT {EVENT}, {MADE_AT}, {STANDING}, NULL, NULL
             FROM {scanned} JOIN semel_outbox_cursor c ON c.part = o.part WHERE o.id = ?1"
        )
    });
    format!(
        "SELECT {EVENT}, {MADE_AT}, IF(o.error IS NULL, 'held', 'parked'), CONVERT(o.error USING utf8mb4),
                CONVERT(o.parked_key USING utf8mb4)
         FROM semel_outbox_parked o WHERE o.id = ?1; {newest}"
    )
}

impl PollDatabase for MysqlTables {
    type Leased = LeasedMysqlSession;
    const NUMBERS_EACH_PARTITION: bool = true;

    fn options(&self) -> &ReaderOptions {
        &self.options
    }

    async fn lease(&self, me: &str) -> Result<LeasedMysqlSession, OutboxReaderError> {
        LeasedMysqlSession::open(self, me).await
    }

    fn text(command: AdminCommand<'_>) -> String {
        match command {
            AdminCommand::Parked => format!(
                "SELECT {EVENT}, CONVERT(o.parked_key USING utf8mb4), CONVERT(o.error USING utf8mb4),
                        CAST(UNIX_TIMESTAMP(o.parked_at) * 1000 AS SIGNED)
                 FROM semel_outbox_parked o WHERE ?1 IS NULL OR o.hash = UNHEX(SHA2(?1, 256)) ORDER BY o.n LIMIT ?2"
            ),
            AdminCommand::Retry => format!(
                "UPDATE semel_outbox_parked_key SET due_at = {}
                 WHERE ?1 IS NULL OR hash = UNHEX(SHA2(?1, 256)); SELECT ROW_COUNT()",
                at_once()
            ),
            AdminCommand::OfId => {
                "SELECT n, CONVERT(topic USING utf8mb4), CONVERT(id USING utf8mb4) FROM semel_outbox_parked
                 WHERE id = ?1 OR id NOT LIKE '________-____-____-____-____________' ORDER BY n LIMIT 10000"
                    .to_owned()
            }
            AdminCommand::Skip(ns) => format!(
                "START TRANSACTION;
                 UPDATE semel_outbox_parked_key k JOIN semel_outbox_parked p ON p.hash = k.hash
                     SET k.due_at = {at_once}, k.tries = 0 WHERE p.n IN ({ns});
                 DELETE FROM semel_outbox_parked WHERE n IN ({ns});
                 SELECT ROW_COUNT();
                 COMMIT",
                at_once = at_once(),
                ns = numbers(ns)
            ),
            AdminCommand::List(listing) => list(listing),
            AdminCommand::Find => find(),
        }
    }

    async fn ask<T: FromRow>(&self, text: String, values: Vec<Value>) -> Result<Vec<T>, OutboxReaderError> {
        let open = self.dial.open().await;
        let mut session = open.map_err(|error| error.explain(&self.server, Fate::NotApplied))?;
        let brought = session.run(fill_mysql(&text, &values)).await;
        session.close().await;
        let brought = brought.map_err(|failed| failed.error.explain(&self.server, Fate::InDoubt))?;
        Ok(brought.iter().flat_map(|brought| &brought.rows).map(T::from_row).collect::<Result<_, _>>()?)
    }

    async fn missing_privileges(&self) -> Result<Vec<MissingPrivilege>, OutboxReaderError> {
        let mut leased = LeasedMysqlSession::open(self, "").await?;
        let mut missing = Vec::new();
        for (at, (right, sql)) in NEEDED.iter().enumerate() {
            match leased.session.run((*sql).to_owned()).await {
                Ok(_) => {}
                Err(failed) if failed.error.number().is_some_and(|number| DENIED.contains(&number)) => {
                    missing.push(MissingPrivilege {
                        right: (*right).to_owned(),
                        only_to_prune: at + 1 == NEEDED.len(),
                    });
                }
                Err(failed) => return Err(failed.error.explain(&self.server, Fate::NotApplied).into()),
            }
        }
        leased.session.close().await;
        Ok(missing)
    }
}

impl MysqlOutbox {
    /// Accepts these tables as the right ones from now on. Running relays are fenced.
    pub async fn rebase(&self, rebase: Rebase) -> Result<(), OutboxReaderError> {
        let after = match rebase {
            Rebase::Everything => "0",
            Rebase::FromNow => {
                "(SELECT p.n FROM semel_outbox_part p WHERE p.part = semel_outbox_cursor.part)"
            }
        };
        let text = format!(
            "UPDATE semel_outbox_cursor SET epoch = epoch + 1, owner = NULL, until_n = NULL, after_n = {after},
             lineage = (SELECT m.lineage FROM semel_outbox_meta m)"
        );
        self.database.ask::<i64>(text, Vec::new()).await.map(drop)
    }
}
