//! The tables, their version, and migrations.

use tokio_postgres::{Client, SimpleQueryMessage};

use super::error::PostgresError;
use crate::migration::{Goal, MigrationPlan, Tables, Versions, postgres};

/// The SQL of a new store's tables: what `semel migrate --print` shows. `psql -1 -f TEXT` makes the same tables.
pub const SQL: &str = concat!(include_str!("schema.sql"), "\n", include_str!("../../tx/sql/postgres.sql"));

/// The version of the tables that migrating leads to. This build also works with the next one.
pub const VERSION: u32 = 1;

pub(super) const TABLES: Tables = Tables {
    what: "store",
    meta: "semel_meta",
    last: |_| "semel_intent",
    resumable: false,
    migrate: "semel migrate",
    versions: |_| &VERSIONS,
};

const VERSIONS: Versions = Versions { create: SQL, upgrades: &[], oldest: 1 };

/// Checks that the tables exist in a version this build works with.
pub(super) async fn expect(client: &Client) -> Result<(), PostgresError> {
    postgres::expect(&TABLES, client).await
}

/// Creates or upgrades the tables in one transaction, or only plans to. Of many processes that start at once, one does
/// it and the others find it done.
pub(super) async fn migrate(client: &Client, goal: Goal) -> Result<MigrationPlan, PostgresError> {
    postgres::run(&TABLES, client, goal, "").await
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
