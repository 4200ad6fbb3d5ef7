//! The statements of operator commands.

use rusqlite::Batch;
use rusqlite::fallible_iterator::FallibleIterator;

use super::table::{EVENT, NOW};
use super::{LeasedFile, SqliteTables};
use crate::relay::listing::{EventFilter, LOOKED_EVENTS_MAX, MissingPrivilege};
use crate::relay::outbox_reader::OutboxReaderError;
use crate::relay::poll::admin::{AdminCommand, FromRow, numbers};
use crate::relay::poll::outbox::PollDatabase;
use crate::relay::reader_options::ReaderOptions;
use crate::tx::driver::Value;

/// The status of the event `o`, by the cursor `c`.
const STANDING: &str = "coalesce(
        (SELECT CASE WHEN p.error IS NULL THEN 'held' ELSE 'parked' END
         FROM semel_outbox_parked p WHERE p.id = o.id AND p.topic = o.topic LIMIT 1),
        CASE WHEN o.seq <= c.after_seq THEN 'published' WHEN o.seq <= c.until_seq THEN 'sending' ELSE 'waiting' END)";

/// Makes parked keys due now, but never at the same time as before.
fn make_due(which: &str) -> String {
    format!("UPDATE semel_outbox_parked_key SET due_at = {NOW} + (due_at IS {NOW}) WHERE {which}")
}

fn list(listing: &EventFilter) -> String {
    let from = match listing.unpublished {
        true => "seq > (SELECT after_seq FROM semel_outbox_cursor)",
        false => "true",
    };
    let order = if listing.oldest_first { "seq" } else { "seq DESC" };
    format!(
        "SELECT o.id, o.topic, o.type, coalesce(o.key, o.aggregate_id), o.made_at, length(o.payload), {STANDING}
         FROM (SELECT * FROM semel_outbox WHERE {from} ORDER BY {order} LIMIT {LOOKED_EVENTS_MAX}) o, semel_outbox_cursor c
         WHERE (?1 IS NULL OR o.topic = ?1) AND (?2 IS NULL OR coalesce(o.key, o.aggregate_id) = ?2)
         ORDER BY o.{order} LIMIT ?3"
    )
}

impl PollDatabase for SqliteTables {
    type Leased = LeasedFile;
    const NUMBERS_EACH_PARTITION: bool = false;

    fn options(&self) -> &ReaderOptions {
        &self.options
    }

    async fn lease(&self, me: &str) -> Result<LeasedFile, OutboxReaderError> {
        LeasedFile::open(self, me).await
    }

    fn text(command: AdminCommand<'_>) -> String {
        match command {
            AdminCommand::Parked => format!(
                "SELECT {EVENT}, o.parked_key, o.error, o.parked_at FROM semel_outbox_parked o
                 WHERE ?1 IS NULL OR o.parked_key = ?1 ORDER BY o.n LIMIT ?2"
            ),
            AdminCommand::Retry => format!("{} RETURNING 1", make_due("?1 IS NULL OR key = ?1")),
            AdminCommand::OfId => "SELECT n, topic, id FROM semel_outbox_parked WHERE id = ?1
                              OR id NOT LIKE '________-____-____-____-____________' ORDER BY n LIMIT 10000"
                .to_owned(),
            AdminCommand::Skip(ns) => {
                let ns = numbers(ns);
                let of_these = format!("key IN (SELECT parked_key FROM semel_outbox_parked WHERE n IN ({ns}))");
                format!(
                    "BEGIN; {}; DELETE FROM semel_outbox_parked WHERE n IN ({ns}) RETURNING 1; COMMIT",
                    make_due(&of_these)
                )
            }
            AdminCommand::List(listing) => list(listing),
            AdminCommand::Find => format!(
                "SELECT {EVENT}, o.made_at, CASE WHEN o.error IS NULL THEN 'held' ELSE 'parked' END, o.error,
                        o.parked_key
                 FROM semel_outbox_parked o WHERE o.id = ?1
                 UNION ALL
                 SELECT {EVENT}, o.made_at, {STANDING}, NULL, NULL
                 FROM (SELECT * FROM semel_outbox ORDER BY seq DESC LIMIT {LOOKED_EVENTS_MAX}) o, semel_outbox_cursor c
                 WHERE o.id = ?1
                 LIMIT 1"
            ),
        }
    }

    async fn ask<T: FromRow>(&self, text: String, values: Vec<Value>) -> Result<Vec<T>, OutboxReaderError> {
        self.with(move |table| {
            table.explained((|| {
                let mut found = Vec::new();
                let mut batch = Batch::new(&table.connection, &text);
                while let Some(mut statement) = batch.next()? {
                    for at in 1..=statement.parameter_count() {
                        statement.raw_bind_parameter(at, values.get(at - 1))?;
                    }
                    let mut rows = statement.raw_query();
                    while let Some(row) = rows.next()? {
                        found.push(T::from_row(row)?);
                    }
                }
                Ok(found)
            })())
        })
        .await
    }

    /// A file has no privileges. Checks that it can be written to.
    async fn missing_privileges(&self) -> Result<Vec<MissingPrivilege>, OutboxReaderError> {
        self.ask("UPDATE semel_outbox_cursor SET epoch = epoch WHERE false".to_owned(), Vec::new()).await
    }
}
