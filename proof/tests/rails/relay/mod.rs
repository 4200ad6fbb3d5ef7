//! The relay on real databases, judged by what the sink was given and by the tables.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores,sinks --test rails relay::`.
#![allow(clippy::duplicate_mod, reason = "the tests of MySQL's protocol run on each server that speaks it")]

mod chaos;
mod cursor;
pub(crate) mod exactly_once;
mod lease;
mod mysql_world;
mod order;
mod ownership;
mod parked;
mod plans;
mod planted;
mod pooled;
mod prune;
pub(crate) mod sink;
pub(crate) mod sqlite;
mod twins;
mod unreadable;
mod wake;
pub(crate) mod world;

#[path = "mysql"]
mod mariadb {
    const SERVER: testkit::services::Service = testkit::services::Service::Mariadb;

    mod poll;
}

#[path = "mysql"]
mod mysql {
    const SERVER: testkit::services::Service = testkit::services::Service::Mysql;

    mod poll;
}
