//! In MySQL and MariaDB, where every statement commits by itself. An upgrade that stopped half way is done again: what
//! it has added or removed already is passed over, and the version is written last.

use std::time::Duration;

use sqlx::Row;

use super::{Goal, MigrationPlan, Tables, wrong};
use crate::store::mysql::MysqlStore;
use crate::store::mysql::session::{Failed, Session};
use crate::store::{ErrorKind, Fate, StoreError};
use crate::tx::driver::Dialect;

/// How long to wait for another process that is migrating.
const TURN_SECONDS: u32 = 30;
/// How long the server may take to say whether it is our turn.
const TURN_MAX: Duration = Duration::from_secs(40);
/// How long an upgrade waits for open transactions that use a table: later statements on it wait behind the upgrade.
const LOCK_WAIT_SECONDS: u32 = 1;
/// How often it tries, and the time between.
const ATTEMPTS_MAX: u32 = 10;
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// `Lock wait timeout exceeded`.
const LOCK_WAIT_TIMEOUT: u16 = 1205;
/// Errors of a statement that an earlier run has carried out: what it adds exists, or what it drops does not.
const DONE_BEFORE: [u16; 4] = [1050, 1060, 1061, 1091];
/// How long one statement of an upgrade may take. A large table takes its time, and stays readable meanwhile.
const STATEMENT_MAX: Duration = Duration::from_secs(3_600);
/// `Table doesn't exist`.
const NO_SUCH_TABLE: u16 = 1146;

pub(super) async fn migrate(tables: &Tables, url: &str, goal: Goal) -> Result<MigrationPlan, StoreError> {
    let (_, dial, server) = MysqlStore::options().with_url(url)?;
    let mut session = dial.open().await.map_err(|error| error.explain(&server, Fate::NotApplied))?;
    let plan = run(tables, &mut session, &server, goal).await?;
    session.close().await;
    Ok(plan)
}

/// On an open connection. Takes no lock where there is nothing to do.
pub(crate) async fn run(
    tables: &Tables,
    session: &mut Session,
    server: &str,
    goal: Goal,
) -> Result<MigrationPlan, StoreError> {
    match planned(tables, session, server, goal).await {
        Ok(plan) if plan.steps.is_empty() => return Ok(plan),
        planned if goal.only_plans() => return planned,
        // Also where tables are missing: another process may be creating them.
        _ => {}
    }
    let explain = |failed: Failed| failed.error.explain(server, Fate::NotApplied);
    // Such locks are server-wide.
    let lock = format!("CONCAT('semel.{}.', MD5(DATABASE()))", tables.what);
    let limit = session.limit(TURN_MAX);
    let turn = number(session, format!("SELECT GET_LOCK({lock}, {TURN_SECONDS})")).await;
    session.limit(limit);
    let turn = turn.map_err(explain)?;
    if turn != Some(1) {
        let message = format!(
            "another process has been migrating the {} in {server} for {TURN_SECONDS} s; retry when it has finished",
            tables.what
        );
        return Err(StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message));
    }
    // Planned again under the lock: another process may have been faster.
    let done = match planned(tables, session, server, goal).await {
        Ok(plan) => apply(&plan, session, server).await.map(|()| plan),
        Err(error) => Err(error),
    };
    // A connection that ends releases the lock by itself.
    let _ = session.run(format!("DO RELEASE_LOCK({lock})")).await;
    done
}

async fn apply(plan: &MigrationPlan, session: &mut Session, server: &str) -> Result<(), StoreError> {
    let explain = |failed: Failed| failed.error.explain(server, Fate::NotApplied);
    if plan.before == 0 {
        for step in &plan.steps {
            session.run(step.sql.to_owned()).await.map_err(explain)?;
        }
        return Ok(());
    }
    let wait = |seconds: &str| format!("SET SESSION lock_wait_timeout = {seconds}");
    session.run(wait(&LOCK_WAIT_SECONDS.to_string())).await.map_err(explain)?;
    for statement in plan.steps.iter().flat_map(|step| statements(step.sql)) {
        for attempt in 1.. {
            let limit = session.limit(STATEMENT_MAX);
            let ran = session.run(statement.to_owned()).await;
            session.limit(limit);
            let Err(failed) = ran else { break };
            match failed.error.number() {
                Some(number) if DONE_BEFORE.contains(&number) => break,
                Some(LOCK_WAIT_TIMEOUT) if attempt < ATTEMPTS_MAX => tokio::time::sleep(RETRY_AFTER).await,
                _ => return Err(explain(failed)),
            }
        }
    }
    session.run(wait("DEFAULT")).await.map(drop).map_err(explain)
}

/// The statements of an upgrade, which ends each with a semicolon at the end of a line.
fn statements(sql: &str) -> impl Iterator<Item = &str> {
    sql.split(";\n").map(str::trim).filter(|statement| {
        statement.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with("--"))
    })
}

async fn planned(
    tables: &Tables,
    session: &mut Session,
    server: &str,
    goal: Goal,
) -> Result<MigrationPlan, StoreError> {
    let found = found(tables, session, server).await?;
    tables.plan(Dialect::Mysql, found, goal, server).map_err(wrong)
}

/// The version of the tables; 0 if there are none.
pub(crate) async fn found(tables: &Tables, session: &mut Session, server: &str) -> Result<u32, StoreError> {
    let explain = |failed: Failed| failed.error.explain(server, Fate::NotApplied);
    let version = match number(session, format!("SELECT CAST(version AS SIGNED) FROM {}", tables.meta)).await
    {
        Err(failed) if failed.error.number() == Some(NO_SUCH_TABLE) => None,
        found => found.map_err(explain)?,
    };
    let last = (tables.last)(Dialect::Mysql);
    let query = format!(
        "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '{last}'"
    );
    let whole = number(session, query).await.map_err(explain)? == Some(1);
    tables.found_version(Dialect::Mysql, version, whole, server).map_err(wrong)
}

async fn number(session: &mut Session, sql: String) -> Result<Option<i64>, Failed> {
    let results = session.run(sql).await?;
    let row = results.first().and_then(|results| results.rows.first());
    Ok(row.and_then(|row| row.try_get::<Option<i64>, _>(0).ok().flatten()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_is_run_statement_by_statement() {
        let sql = "-- why\nALTER TABLE a\n  ADD b INT;\n\nUPDATE m SET version = 2;\n-- end\n";
        let found: Vec<&str> = statements(sql).collect();
        assert_eq!(found, ["-- why\nALTER TABLE a\n  ADD b INT", "UPDATE m SET version = 2"]);
    }
}
