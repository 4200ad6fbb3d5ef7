//! What is remembered, on real servers: stores, transactions, outbox and inbox tables, and the faults they meet.
//!
//! `cargo xtask services up --only postgres,mariadb,mysql,redis,redis-cluster`, then
//! `cargo test -p proof --features hooks,edge --test stores`, with the name of a module or a test to run less.
//! Tests marked `#[ignore = "prove: …"]` need luck, load or minutes: `cargo xtask prove` runs them.
//!
//! | module | what it shows |
//! |---|---|
//! | `protocol` | claim, run, finish by processes that are killed at every point |
//! | `store` | the laws of stores on PostgreSQL, MariaDB, MySQL, Redis, Redis Cluster and tiered |
//! | `tx` | once in the caller's transaction, phases, commands, the ledger |
//! | `upgrade` | this build on the tables of the release before and of the one after, under load |
//! | `saga` | journals of sagas, and sagas whose processes are killed |
//! | `outbox` | events appended, messages marked, dead letters kept, on every database |
//! | `faults` | servers cut off, paused, killed, flushed, full |
//! | `hooks` | webhooks received by processes that are killed |
//! | `edge` | the core table of the HTTP edge on every store |
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[cfg(feature = "edge")]
mod edge;
mod faults;
#[cfg(feature = "hooks")]
mod hooks;
mod outbox;
mod protocol;
mod saga;
mod store;
mod tx;
mod upgrade;
