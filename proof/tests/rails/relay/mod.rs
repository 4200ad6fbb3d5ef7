//! The relay on real databases, judged by what the sink was given and by the tables.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores,sinks --test rails relay::`.
mod chaos;
mod cursor;
pub(crate) mod exactly_once;
mod lease;
mod mysql;
mod order;
mod ownership;
mod parked;
mod plans;
mod planted;
mod pooled;
mod prune;
pub(crate) mod sink;
mod sqlite;
mod wake;
mod world;
