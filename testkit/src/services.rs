//! Real servers for tests: private, on loopback, with their data under `target/services/`.
//!
//! No test double stands in for a store or a broker; a double agrees with its author. Each server is an ordinary
//! process started from a Debian package or from jars of Maven Central, on ports of this checkout's own, so that two
//! checkouts and the machine's own servers do not meet.
//!
//! `cargo xtask services up` starts them. A test asks for one and says so when it goes without:
//!
//! ```no_run
//! use testkit::services::{Service, require};
//!
//! let Some(postgres) = require(Service::Postgres) else { return };
//! let url = postgres.url();
//! # let _ = url;
//! ```
//!
//! A test that kills or pauses a server takes it [`alone`], which waits until no other test uses it and keeps the
//! others waiting until it runs again.

mod access;
mod catalogue;
mod cluster;
mod control;
pub mod debezium;
mod elasticmq;
mod error;
mod install;
mod instance;
mod jars;
pub mod kafka;
mod lock;
mod mariadb;
mod mysql;
mod nats;
mod pooler;
mod ports;
mod postgres;
mod probe;
mod process;
mod prometheus;
mod rabbitmq;
mod recipe;
mod redis;
mod redis_cluster;
pub mod streams;

pub use access::{Lease, SKIP_LOG_ENV, WITHOUT_ENV, find, require};
pub use catalogue::Service;
pub use cluster::Cluster;
pub use control::{Alone, alone};
pub use error::{Error, Result};
pub use install::{install, install_packages};
pub use instance::{Condition, Status, Up, down, root, status, up};
pub use pooler::Pooler;
pub use ports::spare_port;
pub use prometheus::promtool;
