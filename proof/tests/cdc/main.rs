//! The outbox read from PostgreSQL's log, judged by what the sink was given, by the slot and by the tables.
//!
//! `cargo xtask services up --only postgres`, then `cargo test -p proof --features stores --test cdc`.
//! `SEMEL_CDC_ROUNDS=20` for more chaos, `SEMEL_CDC_EVENTS=200000` for larger transactions.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "../relay/sink.rs"]
mod sink;

mod order;
mod world;
