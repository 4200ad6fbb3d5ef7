//! The tables, their version, and how a database gets them.

use sqlx::Row;

use super::error::{MysqlError, misconfigured};
use super::row;
use super::session::{Failed, Session};
use crate::store::{ErrorKind, Fate, StoreError};

/// The tables of a new store, as one text: what `semel migrate --print` shows. `mysql DATABASE < TEXT` makes
/// the same tables.
pub const SQL: &str = include_str!("schema.sql");

/// The version this build reads and writes.
pub const VERSION: u32 = 1;

/// How long one who starts waits for another who is making the tables.
const TURN_SECONDS: u32 = 30;

/// Names the lock that serialises migrations of one database. Such locks are the whole server's.
const LOCK: &str = "CONCAT('semel.migrate.', MD5(DATABASE()))";

/// The version of the tables; 0 where there are none.
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
            "the tables in {server} were made by a newer semel (version {version}, this build knows \
             {VERSION}); upgrade semel, or use another database"
        ))),
    }
}

/// Brings the tables to [`VERSION`] and says which version they had. Of several that start at once one does
/// it and the others find it done; one that dies half way leaves what the next one completes, because every
/// statement may be run again and the version is written last.
pub(super) async fn bring_up(session: &mut Session, server: &str) -> Result<u32, StoreError> {
    let before = version(session, server).await?;
    if before == VERSION {
        return Ok(before);
    }
    let explain = |failed: Failed| failed.trouble.explain(server, Fate::NotApplied);
    let turn = session.run(format!("SELECT GET_LOCK({LOCK}, {TURN_SECONDS}) = 1")).await.map_err(explain)?;
    let mine = turn.first().and_then(|brought| brought.rows.first());
    let mine = mine.is_some_and(|row| row.try_get::<Option<i64>, _>(0).ok().flatten() == Some(1));
    if !mine {
        let message = format!(
            "somebody else has been making the tables in {server} for {TURN_SECONDS} s; retry when that has ended"
        );
        return Err(StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message));
    }
    // Asked again under the lock: somebody else may have been faster.
    let made = match version(session, server).await {
        Ok(VERSION) => Ok(VERSION),
        Ok(before) => session.run(SQL.to_owned()).await.map(|_| before).map_err(explain),
        Err(error) => Err(error),
    };
    // A connection that ends gives the lock back by itself.
    let _ = session.run(format!("DO RELEASE_LOCK({LOCK})")).await;
    made
}

/// The name drawn when the tables were made, or made anew since.
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

/// Gives the data a new name: what is kept elsewhere about the old one is worth nothing from then on.
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

/// Creates or upgrades the tables without opening a store, and says which version they had before: 0 where
/// there were none.
pub async fn migrate(url: &str) -> Result<u32, StoreError> {
    let (_, dial, name) = super::MysqlOptions::default().with_url(url)?;
    let mut session = dial.open().await.map_err(|trouble| trouble.explain(&name, Fate::NotApplied))?;
    let before = bring_up(&mut session, &name).await?;
    session.close().await;
    Ok(before)
}
