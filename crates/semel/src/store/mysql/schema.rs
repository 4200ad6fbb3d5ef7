//! The tables, their version, and migrations.

use sqlx::Row;

use super::error::{MysqlError, misconfigured};
use super::row;
use super::session::{Failed, Session};
use crate::store::{ErrorKind, Fate, StoreError};

/// The SQL of a new store's tables: what `semel migrate --print` shows. `mysql DATABASE < TEXT` makes the same tables.
pub const SQL: &str = include_str!("schema.sql");

/// The version this build reads and writes.
pub const VERSION: u32 = 1;

/// How long a starting process waits for another that is creating the tables.
const LOCK_WAIT_SECONDS: u32 = 30;

/// The name of the lock that serialises migrations of one database. Such names are shared by the whole server.
const LOCK: &str = "CONCAT('semel.migrate.', MD5(DATABASE()))";

/// The version of the tables; 0 if there are none.
pub(super) async fn version(session: &mut Session, server: &str) -> Result<u32, StoreError> {
    let explain = |trouble: MysqlError| trouble.explain(server, Fate::NotApplied);
    let found =
        session.run("SELECT CAST(version AS SIGNED) FROM semel_meta WHERE only_row = 1".to_owned()).await;
    let rows = match found {
        Ok(mut brought) => brought.pop().unwrap_or_default().rows,
        // No such table.
        Err(Failed { trouble, .. }) if trouble.number() == Some(1146) => return Ok(0),
        Err(Failed { trouble, .. }) => return Err(explain(trouble)),
    };
    let Some(row) = rows.first() else { return Ok(0) };
    let version = row::unsigned(row, 0).map_err(explain)?;
    match u32::try_from(version) {
        Ok(version @ 0..=VERSION) => Ok(version),
        _ => Err(misconfigured(format!(
            "the tables in {server} were created by a newer semel (version {version}, this build knows \
             {VERSION}); upgrade semel, or use another database"
        ))),
    }
}

/// Creates or upgrades the tables; returns the version before. Of several processes that start at once one does it
/// and the others find it done. If it dies half way, the next one completes it, because every statement may be run
/// again and the version is written last.
pub(super) async fn create_or_upgrade(session: &mut Session, server: &str) -> Result<u32, StoreError> {
    let before = version(session, server).await?;
    if before == VERSION {
        return Ok(before);
    }
    let explain = |failed: Failed| failed.trouble.explain(server, Fate::NotApplied);
    let lock =
        session.run(format!("SELECT GET_LOCK({LOCK}, {LOCK_WAIT_SECONDS}) = 1")).await.map_err(explain)?;
    let locked = lock.first().and_then(|brought| brought.rows.first());
    let locked = locked.is_some_and(|row| row.try_get::<Option<i64>, _>(0).ok().flatten() == Some(1));
    if !locked {
        let message = format!(
            "another process has been creating the tables in {server} for {LOCK_WAIT_SECONDS} s; retry when it \
             has finished"
        );
        return Err(StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message));
    }
    // Checked again under the lock: another process may have been faster.
    let made = match version(session, server).await {
        Ok(VERSION) => Ok(VERSION),
        Ok(before) => session.run(SQL.to_owned()).await.map(|_| before).map_err(explain),
        Err(error) => Err(error),
    };
    // A connection that ends releases the lock by itself.
    let _ = session.run(format!("DO RELEASE_LOCK({LOCK})")).await;
    made
}

/// The stored lineage.
pub(super) async fn lineage(session: &mut Session, server: &str) -> Result<[u8; 16], StoreError> {
    read_lineage(session).await.map_err(|failed| failed.trouble.explain(server, Fate::NotApplied))
}

pub(super) async fn read_lineage(session: &mut Session) -> Result<[u8; 16], Failed> {
    let brought = session.run("SELECT lineage FROM semel_meta WHERE only_row = 1".to_owned()).await?;
    let row = brought.first().and_then(|brought| brought.rows.first());
    let stored = row.map(|row| row.try_get::<&[u8], _>(0)).transpose();
    let stored = stored.map_err(|error| Failed::from(MysqlError::from(error)))?;
    let unreadable = || Failed::from(MysqlError::Unreadable("semel_meta has no lineage".into()));
    stored.and_then(|stored| stored.try_into().ok()).ok_or_else(unreadable)
}

/// Gives the data a new lineage: what is kept elsewhere under the old one is ignored from then on.
pub(super) async fn new_lineage(url: &str) -> Result<[u8; 16], StoreError> {
    let (_, dial, name) = super::MysqlOptions::default().with_url(url)?;
    let mut session = dial.open().await.map_err(|trouble| trouble.explain(&name, Fate::NotApplied))?;
    let digits = crate::store::Lineage::random();
    let update = format!("UPDATE semel_meta SET lineage = X'{digits}' WHERE only_row = 1");
    session.run(update).await.map_err(|failed| failed.trouble.explain(&name, Fate::InDoubt))?;
    let made = lineage(&mut session, &name).await?;
    session.close().await;
    Ok(made)
}

/// Creates or upgrades the tables without opening a store; returns the version they had before, 0 if there were none.
pub async fn migrate(url: &str) -> Result<u32, StoreError> {
    let (_, dial, name) = super::MysqlOptions::default().with_url(url)?;
    let mut session = dial.open().await.map_err(|trouble| trouble.explain(&name, Fate::NotApplied))?;
    let before = create_or_upgrade(&mut session, &name).await?;
    session.close().await;
    Ok(before)
}
