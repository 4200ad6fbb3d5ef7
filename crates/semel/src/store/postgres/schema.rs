//! The tables, their version, and how a database gets them.

use tokio_postgres::{Client, SimpleQueryMessage};

use super::error::{PostgresError, refused};
use super::lock;

/// The tables of a new store, as one text: what `semel migrate --print` shows. `psql -1 -f TEXT` makes the same
/// tables.
pub const SQL: &str = concat!(include_str!("schema.sql"), "\n", include_str!("../../tx/sql/postgres.sql"));

/// The version this build reads and writes.
pub const VERSION: u32 = 1;

/// What a database is to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SchemaStatus {
    /// None of our tables: make them.
    New,
    /// Ours, in this version.
    Ours(u32),
}

/// Not `to_regclass`: that asks the session's cache, which does not hear of tables made while we waited for
/// the lock.
const THERE: &str = "SELECT count(*) FILTER (WHERE relname = 'semel_meta'), \
        count(*) FILTER (WHERE relname = 'semel_intent') \
    FROM pg_class WHERE relname IN ('semel_meta', 'semel_intent') AND pg_table_is_visible(oid)";

/// Looks without touching.
pub(super) async fn standing(client: &Client) -> Result<SchemaStatus, PostgresError> {
    let row = one(client, THERE).await?;
    let there = |column: usize| row.get(column).and_then(Option::as_deref) != Some("0");
    match (there(0), there(1)) {
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
                    "the tables were made by a newer semel (they have version {newer}, this build knows \
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

/// The tables as they have to be for this build, made by somebody else.
pub(super) async fn expect(client: &Client) -> Result<(), PostgresError> {
    match standing(client).await? {
        SchemaStatus::Ours(VERSION) => Ok(()),
        SchemaStatus::Ours(older) => Err(refused(format!(
            "the tables have version {older}, this build needs {VERSION}; run semel migrate"
        ))),
        SchemaStatus::New => Err(refused(
            "there are no tables of semel's in the search_path; run semel migrate, or name their schema with \
             ?schema=",
        )),
    }
}

/// Brings the database to [`VERSION`] in one transaction and says which version it had. Of many processes that
/// start at once, one does it and the others find it done.
pub(super) async fn bring_up(client: &Client) -> Result<u32, PostgresError> {
    if let SchemaStatus::Ours(VERSION) = standing(client).await? {
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
    // Asked again under the lock: somebody else may have been faster.
    match standing(client).await? {
        SchemaStatus::Ours(version) => Ok(version),
        SchemaStatus::New => {
            client.batch_execute(SQL).await?;
            Ok(0)
        }
    }
}

/// The first row, as text. The simple protocol leaves no prepared statement behind, so it also works where a
/// pooler hands every transaction to another connection.
pub(crate) async fn one(client: &Client, sql: &str) -> Result<Vec<Option<String>>, PostgresError> {
    let rows = client.simple_query(sql).await?;
    let first = rows.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let Some(row) = first else { return Ok(Vec::new()) };
    Ok((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
}
