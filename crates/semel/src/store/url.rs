//! Opens a store by its URL.

use super::memory::MemoryStore;
use super::{AnyStore, ErrorKind, Fate, Lineage, StoreError};
#[cfg(feature = "_sql")]
use crate::migration::{Goal, MigrationPlan};

/// Opens the store a URL names; creates its file or tables if they do not exist.
///
/// | URL | store | feature |
/// |---|---|---|
/// | `memory:` | this process's memory | |
/// | `sqlite:PATH` | one file | `sqlite` |
/// | `postgres://USER@HOST/DATABASE` | PostgreSQL | `postgres` |
/// | `mysql://USER@HOST/DATABASE` | MySQL or MariaDB | `mysql` |
/// | `redis://HOST`, `redis+cluster://HOST,HOST` | Redis or Valkey | `redis` |
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = semel::store::open("memory:").await?;
/// assert!(semel::store::open("mongodb://localhost").await.is_err());
/// # Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
pub async fn open(url: &str) -> Result<AnyStore, StoreError> {
    open_or_create(url, true).await
}

/// Opens an existing store, for tools that inspect another process's store. Creates nothing, so a mistyped path is
/// an error and not a new, empty store.
pub async fn open_existing(url: &str) -> Result<AnyStore, StoreError> {
    open_or_create(url, false).await
}

/// Opens the store a URL names with the Redis of another URL in front of it; see [`tiered`](super::tiered).
#[cfg(feature = "redis")]
pub async fn open_tiered(
    url: &str,
    cache_url: &str,
    metrics: &crate::observe::Metrics,
) -> Result<AnyStore, StoreError> {
    behind_cache(open(url).await?, cache_url, metrics).await
}

/// Puts the Redis of a URL in front of a store.
#[cfg(feature = "redis")]
pub async fn behind_cache(
    store: AnyStore,
    cache_url: &str,
    metrics: &crate::observe::Metrics,
) -> Result<AnyStore, StoreError> {
    match named(cache_url)? {
        Named::Redis => Ok(AnyStore::new(super::tiered::TieredStore::open(store, cache_url, metrics).await?)),
        _ => Err(wrong("the cache has to be Redis; write redis://HOST or redis+cluster://HOST,HOST".into())),
    }
}

async fn open_or_create(url: &str, create: bool) -> Result<AnyStore, StoreError> {
    match named(url)? {
        Named::Memory if create => Ok(AnyStore::new(MemoryStore::new())),
        Named::Memory => Err(in_memory()),
        #[cfg(feature = "sqlite")]
        Named::Sqlite(path) => {
            super::sqlite::SqliteStore::options().create(create).open(path).await.map(AnyStore::new)
        }
        #[cfg(feature = "postgres")]
        Named::Postgres => super::postgres::open_url(url, create).await,
        #[cfg(feature = "mysql")]
        Named::Mysql => super::mysql::open_url(url, create).await,
        #[cfg(feature = "redis")]
        Named::Redis => super::redis::open_url(url, create).await,
    }
}

/// The version of a store's tables before and after [`migrate`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Migrated {
    /// The version before; 0 if this call created the store.
    pub before: u32,
    /// The version now.
    pub now: u32,
}

/// Creates or upgrades the tables of the store a URL names.
pub async fn migrate(url: &str) -> Result<Migrated, StoreError> {
    match named(url)? {
        Named::Memory => Err(in_memory()),
        #[cfg(feature = "redis")]
        Named::Redis => super::redis::migrate_url(url).await,
        #[cfg(feature = "_sql")]
        named => Ok(migrate_tables(named, url, Goal::Expand).await?.migrated()),
    }
}

/// Like [`migrate`], and removes what only older versions of semel use. Call it when none of them is running any more.
#[cfg(feature = "_sql")]
pub async fn contract(url: &str) -> Result<Migrated, StoreError> {
    Ok(migrate_tables(named(url)?, url, Goal::Contract).await?.migrated())
}

/// What [`migrate`], or with `contract` [`contract`], would do. Changes nothing.
#[cfg(feature = "_sql")]
pub async fn plan_migration(url: &str, contract: bool) -> Result<MigrationPlan, StoreError> {
    migrate_tables(named(url)?, url, Goal::Plan { contract }).await
}

