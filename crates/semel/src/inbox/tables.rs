//! The inbox's tables, their versions included.

use crate::migration::{Goal, MigrationPlan, Tables, Upgrade, Versions};
use crate::store::{Migrated, StoreError};
use crate::tx::driver::Dialect;

/// The version of the tables that [`migrate`] leads to. This build also works with the next one.
pub const VERSION: u32 = 3;

pub(crate) const TABLES: Tables = Tables {
    what: "inbox",
    meta: "semel_inbox_meta",
    last: |_| "semel_inbox_result",
    resumable: false,
    migrate: "semel migrate --inbox URL",
    versions: |dialect| match dialect {
        Dialect::Postgres => &POSTGRES,
        Dialect::Mysql => &MYSQL,
        Dialect::Sqlite => &SQLITE,
    },
};

/// The versions in a dialect: the first file, and what each later one added.
macro_rules! versions {
    ($name:ident, $first:literal, $($later:literal),*) => {
        const $name: Versions = Versions {
            create: concat!(include_str!($first), $(include_str!($later)),*),
            upgrades: &[$(Upgrade::Expand(include_str!($later))),*],
            oldest: VERSION,
        };
    };
}
const POSTGRES: Versions = Versions {
    create: concat!(
        include_str!("sql/postgres.sql"),
        include_str!("sql/postgres_dead.sql"),
        include_str!("sql/postgres_thin.sql")
    ),
    upgrades: &[
        Upgrade::Expand(include_str!("sql/postgres_dead.sql")),
        Upgrade::Stop(include_str!("sql/postgres_thin.sql")),
    ],
    oldest: VERSION,
};
versions!(MYSQL, "sql/mysql.sql", "sql/mysql_dead.sql", "sql/same_3.sql");
versions!(SQLITE, "sql/sqlite.sql", "sql/sqlite_dead.sql", "sql/same_3.sql");

/// The SQL that creates the tables in that dialect. Run it once, with your migrations, or call [`migrate`].
pub fn schema(dialect: Dialect) -> &'static str {
    (TABLES.versions)(dialect).create
}

/// Creates the inbox's tables in the database at `url`, or migrates them to [`VERSION`]. Safe to call concurrently: one
/// caller does it.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let dir = tempfile::tempdir().unwrap();
/// let url = format!("sqlite:{}", dir.path().join("app.db").display());
/// assert_eq!(semel::inbox::migrate(&url).await?.before, 0);
/// assert_eq!(semel::inbox::migrate(&url).await?.before, semel::inbox::VERSION);
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

/// The dialect of the database at `url`, if it can hold an inbox.
pub fn dialect(url: &str) -> Result<Dialect, StoreError> {
    TABLES.dialect(url)
}
