//! In PostgreSQL, in one transaction under the lock that all of semel's migrations take.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{Goal, MigrationPlan, Tables};
use crate::store::StoreError;
use crate::store::postgres::PostgresOptions;
use crate::store::postgres::connect::Connections;
use crate::store::postgres::error::{PostgresError, refused};
use crate::store::postgres::lock::MIGRATION;
use crate::store::postgres::schema::one;
use crate::tx::driver::Dialect;

/// Where the tables are, for people.
const LOCATION: &str = "the search_path of this database";
/// How long an upgrade waits for open transactions that use a table: later statements on it wait behind the upgrade. Once
/// it has the lock, a large table takes its time.
const LIMITS: &str = "SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = '1h'";
/// How often it tries, and the time between.
const ATTEMPTS_MAX: u32 = 10;
const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(super) async fn migrate(
    tables: &Tables,
    url: &str,
    goal: Goal,
    more: &str,
) -> Result<MigrationPlan, StoreError> {
    let connections = Connections::new(PostgresOptions::from_url(url)?);
    let migrated = async {
        let (session, _) = connections?.session().await?;
        let plan = run(tables, &session.client, goal, more).await?;
        session.close().await;
        Ok(plan)
    };
    migrated.await.map_err(|error: PostgresError| error.not_applied())
}

/// On an open connection. Takes no lock where there is nothing to do.
pub(crate) async fn run(
    tables: &Tables,
    client: &Client,
    goal: Goal,
    more: &str,
) -> Result<MigrationPlan, PostgresError> {
    let plan = planned(tables, client, goal).await?;
    if (plan.steps.is_empty() && more.is_empty()) || goal.only_plans() {
        return Ok(plan);
    }
    for attempt in 1.. {
        client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        let done = under_lock(tables, client, goal, more).await;
        let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let ended = client.batch_execute(end).await;
        match done {
            Err(PostgresError::Postgres(error))
                if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) && attempt < ATTEMPTS_MAX =>
            {
                tokio::time::sleep(RETRY_AFTER).await;
            }
            done => {
                let plan = done?;
                ended?;
                return Ok(plan);
            }
        }
    }
    Ok(plan)
}

async fn under_lock(
    tables: &Tables,
    client: &Client,
    goal: Goal,
    more: &str,
) -> Result<MigrationPlan, PostgresError> {
    client.batch_execute(&format!("SELECT pg_advisory_xact_lock({MIGRATION})")).await?;
    // Planned again under the lock: another process may have been faster.
    let plan = planned(tables, client, goal).await?;
    if plan.before > 0 && !plan.steps.is_empty() {
        client.batch_execute(LIMITS).await?;
    }
    for step in &plan.steps {
        client.batch_execute(step.sql).await?;
    }
    client.batch_execute(more).await?;
    Ok(plan)
}

async fn planned(tables: &Tables, client: &Client, goal: Goal) -> Result<MigrationPlan, PostgresError> {
    let found = found(tables, client).await?;
    tables.plan(Dialect::Postgres, found, goal, LOCATION).map_err(refused)
}

/// Whether this build works with the tables that are there; if not, or if there are none, what to do.
pub(crate) async fn expect(tables: &Tables, client: &Client) -> Result<(), PostgresError> {
    match found(tables, client).await? {
        0 => Err(refused(format!(
            "semel's tables are not in the search_path; run `{}`, or name their schema with ?schema=",
            tables.migrate
        ))),
        found => tables.check(Dialect::Postgres, found.into(), LOCATION).map_err(refused),
    }
}

/// The version of the tables; 0 if there are none. Reads without changing anything.
async fn found(tables: &Tables, client: &Client) -> Result<u32, PostgresError> {
    let (meta, last) = (tables.meta, (tables.last)(Dialect::Postgres));
    // Not `to_regclass`: it reads the session's cache, which misses tables created while we waited for the lock.
    let query = format!(
        "SELECT count(*) FILTER (WHERE relname = '{meta}'), count(*) FILTER (WHERE relname = '{last}') \
         FROM pg_class WHERE relname IN ('{meta}', '{last}') AND pg_table_is_visible(oid)"
    );
    let row = one(client, &query).await?;
    let there = |column: usize| row.get(column).and_then(Option::as_deref) != Some("0");
    let version = match there(0) {
        true => {
            let row = one(client, &format!("SELECT version FROM {meta}")).await?;
            row.first().and_then(Option::as_deref).and_then(|text| text.parse().ok())
        }
        false => None,
    };
    tables.found_version(Dialect::Postgres, version, there(1), LOCATION).map_err(refused)
}
