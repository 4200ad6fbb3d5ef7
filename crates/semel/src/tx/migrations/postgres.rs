//! In PostgreSQL, in one transaction under the lock that all of semel's migrations take.

use tokio_postgres::Client;

use super::Tables;
use crate::store::StoreError;
use crate::store::postgres::PostgresOptions;
use crate::store::postgres::connect::Connections;
use crate::store::postgres::error::PostgresError;
use crate::store::postgres::lock::MIGRATION;
use crate::store::postgres::schema::one;
use crate::tx::driver::Dialect;

pub(super) async fn bring_up(tables: &Tables, url: &str, more: &str) -> Result<u32, StoreError> {
    let connections =
        Connections::new(PostgresOptions::from_url(url)?).map_err(|error| error.not_applied())?;
    let (session, _) = connections.session().await.map_err(|error| error.not_applied())?;
    let client = &session.client;
    let not_applied = |error: PostgresError| error.not_applied();
    let run = async |sql: &str| client.batch_execute(sql).await.map_err(|error| not_applied(error.into()));
    run("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    run(&format!("SELECT pg_advisory_xact_lock({MIGRATION})")).await?;
    let before = found(tables, client).await?;
    for step in tables.missing(Dialect::Postgres, before) {
        run(step).await?;
    }
    run(more).await?;
    run("COMMIT").await?;
    session.close().await;
    Ok(before)
}

/// Dropping the connection rolls back.
async fn found(tables: &Tables, client: &Client) -> Result<u32, StoreError> {
    let not_applied = |error: PostgresError| error.not_applied();
    let (meta, last) = (tables.meta, (tables.last)(Dialect::Postgres));
    // Not `to_regclass`: it reads the session's cache, which misses tables created while we waited for the lock.
    let query = format!(
        "SELECT count(*) FILTER (WHERE relname = '{meta}'), count(*) FILTER (WHERE relname = '{last}') \
         FROM pg_class WHERE relname IN ('{meta}', '{last}') AND pg_table_is_visible(oid)"
    );
    let row = one(client, &query).await.map_err(not_applied)?;
    let there = |column: usize| row.get(column).and_then(Option::as_deref) != Some("0");
    let version = match there(0) {
        true => {
            let row = one(client, &format!("SELECT version FROM {meta}")).await.map_err(not_applied)?;
            row.first().and_then(Option::as_deref).and_then(|text| text.parse().ok())
        }
        false => None,
    };
    tables.found_version(Dialect::Postgres, version, there(1), "the search_path of this database")
}
