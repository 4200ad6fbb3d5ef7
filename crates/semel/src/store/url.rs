//! A store by its URL.

use super::memory::MemoryStore;
use super::{AnyStore, ErrorKind, Fate, StoreError};

/// Opens the store a URL names: `memory:` or `sqlite:PATH`. A file that is not there is made.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = semel::store::open("memory:").await?;
/// assert!(semel::store::open("mongodb://localhost").await.is_err());
/// # Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
pub async fn open(url: &str) -> Result<AnyStore, StoreError> {
    match named(url)? {
        Named::Memory => Ok(AnyStore::new(MemoryStore::new())),
        Named::Sqlite(path) => open_sqlite(path, true).await,
    }
}

/// Opens a store that is there already, for tools that look at another process's store: nothing is made, so
/// that a mistyped path is an error and not a new, empty store.
pub async fn open_existing(url: &str) -> Result<AnyStore, StoreError> {
    match named(url)? {
        Named::Memory => Err(in_memory()),
        Named::Sqlite(path) => open_sqlite(path, false).await,
    }
}

/// The versions of a store's tables around a [`migrate`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Migrated {
    /// The version it had; 0 for a store that was made just now.
    pub before: u32,
    /// The version it has.
    pub now: u32,
}

/// Creates or upgrades the tables of the store a URL names.
pub async fn migrate(url: &str) -> Result<Migrated, StoreError> {
    match named(url)? {
        Named::Memory => Err(in_memory()),
        Named::Sqlite(path) => migrate_sqlite(path).await,
    }
}

/// What [`migrate`] runs on a new store of that kind, as text. Touches nothing.
pub fn schema(url: &str) -> Result<&'static str, StoreError> {
    match named(url)? {
        Named::Memory => Err(in_memory()),
        Named::Sqlite(_) => schema_sqlite(),
    }
}

enum Named<'a> {
    Memory,
    Sqlite(&'a str),
}

fn named(url: &str) -> Result<Named<'_>, StoreError> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(wrong(format!("{url:?} is not a store URL; use sqlite:PATH or memory:")));
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(Named::Memory),
        "sqlite" => match rest.strip_prefix("//").unwrap_or(rest) {
            "" => Err(wrong("sqlite: needs a path, such as sqlite:semel.db".into())),
            path => Ok(Named::Sqlite(path)),
        },
        _ => Err(wrong(format!("no store is known for {scheme:?}; use sqlite:PATH or memory:"))),
    }
}

fn wrong(message: String) -> StoreError {
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
}

fn in_memory() -> StoreError {
    wrong("memory: lives and ends with its process; name a store that lasts, such as sqlite:semel.db".into())
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(path: &str, create: bool) -> Result<AnyStore, StoreError> {
    super::sqlite::SqliteStore::options().create(create).open(path).await.map(AnyStore::new)
}

#[cfg(feature = "sqlite")]
async fn migrate_sqlite(path: &str) -> Result<Migrated, StoreError> {
    let before = super::sqlite::schema::migrate(path).await?;
    Ok(Migrated { before, now: super::sqlite::schema::VERSION })
}

#[cfg(feature = "sqlite")]
fn schema_sqlite() -> Result<&'static str, StoreError> {
    Ok(super::sqlite::schema::SQL)
}

#[cfg(not(feature = "sqlite"))]
async fn open_sqlite(_path: &str, _create: bool) -> Result<AnyStore, StoreError> {
    Err(no_sqlite())
}

#[cfg(not(feature = "sqlite"))]
async fn migrate_sqlite(_path: &str) -> Result<Migrated, StoreError> {
    Err(no_sqlite())
}

#[cfg(not(feature = "sqlite"))]
fn schema_sqlite() -> Result<&'static str, StoreError> {
    Err(no_sqlite())
}

#[cfg(not(feature = "sqlite"))]
fn no_sqlite() -> StoreError {
    wrong("this build has no SQLite store; build with the feature `sqlite`".into())
}
