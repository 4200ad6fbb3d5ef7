//! Both ends of the rail in the caller's transaction: events appended, and messages handled. On real databases, judged by
//! reading the tables with a connection of the judge's own.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores --test stores outbox::`.
mod append;
mod append_mysql;
mod dead;
mod dead_world;
mod inbox;
mod inbox_sqlite;
mod world;
