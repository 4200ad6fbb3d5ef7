//! Real servers that are killed, cut off, paused and flushed under load; a ledger judges.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores --test stores faults::`. Each fault is made once;
//! `SEMEL_FAULT_ROUNDS=10` makes it ten times under one load, `SEMEL_SEED` draws the same calls again.
mod cluster;
mod crowded;
mod cut;
mod flushed;
mod nodes;
mod paused;
pub(crate) mod place;
mod planted;
mod processes;
mod restarted;
mod scene;
mod tiered;
