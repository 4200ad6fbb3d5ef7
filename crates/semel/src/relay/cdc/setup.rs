//! Finds, creates and drops slot and publication.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::types::Type;

use super::options::{Names, misconfigured};
use super::table::{RoutedTable, Table};
use crate::relay::outbox_reader::OutboxReaderError;
use crate::relay::postgres::Outbox;
use crate::relay::postgres::leased_session::{LeasedSession, get};
use crate::store::postgres::error::PostgresError;
use crate::store::postgres::statement::Sql;

/// The table, by its full name.
pub(super) async fn table(
    leased: &LeasedSession,
    routed: Option<&RoutedTable>,
) -> Result<Table, OutboxReaderError> {
    static FIND: Sql = Sql {
        text: "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE c.oid = to_regclass($1::text)",
        types: &[Type::TEXT],
    };
    let name = routed.map_or("semel_outbox", |routed| routed.name.as_str());
    let rows = leased.query(&FIND, &[&name]).await?;
    let row = rows
        .first()
        .ok_or_else(|| misconfigured(format!("there is no table {name}; check the search_path")))?;
    Ok(Table { schema: get(row, 0)?, name: get(row, 1)?, routed: routed.cloned() })
}

/// Number of tables in the ring.
const RING: i64 = 4;

/// What the publication contains.
pub(super) struct Published {
    pub(super) ours: bool,
    pub(super) other_tables: i64,
    pub(super) inserts: bool,
    pub(super) more_than_inserts: bool,
    /// It has our table with a row filter.
    pub(super) filtered: bool,
}

impl Published {
    /// Why events would be left out.
    pub(super) fn leaves_out(&self, names: &Names, table: &Table) -> Option<String> {
        let (name, schema, of) = (&names.publication, &table.schema, &table.name);
        if !(self.ours && self.inserts) {
            return Some(format!(
                "the publication {name} does not have the inserts into {schema}.{of}; change it with ALTER \
                 PUBLICATION, or use another publication"
            ));
        }
        self.filtered.then(|| {
            format!(
                "the publication {name} has a row filter for {schema}.{of}, and events that it leaves out would never \
                 be published; remove it with ALTER PUBLICATION {} SET TABLE {}.{}, or use another publication",
                quoted(name),
                quoted(schema),
                quoted(of)
            )
        })
    }
}

pub(super) async fn published(
    leased: &LeasedSession,
    names: &Names,
    table: &Table,
) -> Result<Option<Published>, OutboxReaderError> {
    static ASK: Sql = Sql {
        text: "SELECT p.pubinsert, p.pubupdate OR p.pubdelete OR p.pubtruncate,
                      count(t.*) FILTER (WHERE t.schemaname = $2::text AND t.tablename = $3::text),
                      count(t.*) FILTER (WHERE t.schemaname = $2::text AND t.tablename = ANY ($4::text[])),
                      count(t.*) FILTER (WHERE NOT (t.schemaname = $2::text
                          AND (t.tablename = $3::text OR t.tablename = ANY ($4::text[])))),
                      -- As JSON: before PostgreSQL 15 there is no such column.
                      count(t.*) FILTER (WHERE to_jsonb(t) ->> 'rowfilter' IS NOT NULL AND t.schemaname = $2::text
                          AND (t.tablename = $3::text OR t.tablename = ANY ($4::text[])))
               FROM pg_publication p LEFT JOIN pg_publication_tables t ON t.pubname = p.pubname
               WHERE p.pubname = $1::text GROUP BY p.oid, 1, 2",
        types: &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT_ARRAY],
    };
    // A publication without publish_via_partition_root names the tables of the ring. Of a routed table only the root is
    // known: rows under any other name would be skipped as not ours.
    let ring: Vec<String> = match table.routed {
        None => (0..RING).map(|n| format!("{}_{n}", table.name)).collect(),
        Some(_) => Vec::new(),
    };
    let rows = leased.query(&ASK, &[&names.publication, &table.schema, &table.name, &ring]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Published {
        inserts: get(row, 0)?,
        more_than_inserts: get(row, 1)?,
        ours: get::<i64>(row, 2)? > 0 || (!ring.is_empty() && get::<i64>(row, 3)? == RING),
        other_tables: get(row, 4)?,
        filtered: get::<i64>(row, 5)? > 0,
    }))
}

/// Creates the publication, or checks it. Before the slot: a slot does not know a publication created after it.
pub(super) async fn publication(
    leased: &LeasedSession,
    names: &Names,
    table: &Table,
    create: bool,
) -> Result<(), OutboxReaderError> {
    let name = &names.publication;
    match published(leased, names, table).await? {
        Some(published) => published.leaves_out(names, table).map_or(Ok(()), |why| Err(misconfigured(why))),
        None if create => {
            match leased.session.batch(&create_publication(names, table)).await {
                Ok(()) => Ok(()),
                // Another connection has just created it.
                Err(error) if matches!(state(&error), "42710" | "23505") => Ok(()),
                Err(error) => Err(error.explain().into()),
            }
        }
        None => Err(misconfigured(format!(
            "there is no publication {name}, and creating it is disabled; create it with: {}",
            create_publication(names, table)
        ))),
    }
}

