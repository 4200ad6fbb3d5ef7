//! Every store on its real server keeps every law.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores --test stores store::`.

#![allow(clippy::duplicate_mod, reason = "the tests of MySQL's protocol run on each server that speaks it")]

mod caught;
mod history;
pub(crate) mod postgres;
mod protect;
mod redis;
mod tiered;

#[path = "mysql"]
mod mariadb {
    const SERVER: testkit::services::Service = testkit::services::Service::Mariadb;

    mod doubt;
    mod laws;
    mod like_memory;
    mod locks;
    mod migration;
    mod planted;
    mod server;
    mod support;
    mod text;
    // Only here: the MySQL of the tests is older than what rustls speaks.
    mod tls;
    mod unreadable;
}

#[path = "mysql"]
mod mysql {
    const SERVER: testkit::services::Service = testkit::services::Service::Mysql;

    mod doubt;
    mod laws;
    mod like_memory;
    mod locks;
    mod migration;
    mod planted;
    mod server;
    mod support;
    mod text;
    mod unreadable;
}
