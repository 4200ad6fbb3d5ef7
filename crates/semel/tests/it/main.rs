//! What semel promises, shown from outside.
#![allow(clippy::unwrap_used)]

#[cfg(feature = "sqlite")]
mod sqlite_batch;
#[cfg(all(feature = "sqlite", unix))]
mod sqlite_disk_error;
#[cfg(feature = "sqlite")]
mod sqlite_like_memory;
#[cfg(feature = "sqlite")]
mod sqlite_list;
#[cfg(feature = "sqlite")]
mod sqlite_log;
#[cfg(feature = "sqlite")]
mod sqlite_reopen;
#[cfg(feature = "sqlite")]
mod sqlite_shared;
#[cfg(feature = "sqlite")]
mod sqlite_support;
#[cfg(feature = "sqlite")]
mod sqlite_sweep;
#[cfg(feature = "sqlite")]
mod sqlite_trouble;
#[cfg(feature = "sqlite")]
mod sqlite_wrong_file;
