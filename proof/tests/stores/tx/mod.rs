//! Once inside the caller's own transaction, on real databases, judged by counting rows with a connection of
//! the judge's own.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores --test stores tx::`.
#![allow(clippy::duplicate_mod, reason = "the tests of MySQL's protocol run on each server that speaks it")]

mod command;
mod crash_matrix;
mod driver;
mod isolation;
mod ledger;
pub(crate) mod mysql_world;
mod once;
mod phases;
mod planted;
mod pooled;
mod store;
mod undo;
mod world;

#[path = "mysql"]
mod mariadb {
    const SERVER: testkit::services::Service = testkit::services::Service::Mariadb;

    mod command;
    mod ledger;
    mod locks;
    mod once;
    mod phases;
    mod undo;
}

#[path = "mysql"]
mod mysql {
    const SERVER: testkit::services::Service = testkit::services::Service::Mysql;

    mod command;
    mod ledger;
    mod locks;
    mod once;
    mod phases;
    mod undo;
}
