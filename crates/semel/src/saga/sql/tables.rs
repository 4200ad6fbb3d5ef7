//! The tables of sagas, their versions included.

use crate::migration::{Goal, MigrationPlan, Tables, Versions};
use crate::store::{Migrated, StoreError};
use crate::tx::driver::Dialect;

/// The version of the tables that [`migrate`] leads to. This build also works with the next one.
pub const VERSION: u32 = 1;

pub(crate) const TABLES: Tables = Tables {
    what: "sagas",
    meta: "semel_saga_meta",
    last: |_| "semel_saga_signal",
    // MySQL commits every statement by itself.
    resumable: true,
    migrate: "semel migrate --saga URL",
    versions: |dialect| match dialect {
        Dialect::Postgres => &POSTGRES,
        Dialect::Mysql => &MYSQL,
        Dialect::Sqlite => &SQLITE,
    },
};

const POSTGRES: Versions = Versions { create: include_str!("postgres.sql"), upgrades: &[], oldest: 1 };
const MYSQL: Versions = Versions { create: include_str!("mysql.sql"), upgrades: &[], oldest: 1 };
const SQLITE: Versions = Versions { create: include_str!("sqlite.sql"), upgrades: &[], oldest: 1 };

/// The SQL that creates the tables in that dialect. Run it once, with your migrations, or call [`migrate`].
pub fn schema(dialect: Dialect) -> &'static str {
    (TABLES.versions)(dialect).create
}

/// Creates the tables of sagas in the database at `url`, or migrates them to [`VERSION`]. Safe to call concurrently: one
/// caller does it.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let dir = tempfile::tempdir().unwrap();
/// let url = format!("sqlite:{}", dir.path().join("app.db").display());
/// assert_eq!(semel::saga::sql::migrate(&url).await?.before, 0);
/// assert_eq!(semel::saga::sql::migrate(&url).await?.before, semel::saga::sql::VERSION);
/// # Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
pub async fn migrate(url: &str) -> Result<Migrated, StoreError> {
    Ok(TABLES.migrate(url, Goal::Expand, "").await?.migrated())
}

/// Like [`migrate`], and removes what only older versions of semel use. Call it when none of them is running any more.
pub async fn contract(url: &str) -> Result<Migrated, StoreError> {
    Ok(TABLES.migrate(url, Goal::Contract, "").await?.migrated())
}

/// What [`migrate`], or with `contract` [`contract`], would do. Changes nothing.
pub async fn plan_migration(url: &str, contract: bool) -> Result<MigrationPlan, StoreError> {
    TABLES.migrate(url, Goal::Plan { contract }, "").await
}

/// The dialect of the database at `url`, if it can hold sagas.
pub fn dialect(url: &str) -> Result<Dialect, StoreError> {
    TABLES.dialect(url)
}
