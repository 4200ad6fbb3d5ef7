//! Redis, Valkey and Redis Cluster.

use super::{AnyStore, ErrorKind, Fate, StoreError};

pub(super) async fn open_url(_url: &str, _create: bool) -> Result<AnyStore, StoreError> {
    Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, "not built yet"))
}
