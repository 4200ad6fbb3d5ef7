//! The tables, their version, and migrations.

use sqlx::Row;

use super::error::{MysqlError, misconfigured};
use super::session::{Failed, Session};
use crate::migration::{Goal, Tables, Versions, mysql};
use crate::store::{Fate, StoreError};
use crate::tx::driver::Dialect;

/// The SQL of a new store's tables: what `semel migrate --print` shows. `mysql DATABASE < TEXT` makes the same tables.
pub const SQL: &str = include_str!("schema.sql");

/// The version of the tables that migrating leads to. This build also works with the next one.
pub const VERSION: u32 = 1;

/// Creating them may be done again: every statement may, and the version is written last.
pub(super) const TABLES: Tables = Tables {
    what: "store",
    meta: "semel_meta",
    last: |_| "semel_intent",
    resumable: true,
    migrate: "semel migrate",
    versions: |_| &VERSIONS,
};

const VERSIONS: Versions = Versions { create: SQL, upgrades: &[], oldest: 1 };

/// Checks that the tables exist in a version this build works with.
pub(super) async fn expect(session: &mut Session, server: &str) -> Result<(), StoreError> {
    match mysql::found(&TABLES, session, server).await? {
        0 => Err(misconfigured(format!(
            "{server} has none of semel's tables; check the URL, or create them with `semel migrate`"
        ))),
        found => TABLES.check(Dialect::Mysql, found.into(), server).map_err(misconfigured),
    }
}

/// Creates or upgrades the tables. Of several processes that start at once one does it and the others find it done. If
/// it dies half way, the next one completes it.
pub(super) async fn create_or_upgrade(session: &mut Session, server: &str) -> Result<(), StoreError> {
    mysql::run(&TABLES, session, server, Goal::Start).await.map(|_| ())
}

/// The stored lineage.
pub(super) async fn lineage(session: &mut Session, server: &str) -> Result<[u8; 16], StoreError> {
    read_lineage(session).await.map_err(|failed| failed.error.explain(server, Fate::NotApplied))
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
    let mut session = dial.open().await.map_err(|error| error.explain(&name, Fate::NotApplied))?;
    let digits = crate::store::Lineage::random();
    let update = format!("UPDATE semel_meta SET lineage = X'{digits}' WHERE only_row = 1");
    session.run(update).await.map_err(|failed| failed.error.explain(&name, Fate::InDoubt))?;
    let made = lineage(&mut session, &name).await?;
    session.close().await;
    Ok(made)
}
