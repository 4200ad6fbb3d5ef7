//! Once inside the caller's own transaction, on real databases, judged by counting rows with a connection of
//! the judge's own.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores --test stores tx::`.
mod command;
mod command_mysql;
mod crash_matrix;
mod driver;
mod isolation;
mod ledger;
mod ledger_mysql;
mod mysql;
mod mysql_locks;
mod once;
mod phases;
mod phases_mysql;
mod planted;
mod pooled;
mod store;
mod world;
