//! The tables, their version, and migrations.

use tokio_postgres::{Client, SimpleQueryMessage};

use super::error::{PostgresError, refused};
use super::lock;

/// The SQL of a new store's tables: what `semel migrate --print` shows. `psql -1 -f TEXT` makes the same tables.
pub const SQL: &str = concat!(include_str!("schema.sql"), "\n", include_str!("../../tx/sql/postgres.sql"));

/// The version this build reads and writes.
pub const VERSION: u32 = 1;

/// What a database holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SchemaStatus {
    /// None of our tables: they have to be created.
    New,
    /// Our tables, in this version.
    Ours(u32),
}

/// Not `to_regclass`: that reads the session's cache, which misses tables created while we waited for the lock.
const EXISTING: &str = "SELECT count(*) FILTER (WHERE relname = 'semel_meta'), \
        count(*) FILTER (WHERE relname = 'semel_intent') \
    FROM pg_class WHERE relname IN ('semel_meta', 'semel_intent') AND pg_table_is_visible(oid)";

/// Reads without changing anything.
pub(super) async fn status(client: &Client) -> Result<SchemaStatus, PostgresError> {
    let row = one(client, EXISTING).await?;
    let exists = |column: usize| row.get(column).and_then(Option::as_deref) != Some("0");
    match (exists(0), exists(1)) {
        (false, false) => Ok(SchemaStatus::New),
        (false, true) => Err(refused(
            "there is a table semel_intent but no semel_meta in the search_path; restore semel's tables from \
             a backup, or name another schema with ?schema=",
        )),
        _ => {
            let row = one(client, "SELECT version FROM semel_meta").await?;
            let version = row.first().and_then(Option::as_deref).and_then(|text| text.parse().ok());
            match version {
                Some(version @ 1..=VERSION) => Ok(SchemaStatus::Ours(version)),
                Some(newer) if newer > VERSION => Err(refused(format!(
                    "the tables were created by a newer semel (they have version {newer}, this build knows \
                     {VERSION}); upgrade semel, or name another schema with ?schema="
                ))),
                _ => Err(refused(
                    "semel_meta does not say which version the tables have; restore semel's tables from a \
                     backup",
                )),
            }
        }
    }
}

/// Checks that the tables exist in the version this build needs.
pub(super) async fn expect(client: &Client) -> Result<(), PostgresError> {
    match status(client).await? {
        SchemaStatus::Ours(VERSION) => Ok(()),
        SchemaStatus::Ours(older) => Err(refused(format!(
            "the tables have version {older}, this build needs {VERSION}; run semel migrate"
        ))),
        SchemaStatus::New => Err(refused(
            "semel's tables are not in the search_path; run semel migrate, or name their schema with ?schema=",
        )),
    }
}

/// Creates or upgrades the tables in one transaction; returns the version before. Of many processes that start at once,
/// one does it and the others find it done.
pub(super) async fn create_or_upgrade(client: &Client) -> Result<u32, PostgresError> {
    if let SchemaStatus::Ours(VERSION) = status(client).await? {
        return Ok(VERSION);
    }
    client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    let before = under_lock(client).await;
    let end = if before.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = client.batch_execute(end).await;
    let before = before?;
    ended?;
    Ok(before)
}

async fn under_lock(client: &Client) -> Result<u32, PostgresError> {
    client.batch_execute(&format!("SELECT pg_advisory_xact_lock({})", lock::MIGRATION)).await?;
    // Checked again under the lock: another process may have been faster.
    match status(client).await? {
        SchemaStatus::Ours(version) => Ok(version),
        SchemaStatus::New => {
            client.batch_execute(SQL).await?;
            Ok(0)
        }
    }
}

/// The first row, as text. The simple protocol leaves no prepared statement behind, so it also works behind a pooler in
/// transaction mode.
pub(crate) async fn one(client: &Client, sql: &str) -> Result<Vec<Option<String>>, PostgresError> {
    let rows = client.simple_query(sql).await?;
    let first = rows.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let Some(row) = first else { return Ok(Vec::new()) };
    Ok((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
}
