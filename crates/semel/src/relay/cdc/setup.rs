//! Slot and publication: looking for them, making them, getting rid of them.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::types::Type;

use super::options::{Names, wrong};
use super::table::{RoutedTable, Table};
use crate::relay::outbox_reader::OutboxReaderError;
use crate::relay::poll::postgres::leased_session::{LeasedSession, get};
use crate::relay::poll::postgres::options::Outbox;
use crate::store::postgres::error::PostgresError;
use crate::store::postgres::statement::Sql;

/// The table, by its full name.
pub(super) async fn table(
    link: &LeasedSession,
    routed: Option<&RoutedTable>,
) -> Result<Table, OutboxReaderError> {
    static FIND: Sql = Sql {
        text: "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE c.oid = to_regclass($1::text)",
        types: &[Type::TEXT],
    };
    let name = routed.map_or("semel_outbox", |routed| routed.name.as_str());
    let rows = link.query(&FIND, &[&name]).await?;
    let row =
        rows.first().ok_or_else(|| wrong(format!("there is no table {name}; check the search_path")))?;
    Ok(Table { schema: get(row, 0)?, name: get(row, 1)?, routed: routed.cloned() })
}

/// Tables of the ring.
const RING: i64 = 4;

/// What the publication has.
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
                "the publication {name} does not have the inserts into {schema}.{of}; ALTER it, or name another"
            ));
        }
        self.filtered.then(|| {
            format!(
                "the publication {name} has a row filter for {schema}.{of}, and events that it leaves out would never be \
                 published: take it away with ALTER PUBLICATION {} SET TABLE {}.{}, or name another publication",
                quoted(name),
                quoted(schema),
                quoted(of)
            )
        })
    }
}

pub(super) async fn published(
    link: &LeasedSession,
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
    // A publication that does not speak of the root names the tables of the ring. Of a table of somebody else's only the
    // root is known: rows under any other name would be taken for strangers'.
    let ring: Vec<String> = match table.routed {
        None => (0..RING).map(|n| format!("{}_{n}", table.name)).collect(),
        Some(_) => Vec::new(),
    };
    let rows = link.query(&ASK, &[&names.publication, &table.schema, &table.name, &ring]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Published {
        inserts: get(row, 0)?,
        more_than_inserts: get(row, 1)?,
        ours: get::<i64>(row, 2)? > 0 || (!ring.is_empty() && get::<i64>(row, 3)? == RING),
        other_tables: get(row, 4)?,
        filtered: get::<i64>(row, 5)? > 0,
    }))
}

/// Makes the publication, or sees that it is right. Before the slot: a slot does not know of what is published later.
pub(super) async fn publication(
    link: &LeasedSession,
    names: &Names,
    table: &Table,
    create: bool,
) -> Result<(), OutboxReaderError> {
    let name = &names.publication;
    match published(link, names, table).await? {
        Some(published) => published.leaves_out(names, table).map_or(Ok(()), |why| Err(wrong(why))),
        None if create => {
            match link.session.batch(&create_publication(names, table)).await {
                Ok(()) => Ok(()),
                // Somebody else has just made it.
                Err(trouble) if matches!(state(&trouble), "42710" | "23505") => Ok(()),
                Err(trouble) => Err(trouble.explain().into()),
            }
        }
        None => Err(wrong(format!(
            "there is no publication {name}, and it is not to be made: {}",
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

/// The slot is being made. Nobody makes it any more when this is dropped.
pub(super) struct Making(JoinHandle<Result<(), OutboxReaderError>>);

impl Making {
    /// `None`: not yet.
    pub(super) async fn made(&mut self, patience: Duration) -> Option<Result<(), OutboxReaderError>> {
        let ended = tokio::time::timeout(patience, &mut self.0).await.ok()?;
        Some(ended.unwrap_or_else(|error| Err(wrong(format!("making the slot failed: {error}")))))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Begins to make the slot, which may take as long as the longest transaction that is under way.
pub(super) async fn create_slot(outbox: &Outbox, name: &str) -> Result<Making, OutboxReaderError> {
    let (session, _) = outbox.connections.session().await.map_err(|trouble| trouble.not_applied())?;
    // Names of slots have nothing in them to be quoted.
    let create = format!(
        "SET statement_timeout = 0; SET lock_timeout = 0; \
         SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"
    );
    tracing::info!(slot = name, "the slot is made as soon as the transactions that are under way have ended");
    Ok(Making(tokio::spawn(async move {
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

fn refused(trouble: PostgresError) -> OutboxReaderError {
    if let PostgresError::Postgres(error) = &trouble
        && let Some(said) = error.as_db_error()
    {
        let (state, message) = (said.code().code().to_owned(), said.message().to_owned());
        return super::error::CdcError::Server { state, message }.into();
    }
    trouble.explain().into()
}

/// The server's name for it.
fn state(trouble: &PostgresError) -> &str {
    match trouble {
        PostgresError::Postgres(error) => error.code().map_or("", |state| state.code()),
        _ => "",
    }
}

/// Drops the slot, and whoever still reads it.
pub(super) async fn drop_slot(link: &LeasedSession, name: &str) -> Result<(), OutboxReaderError> {
    for tried in 0..50 {
        free_slot(link, name, if tried < 25 { Whom::Readers } else { Whom::Anybody }).await?;
        let drop = format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{name}'"
        );
        match link.session.batch(&drop).await {
            Ok(()) => return Ok(()),
            // Still in use: who was told to end takes a moment.
            Err(trouble) if state(&trouble) == "55006" => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(trouble) if state(&trouble) == "42704" => return Ok(()),
            Err(trouble) => return Err(refused(trouble)),
        }
    }
    Err(wrong(format!("the slot {name} does not become free")))
}

/// Whose use of the slot is ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whom {
    /// Who reads it or makes it. A person who is just dropping it has it too, and is soon done.
    Readers,
    Anybody,
}

/// Ends the connection that has the slot.
pub(super) async fn free_slot(link: &LeasedSession, name: &str, whom: Whom) -> Result<(), OutboxReaderError> {
    let anybody = whom == Whom::Anybody;
    let end = format!(
        "SELECT pg_terminate_backend(s.active_pid) FROM pg_replication_slots s \
         LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid \
         WHERE s.slot_name = '{name}' AND s.active_pid IS NOT NULL AND ({anybody} \
             OR s.confirmed_flush_lsn IS NULL OR a.backend_type IS DISTINCT FROM 'client backend')"
    );
    match link.session.batch(&end).await {
        Ok(()) => Ok(()),
        // Not ours to end: the server does by itself after wal_sender_timeout.
        Err(trouble) if state(&trouble) == "42501" => Ok(()),
        Err(trouble) => Err(trouble.explain().into()),
    }
}

/// The command that begins the stream, from where the server knows us to be.
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
