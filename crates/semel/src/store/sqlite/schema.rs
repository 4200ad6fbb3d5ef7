//! The tables, their version, and migrations.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::error::{SqliteError, refused};
use super::options::SqliteOptions;
use super::{StoreError, open};
use crate::migration::{Goal, MigrationPlan, Misfit, Upgrade, Versions};
use crate::store::{Fate, Lineage};

/// The SQL of a new file's tables: what `semel migrate --print` shows. `sqlite3 FILE < TEXT` makes the same tables.
pub const SQL: &str = include_str!("schema.sql");

/// The version of the tables that migrating leads to. This build also works with the next one.
pub const VERSION: u32 = 2;

const VERSIONS: Versions = Versions {
    create: SQL,
    upgrades: &[Upgrade::Expand(include_str!("sql/upgrade-2.sql"))],
    oldest: VERSION,
};

/// SQLite's application id; marks a file as semel's (`SEML`).
pub const APPLICATION_ID: u32 = 0x5345_4D4C;

/// Creates or upgrades the tables of a file without opening a store; returns the version it had before, 0 for a new
/// file.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("semel.db");
/// use semel::store::sqlite::schema;
///
/// assert_eq!(schema::migrate(&path).await?, 0);
/// assert_eq!(schema::migrate(&path).await?, schema::VERSION);
/// # Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
pub async fn migrate(path: impl AsRef<Path>) -> Result<u32, StoreError> {
    Ok(migrate_file(path.as_ref(), Goal::Expand).await?.before)
}

pub(in crate::store) async fn migrate_file(path: &Path, goal: Goal) -> Result<MigrationPlan, StoreError> {
    let file = SqliteOptions::default().create(!goal.only_plans()).file(path)?;
    open::in_thread(move || {
        if goal.only_plans() && !file.path.exists() {
            return Ok(MigrationPlan::of_new(&VERSIONS));
        }
        open::migrate(&file, goal)
    })
    .await
}

/// Gives a file's data a new lineage and returns it. Cache entries made under the old lineage are ignored from then on.
/// Run this after restoring an older backup. The file has to exist.
pub async fn new_lineage(path: impl AsRef<Path>) -> Result<Lineage, StoreError> {
    let file = SqliteOptions::default().create(false).file(path.as_ref())?;
    open::in_thread(move || {
        let connection = open::connect(&file)?;
        let lineage = Lineage::random();
        let write = || -> Result<(), SqliteError> {
            connection.execute("UPDATE lineage SET id = ?1 WHERE only_row = 1", [lineage.as_bytes()])?;
            Ok(())
        };
        write().map_err(|error| error.explain(&file.path, Fate::InDoubt))?;
        Ok(lineage)
    })
    .await
}

/// What a file holds.
pub(super) enum SchemaStatus {
    /// Nothing: the tables have to be created.
    New,
    /// semel's tables, in this version.
    Ours(u32),
}

/// Reads without changing anything: a file that is not ours must stay as it is.
pub(super) fn status(connection: &Connection) -> Result<SchemaStatus, SqliteError> {
    // One statement, one snapshot: another process may be creating the tables right now.
    let (application, version, things): (u32, u32, u32) = connection.query_row(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
         FROM pragma_application_id, pragma_user_version",
        [],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    match (application, version, things) {
        (0, 0, 0) => Ok(SchemaStatus::New),
        (APPLICATION_ID, 1.., 1..) => match VERSIONS.check(version) {
            // Older ones are upgraded when they are opened.
            Ok(()) | Err(Misfit::Older) => Ok(SchemaStatus::Ours(version)),
            Err(_) => Err(refused(format!(
                "was written by a newer semel (its tables have version {version}, this build knows {VERSION}); \
                 upgrade semel, or use another file"
            ))),
        },
        (APPLICATION_ID, ..) => {
            Err(refused("is marked as semel's but has no tables; restore it from a backup".into()))
        }
        _ => Err(refused(
            "belongs to another application; semel needs a file of its own, so name another path".into(),
        )),
    }
}

/// Creates or upgrades the tables in one transaction, or only plans to. Of several processes that open a new file at
/// once, one does it and the others find it done.
pub(super) fn create_or_upgrade(
    connection: &mut Connection,
    goal: Goal,
) -> Result<MigrationPlan, SqliteError> {
    let plan = planned(connection, goal)?;
    if plan.steps.is_empty() || goal.only_plans() {
        return Ok(plan);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Planned again under the lock: another process may have been faster.
    let plan = planned(&transaction, goal)?;
    for step in &plan.steps {
        transaction.execute_batch(step.sql)?;
    }
    transaction.commit()?;
    Ok(plan)
}

fn planned(connection: &Connection, goal: Goal) -> Result<MigrationPlan, SqliteError> {
    let found = match status(connection)? {
        SchemaStatus::New => 0,
        SchemaStatus::Ours(version) => version,
    };
    let planned = match goal {
        Goal::Start => VERSIONS.plan_at_start(found),
        _ => VERSIONS.plan(found, goal.contracts()),
    };
    planned.map_err(|misfit| {
        refused(format!(
            "cannot be migrated: {}",
            VERSIONS.explain(misfit, found, "store", "it", "semel migrate")
        ))
    })
}