#[cfg(feature = "_sql")]
#[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(unused_variables))]
async fn migrate_tables(named: Named<'_>, url: &str, goal: Goal) -> Result<MigrationPlan, StoreError> {
    match named {
        Named::Memory => Err(in_memory()),
        #[cfg(feature = "sqlite")]
        Named::Sqlite(path) => super::sqlite::schema::migrate_file(path.as_ref(), goal).await,
        #[cfg(feature = "postgres")]
        Named::Postgres => super::postgres::migrate_url(url, goal).await,
        #[cfg(feature = "mysql")]
        Named::Mysql => super::mysql::migrate_url(url, goal).await,
        #[cfg(feature = "redis")]
        Named::Redis => Err(wrong(
            "a store in Redis has no tables: there is nothing to plan or to contract, and `semel migrate` creates its \
             markers"
                .into(),
        )),
    }
}

/// Gives the data of the store a URL names a new lineage and returns it. Cache entries made under the old lineage are
/// ignored from then on. Run this after restoring an older backup.
pub async fn new_lineage(url: &str) -> Result<Lineage, StoreError> {
    match named(url)? {
        #[cfg(feature = "sqlite")]
        Named::Sqlite(path) => super::sqlite::schema::new_lineage(path).await,
        #[cfg(feature = "postgres")]
        Named::Postgres => super::postgres::new_lineage(url).await,
        #[cfg(feature = "mysql")]
        Named::Mysql => super::mysql::new_lineage(url).await,
        _ => Err(wrong("this store's lineage cannot be replaced; empty the cache instead".into())),
    }
}

/// The SQL that [`migrate`] runs on a new store of that kind. Opens no connection and changes nothing.
pub fn schema(url: &str) -> Result<&'static str, StoreError> {
    match named(url)? {
        Named::Memory => Err(in_memory()),
        #[cfg(feature = "sqlite")]
        Named::Sqlite(_) => Ok(super::sqlite::schema::SQL),
        #[cfg(feature = "postgres")]
        Named::Postgres => Ok(super::postgres::SQL),
        #[cfg(feature = "mysql")]
        Named::Mysql => Ok(super::mysql::SQL),
        #[cfg(feature = "redis")]
        Named::Redis => Err(no_tables()),
    }
}

enum Named<'a> {
    Memory,
    #[cfg(feature = "sqlite")]
    Sqlite(&'a str),
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "mysql")]
    Mysql,
    #[cfg(feature = "redis")]
    Redis,
    // Without a store that takes a path, no other variant borrows from the URL.
    #[cfg(not(feature = "sqlite"))]
    #[allow(dead_code)]
    Nothing(std::convert::Infallible, std::marker::PhantomData<&'a str>),
}

const KNOWN: &str = "use sqlite:PATH, postgres://…, mysql://…, redis://…, redis+cluster://… or memory:";

fn named(url: &str) -> Result<Named<'_>, StoreError> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(wrong(format!("{url:?} is not a store URL; {KNOWN}")));
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(Named::Memory),
        "sqlite" => match rest.strip_prefix("//").unwrap_or(rest) {
            "" => Err(wrong("sqlite: needs a path, such as sqlite:semel.db".into())),
            #[cfg(feature = "sqlite")]
            path => Ok(Named::Sqlite(path)),
            #[cfg(not(feature = "sqlite"))]
            _ => Err(not_built("SQLite", "sqlite")),
        },
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Named::Postgres),
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => Err(not_built("PostgreSQL", "postgres")),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Ok(Named::Mysql),
        #[cfg(not(feature = "mysql"))]
        "mysql" | "mariadb" => Err(not_built("MySQL", "mysql")),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+cluster" | "rediss+cluster" => Ok(Named::Redis),
        #[cfg(not(feature = "redis"))]
        "redis" | "rediss" | "redis+cluster" | "rediss+cluster" => Err(not_built("Redis", "redis")),
        _ => Err(wrong(format!("there is no store for the scheme {scheme:?}; {KNOWN}"))),
    }
}

fn wrong(message: String) -> StoreError {
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
}

fn in_memory() -> StoreError {
    wrong(
        "memory: exists only inside its own process; name a store that lasts, such as sqlite:semel.db".into(),
    )
}

#[cfg(feature = "redis")]
fn no_tables() -> StoreError {
    wrong("a store in Redis has no tables; `semel migrate` without --print creates its markers".into())
}

#[cfg(not(all(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "redis")))]
fn not_built(store: &str, feature: &str) -> StoreError {
    wrong(format!("this build has no {store} store; build with the feature `{feature}`"))
}
