//! Events appended in the caller's transaction, on real databases, judged by reading the table with a connection of
//! the judge's own.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores --test outbox`.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod append;
mod append_mysql;
mod world;
