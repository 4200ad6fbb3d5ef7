//! What semel promises, shown from outside: one file per behaviour.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod captured_log;
mod conformance_memory;
#[cfg(feature = "sqlite")]
mod conformance_sqlite;
#[cfg(feature = "sqlite")]
mod consumer;
mod consumer_end;
#[cfg(feature = "sqlite")]
mod consumer_window;
mod guard_doubt;
mod guard_expiry;
mod guard_faults;
mod guard_minimal;
mod guard_observed;
mod guard_protocol;
mod guard_retry;
mod guard_world;
#[cfg(feature = "sqlite")]
mod ledger;
mod modes;
mod planted;
#[cfg(all(feature = "seal", feature = "zstd"))]
mod protect;
mod recover;
#[cfg(feature = "sqlite")]
mod relay_backoff;
#[cfg(feature = "sqlite")]
mod relay_drain;
#[cfg(feature = "sqlite")]
mod relay_observed;
#[cfg(feature = "sqlite")]
mod relay_promise;
#[cfg(feature = "sqlite")]
mod relay_transactions;
#[cfg(feature = "saga")]
mod saga;
mod sink_planted;
mod source_planted;
#[cfg(feature = "sqlite")]
mod sqlite_batch;
#[cfg(feature = "sqlite")]
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
mod sweeper;
#[cfg(feature = "sqlite")]
mod tx_sqlite;
#[cfg(feature = "sqlite")]
mod tx_undo;
