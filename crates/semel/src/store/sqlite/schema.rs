//! The tables, their version, and how a file gets them.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::error::{SqliteError, refused};
use super::options::SqliteOptions;
use super::{StoreError, open};
use crate::store::{Fate, Lineage};

/// The tables of a new file, as one text: what `semel migrate --print` shows. `sqlite3 FILE < TEXT` makes the
/// same tables.
pub const SQL: &str = include_str!("schema.sql");

/// The version this build reads and writes.
pub const VERSION: u32 = 2;

/// What brings a file of each older version to the next, from version 1.
const UPGRADES: &[&str] = &[include_str!("sql/upgrade-2.sql")];

/// Marks a file as ours (`SEML`); `file(1)` and SQLite itself call it the application id.
pub const APPLICATION_ID: u32 = 0x5345_4D4C;

/// Creates or upgrades the tables of a file without opening a store, and says which version it had before:
/// 0 for a new one.
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
    let file = SqliteOptions::default().file(path.as_ref())?;
    open::in_thread(move || open::connect(&file).map(|(_, before)| before)).await
}

/// Gives a file's data a new lineage and returns it: what a cache has of the old one is worth nothing from then
/// on. For the person who has put an older backup in the file's place. The file has to be there.
pub async fn new_lineage(path: impl AsRef<Path>) -> Result<Lineage, StoreError> {
    let file = SqliteOptions::default().create(false).file(path.as_ref())?;
    open::in_thread(move || {
        let (connection, _) = open::connect(&file)?;
        let lineage = Lineage::random();
        let write = || -> Result<(), SqliteError> {
            connection.execute("UPDATE lineage SET id = ?1 WHERE only_row = 1", [lineage.as_bytes()])?;
            Ok(())
        };
        write().map_err(|trouble| trouble.explain(&file.path, Fate::InDoubt))?;
        Ok(lineage)
    })
    .await
}

/// What a file is to us.
pub(super) enum SchemaStatus {
    /// Empty: make the tables.
    New,
    /// Ours, in this version.
    Ours(u32),
}

/// Looks without touching: a file that is not ours must stay as it is.
pub(super) fn standing(connection: &Connection) -> Result<SchemaStatus, SqliteError> {
    // One statement, one snapshot: somebody else may be making the tables at this very moment.
    let (application, version, things): (u32, u32, u32) = connection.query_row(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
         FROM pragma_application_id, pragma_user_version",
        [],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    match (application, version, things) {
        (0, 0, 0) => Ok(SchemaStatus::New),
        (APPLICATION_ID, 1..=VERSION, 1..) => Ok(SchemaStatus::Ours(version)),
        (APPLICATION_ID, newer, _) if newer > VERSION => Err(refused(format!(
            "was written by a newer semel (its tables have version {newer}, this build knows {VERSION}); \
             upgrade semel, or use another file"
        ))),
        (APPLICATION_ID, ..) => {
            Err(refused("is marked as semel's but has none of its tables; restore it from a backup".into()))
        }
        _ => Err(refused(
            "is a database of another application; semel keeps a file of its own, name another path".into(),
        )),
    }
}

/// Brings the file to [`VERSION`] in one transaction and says which version it had. Of several processes
/// that open a new file at once, one does it and the others find it done.
pub(super) fn bring_up(connection: &mut Connection) -> Result<u32, SqliteError> {
    if let SchemaStatus::Ours(VERSION) = standing(connection)? {
        return Ok(VERSION);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Asked again under the lock: somebody else may have been faster.
    let before = match standing(&transaction)? {
        SchemaStatus::Ours(version) => {
            for upgrade in UPGRADES.iter().skip(version as usize - 1) {
                transaction.execute_batch(upgrade)?;
            }
            version
        }
        SchemaStatus::New => {
            transaction.execute_batch(SQL)?;
            0
        }
    };
    transaction.commit()?;
    Ok(before)
}
