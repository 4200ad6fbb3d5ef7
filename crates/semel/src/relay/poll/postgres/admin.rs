//! The statements of operator commands.

use std::time::Duration;

use futures_util::TryStreamExt;

use super::PostgresTables;
use crate::relay::listing::{EventFilter, LOOKED_EVENTS_MAX, MissingPrivilege};
use crate::relay::outbox_reader::OutboxReaderError;
use crate::relay::poll::admin::{AdminCommand, FromRow, numbers};
use crate::relay::poll::outbox::PollDatabase;
use crate::relay::postgres::leased_session::{LeasedSession, any_bytes};
use crate::relay::reader_options::ReaderOptions;
use crate::store::postgres::connect::Session;
use crate::store::postgres::error::PostgresError;
use crate::tx::driver::{Value, bound_postgres};

/// Timeout of a query an operator makes.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// The status of the event `o`, by the cursor `c` of its partition (column `lane`).
const STANDING: &str = "coalesce(
        (SELECT CASE WHEN p.error IS NULL THEN 'held' ELSE 'parked' END
         FROM semel_outbox_parked p WHERE p.id = o.id AND p.topic = o.topic LIMIT 1),
        CASE WHEN pg_visible_in_snapshot(o.xid, c.low) THEN 'published'
             WHEN c.high IS NULL OR NOT pg_visible_in_snapshot(o.xid, c.high) THEN 'waiting'
             WHEN o.seq <= c.after_seq THEN 'published'
             WHEN o.seq <= c.until_seq THEN 'sending'
             ELSE 'waiting' END)";

/// Narrows a scan for unpublished events: every event that some `low` does not see has an xid from the lowest xmin on.
const UNPUBLISHED: &str =
    "o.xid >= (SELECT pg_snapshot_xmin(low) FROM semel_outbox_cursor ORDER BY pg_snapshot_xmin(low) LIMIT 1)";

/// The privileges a relay needs and lacks. `prunes`: only pruning needs it.
const NEEDED: &str = "SELECT what || ' on ' || place, prunes::int::bigint FROM (VALUES
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

fn list(listing: &EventFilter) -> String {
    let order = match (listing.unpublished, listing.oldest_first) {
        (true, true) => "o.xid, o.seq",
        (true, false) => "o.xid DESC, o.seq DESC",
        (false, true) => "o.seq",
        (false, false) => "o.seq DESC",
    };
    include_str!("sql/list.sql")
        .replace("{from}", if listing.unpublished { UNPUBLISHED } else { "true" })
        .replace("{wanted}", if listing.unpublished { "standing IN ('waiting', 'sending')" } else { "true" })
        .replace("{order}", order)
        .replace("{standing}", STANDING)
        .replace("{scanned}", &LOOKED_EVENTS_MAX.to_string())
}

impl PollDatabase for PostgresTables {
    type Leased = LeasedSession;
    const NUMBERS_EACH_PARTITION: bool = false;

    fn options(&self) -> &ReaderOptions {
        &self.0.options
    }

    async fn lease(&self, me: &str) -> Result<LeasedSession, OutboxReaderError> {
        LeasedSession::open(&self.0, me).await
    }

    fn text(command: AdminCommand<'_>) -> String {
        match command {
            AdminCommand::Parked => include_str!("sql/parked.sql").to_owned(),
            AdminCommand::Retry => "UPDATE semel_outbox_parked_key SET due_at = clock_timestamp()
                               WHERE $1::text IS NULL OR key = $1::text RETURNING 1::bigint"
                .to_owned(),
            AdminCommand::OfId => {
                "SELECT n, topic, id::text FROM semel_outbox_parked WHERE id = $1::text::uuid
                              ORDER BY n LIMIT 1000"
                    .to_owned()
            }
            AdminCommand::Skip(ns) => format!(
                "WITH gone AS (DELETE FROM semel_outbox_parked WHERE n IN ({}) RETURNING parked_key)
                 UPDATE semel_outbox_parked_key k SET due_at = clock_timestamp(), tries = 0
                 FROM gone WHERE k.key = gone.parked_key RETURNING 1::bigint",
                numbers(ns)
            ),
            AdminCommand::List(listing) => list(listing),
            AdminCommand::Find => include_str!("sql/find.sql")
                .replace("{standing}", STANDING)
                .replace("{scanned}", &LOOKED_EVENTS_MAX.to_string()),
        }
    }

    async fn ask<T: FromRow>(&self, text: String, values: Vec<Value>) -> Result<Vec<T>, OutboxReaderError> {
        let (session, _) = self.0.connections.session().await.map_err(|error| error.not_applied())?;
        any_bytes(&session).await?;
        let asked = tokio::time::timeout(QUERY_TIMEOUT, query(&session, &text, &values)).await;
        session.close().await;
        let late = |_| {
            PostgresError::TimedOut(format!(
                "PostgreSQL did not answer within {QUERY_TIMEOUT:?}; check its load"
            ))
        };
        let rows = asked.map_err(late).and_then(|rows| rows).map_err(|error| error.explain())?;
        Ok(rows.iter().map(T::from_row).collect::<Result<_, _>>()?)
    }

    async fn missing_privileges(&self) -> Result<Vec<MissingPrivilege>, OutboxReaderError> {
        self.ask(NEEDED.to_owned(), Vec::new()).await
    }
}

/// Runs a statement built for one call, in one round trip.
async fn query(
    session: &Session,
    text: &str,
    values: &[Value],
) -> Result<Vec<tokio_postgres::Row>, PostgresError> {
    let rows = async {
        let rows = session.client.query_typed_raw(text, values.iter().map(bound_postgres)).await?;
        rows.try_collect().await
    };
    let Some(raise) = session.raise() else { return Ok(rows.await?) };
    let begin = format!("BEGIN; {raise}");
    let (begin, commit) = (session.client.batch_execute(&begin), session.client.batch_execute("COMMIT"));
    // Each is sent when it is first polled, so they are sent together and in this order.
    let (begun, rows, ended) = tokio::join!(biased; begin, rows, commit);
    begun?;
    let rows = rows?;
    ended?;
    Ok(rows)
}
