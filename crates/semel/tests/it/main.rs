//! What semel promises, shown from outside: one file per behaviour.
#![allow(missing_docs, unreachable_pub)]

mod conformance_memory;
#[cfg(feature = "sqlite")]
mod conformance_sqlite;
mod guard_faults;
mod guard_protocol;
mod guard_world;
mod planted;
#[cfg(feature = "sqlite")]
mod sqlite_like_memory;
#[cfg(feature = "sqlite")]
mod sqlite_reopen;
#[cfg(feature = "sqlite")]
mod sqlite_support;
