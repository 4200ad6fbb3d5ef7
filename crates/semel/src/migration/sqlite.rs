//! In the caller's SQLite file, in one transaction.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use super::{Goal, MigrationPlan, Tables, sqlite_path, wrong};
use crate::store::sqlite::error::SqliteError;
use crate::store::sqlite::open::{full_path, in_thread};
use crate::store::{Fate, StoreError};
use crate::tx::driver::Dialect;

/// How long to wait for another writer.
const BUSY: Duration = Duration::from_secs(5);

pub(super) async fn migrate(tables: &Tables, url: &str, goal: Goal) -> Result<MigrationPlan, StoreError> {
    let (path, tables) = (full_path(sqlite_path(url))?, *tables);
    in_thread(move || {
        let explain = |error: rusqlite::Error| SqliteError::from(error).explain(&path, Fate::NotApplied);
        if goal.only_plans() {
            if !path.exists() {
                return tables.plan(Dialect::Sqlite, 0, goal, &path.display().to_string()).map_err(wrong);
            }
            let connection =
                Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(explain)?;
            connection.busy_timeout(BUSY).map_err(explain)?;
            return planned(&tables, &connection, &path, goal);
        }
        let mut connection = Connection::open(&path).map_err(explain)?;
        connection.busy_timeout(BUSY).map_err(explain)?;
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(explain)?;
        let plan = planned(&tables, &tx, &path, goal)?;
        for step in &plan.steps {
            tx.execute_batch(step.sql).map_err(explain)?;
        }
        tx.commit().map_err(explain)?;
        Ok(plan)
    })
    .await
}

fn planned(
    tables: &Tables,
    connection: &Connection,
    path: &Path,
    goal: Goal,
) -> Result<MigrationPlan, StoreError> {
    let explain = |error: rusqlite::Error| SqliteError::from(error).explain(path, Fate::NotApplied);
    let there = |table: &str| {
        let query = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        connection.query_row(query, [table], |_| Ok(())).optional().map(|found| found.is_some())
    };
    let version = match there(tables.meta).map_err(explain)? {
        true => {
            let query = format!("SELECT version FROM {}", tables.meta);
            connection.query_row(&query, [], |row| row.get(0)).optional().map_err(explain)?
        }
        false => None,
    };
    let whole = there((tables.last)(Dialect::Sqlite)).map_err(explain)?;
    let location = path.display().to_string();
    let found = tables.found_version(Dialect::Sqlite, version, whole, &location).map_err(wrong)?;
    tables.plan(Dialect::Sqlite, found, goal, &location).map_err(wrong)
}
