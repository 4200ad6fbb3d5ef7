//! A store by its URL.

use super::memory::MemoryStore;
use super::{AnyStore, ErrorKind, Fate, StoreError};

/// Opens the store a URL names: `memory:` or `sqlite:PATH`.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = semel::store::open("memory:").await?;
/// assert!(semel::store::open("mongodb://localhost").await.is_err());
/// # Ok::<(), semel::store::StoreError>(()) }).unwrap();
/// ```
pub async fn open(url: &str) -> Result<AnyStore, StoreError> {
    let wrong = |message: String| StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message);
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(wrong(format!("{url:?} is not a store URL; use sqlite:PATH or memory:")));
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(AnyStore::new(MemoryStore::new())),
        "sqlite" => open_sqlite(rest.strip_prefix("//").unwrap_or(rest)).await,
        _ => Err(wrong(format!("no store is known for {scheme:?}; use sqlite:PATH or memory:"))),
    }
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(path: &str) -> Result<AnyStore, StoreError> {
    if path.is_empty() {
        let message = "sqlite: needs a path, such as sqlite:semel.db";
        return Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message));
    }
    super::sqlite::SqliteStore::open(path).await.map(AnyStore::new)
}

#[cfg(not(feature = "sqlite"))]
async fn open_sqlite(_path: &str) -> Result<AnyStore, StoreError> {
    let message = "this build has no SQLite store; build with the feature `sqlite`";
    Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message))
}
