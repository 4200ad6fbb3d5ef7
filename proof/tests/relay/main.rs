//! The relay on real databases, judged by what the sink was given and by the tables.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores --test relay`.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod chaos;
mod cursor;
mod exactly_once;
mod mysql;
mod ownership;
mod parked;
mod plans;
mod planted;
mod prune;
mod sink;
mod sqlite;
mod wake;
mod world;
