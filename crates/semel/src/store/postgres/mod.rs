//! PostgreSQL.

use super::{AnyStore, ErrorKind, Fate, Migrated, StoreError};

mod error;
pub(crate) mod lock;
pub mod schema;

pub use schema::SQL;

pub(super) async fn open_url(_url: &str, _create: bool) -> Result<AnyStore, StoreError> {
    Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, "not built yet"))
}

pub(super) async fn migrate_url(_url: &str) -> Result<Migrated, StoreError> {
    Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, "not built yet"))
}
