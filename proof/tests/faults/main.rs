//! Real servers that are killed, cut off, paused and flushed under load; a ledger judges.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores --test faults`.
