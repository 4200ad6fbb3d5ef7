//! The outbox read from PostgreSQL's log, judged by what the sink was given, by the slot and by the tables.
//!
//! `cargo xtask services up --only postgres`, then `cargo test -p proof --features stores,sinks --test rails cdc::`.
//! `SEMEL_CDC_ROUNDS=20` for more chaos, `SEMEL_CDC_EVENTS=100000` for a larger transaction.

mod alone;
mod beginning;
mod chaos;
mod check;
mod crash;
mod exactly_once;
mod filtered;
mod large;
mod lineage;
mod lost;
mod order;
mod parked;
mod resume;
mod routed;
mod standby;
mod unreadable;
mod world;