pub(super) fn create_publication(names: &Names, table: &Table) -> String {
    format!(
        "CREATE PUBLICATION {} FOR TABLE {}.{} WITH (publish = 'insert', publish_via_partition_root = true)",
        quoted(&names.publication),
        quoted(&table.schema),
        quoted(&table.name)
    )
}

/// A slot being created in the background. Dropping this aborts it.
pub(super) struct SlotCreation(JoinHandle<Result<(), OutboxReaderError>>);

impl SlotCreation {
    /// Waits up to `timeout` for the result. `None`: not created yet.
    pub(super) async fn created(&mut self, timeout: Duration) -> Option<Result<(), OutboxReaderError>> {
        let ended = tokio::time::timeout(timeout, &mut self.0).await.ok()?;
        Some(ended.unwrap_or_else(|error| Err(misconfigured(format!("creating the slot failed: {error}")))))
    }
}

impl Drop for SlotCreation {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts to create the slot. It may take as long as the longest open transaction.
pub(super) async fn create_slot(outbox: &Outbox, name: &str) -> Result<SlotCreation, OutboxReaderError> {
    let (session, _) = outbox.connections.session().await.map_err(|error| error.not_applied())?;
    // Slot names contain nothing that needs quoting.
    let create = format!(
        "SET statement_timeout = 0; SET lock_timeout = 0; \
         SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"
    );
    tracing::info!(
        slot = name,
        "creating the replication slot; PostgreSQL waits for open transactions to end"
    );
    Ok(SlotCreation(tokio::spawn(async move {
        let made = session.client.batch_execute(&create).await;
        match made {
            Err(error) if error.code().is_some_and(|state| state.code() == "42710") => {}
            Err(error) => return Err(refused(PostgresError::from(error))),
            Ok(()) => {}
        }
        session.close().await;
        Ok(())
    })))
}

fn refused(error: PostgresError) -> OutboxReaderError {
    if let PostgresError::Postgres(error) = &error
        && let Some(error) = error.as_db_error()
    {
        let (state, message) = (error.code().code().to_owned(), error.message().to_owned());
        return super::error::CdcError::Server { state, message }.into();
    }
    error.explain().into()
}

/// The SQLSTATE of an error.
fn state(error: &PostgresError) -> &str {
    match error {
        PostgresError::Postgres(error) => error.code().map_or("", |state| state.code()),
        _ => "",
    }
}

/// Drops the slot, and terminates connections that still use it.
pub(super) async fn drop_slot(leased: &LeasedSession, name: &str) -> Result<(), OutboxReaderError> {
    for tried in 0..50 {
        free_slot(leased, name, if tried < 25 { SlotUsers::Readers } else { SlotUsers::All }).await?;
        let drop = format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{name}'"
        );
        match leased.session.batch(&drop).await {
            Ok(()) => return Ok(()),
            // Still in use: a terminated connection takes a moment to end.
            Err(error) if state(&error) == "55006" => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) if state(&error) == "42704" => return Ok(()),
            Err(error) => return Err(refused(error)),
        }
    }
    Err(misconfigured(format!(
        "the slot {name} stays in use; end the connection shown as active_pid in pg_replication_slots"
    )))
}

/// The connections to a slot that are terminated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotUsers {
    /// Connections that read or create it. An operator who is dropping it uses it too, but only for a moment.
    Readers,
    All,
}

/// Terminates the connection that uses the slot.
pub(super) async fn free_slot(
    leased: &LeasedSession,
    name: &str,
    users: SlotUsers,
) -> Result<(), OutboxReaderError> {
    let all = users == SlotUsers::All;
    let end = format!(
        "SELECT pg_terminate_backend(s.active_pid) FROM pg_replication_slots s \
         LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid \
         WHERE s.slot_name = '{name}' AND s.active_pid IS NOT NULL AND ({all} \
             OR s.confirmed_flush_lsn IS NULL OR a.backend_type IS DISTINCT FROM 'client backend')"
    );
    match leased.session.batch(&end).await {
        Ok(()) => Ok(()),
        // We may not terminate it: the server does so itself after wal_sender_timeout.
        Err(error) if state(&error) == "42501" => Ok(()),
        Err(error) => Err(error.explain().into()),
    }
}

/// The command that starts the stream, from the last ack the server has.
pub(super) fn start(names: &Names) -> String {
    let publication = quoted(&names.publication).replace('\'', "''");
    format!(
        "START_REPLICATION SLOT \"{}\" LOGICAL 0/0 (proto_version '1', publication_names '{publication}')",
        names.slot
    )
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        let names = Names { slot: "s".into(), publication: "o'\"b".into() };
        assert_eq!(
            start(&names),
            "START_REPLICATION SLOT \"s\" LOGICAL 0/0 (proto_version '1', publication_names '\"o''\"\"b\"')"
        );
    }
}
