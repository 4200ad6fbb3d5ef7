//! The relay on real databases, judged by what the sink was given and by the tables.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores,sinks --test rails relay::`.
mod chaos;
mod cursor;
pub(crate) mod exactly_once;
mod mysql;
mod ownership;
mod parked;
mod plans;
mod planted;
mod prune;
pub(crate) mod sink;
pub(crate) mod sqlite;
mod twins;
mod unreadable;
mod wake;
pub(crate) mod world;
