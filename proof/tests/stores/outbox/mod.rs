//! Both ends of the rail in the caller's transaction: events appended, and messages handled. On real databases, judged by
//! reading the tables with a connection of the judge's own.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores --test stores outbox::`.
#![allow(clippy::duplicate_mod, reason = "the tests of MySQL's protocol run on each server that speaks it")]

mod append;
mod dead;
mod dead_world;
mod inbox;
mod inbox_sqlite;
pub mod world;

#[path = "mysql"]
mod mariadb {
    const SERVER: testkit::services::Service = testkit::services::Service::Mariadb;

    mod append;
}

#[path = "mysql"]
mod mysql {
    const SERVER: testkit::services::Service = testkit::services::Service::Mysql;

    mod append;
}
