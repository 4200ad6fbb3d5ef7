//! In MySQL and MariaDB, where every statement commits by itself: half-made tables are refused.

use sqlx::Row;

use super::Tables;
use crate::store::mysql::MysqlStore;
use crate::store::mysql::session::{Failed, Session};
use crate::store::{ErrorKind, Fate, StoreError};
use crate::tx::driver::Dialect;

/// How long to wait for another process that is creating the tables.
const TURN_SECONDS: u32 = 30;

pub(super) async fn bring_up(tables: &Tables, url: &str) -> Result<u32, StoreError> {
    let (_, dial, server) = MysqlStore::options().with_url(url)?;
    let mut session = dial.open().await.map_err(|error| error.explain(&server, Fate::NotApplied))?;
    let explain = |failed: Failed| failed.trouble.explain(&server, Fate::NotApplied);
    // Such locks are server-wide.
    let lock = format!("CONCAT('semel.{}.', MD5(DATABASE()))", tables.what);
    let turn =
        number(&mut session, format!("SELECT GET_LOCK({lock}, {TURN_SECONDS})")).await.map_err(explain)?;
    if turn != Some(1) {
        let message = format!(
            "another process has been creating the tables in {server} for {TURN_SECONDS} s; retry when it has finished"
        );
        return Err(StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message));
    }
    // The table that is created last shows that all of them were.
    let there = |table: &str| {
        format!(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '{table}'"
        )
    };
    let meta = number(&mut session, there(tables.meta)).await.map_err(explain)?;
    let version = match meta {
        Some(1) => {
            let query = format!("SELECT CAST(version AS SIGNED) FROM {}", tables.meta);
            number(&mut session, query).await.map_err(explain)?
        }
        _ => None,
    };
    let whole = number(&mut session, there((tables.last)(Dialect::Mysql))).await.map_err(explain)? == Some(1);
    let before = tables.found_version(Dialect::Mysql, version, whole, &server)?;
    for step in tables.missing(Dialect::Mysql, before) {
        session.run((*step).to_owned()).await.map_err(explain)?;
    }
    // Closing the connection releases the lock.
    session.close().await;
    Ok(before)
}

async fn number(session: &mut Session, sql: String) -> Result<Option<i64>, Failed> {
    let results = session.run(sql).await?;
    let row = results.first().and_then(|results| results.rows.first());
    Ok(row.and_then(|row| row.try_get::<Option<i64>, _>(0).ok().flatten()))
}
