//! Faults, judges and real servers for semel's tests.
//!
//! - [`services`]: real servers, private to a checkout; a test may also kill and pause them.
//! - [`proxy`]: a TCP proxy that cuts, delays, hangs and drops answers.
//! - [`child`]: a child process that is stopped or killed at a named crash point.
//! - [`contract`]: listings of what others rely on, which change only on purpose.
//! - [`ledger`]: an append-and-fsync file that counts how often an effect really happened.
//! - [`openmetrics`]: what a metrics document promises, without its values.
//! - [`python`]: a private Python with packages, for third-party clients.
//! - [`scratch`]: directories in memory.
//! - [`seed`]: randomness that can be replayed.
//!
//! Plain threads and blocking calls throughout: it serves tests of any kind, with a runtime or
//! without, and builds in seconds. Every wait has a bound.

pub mod certificates;
pub mod child;
pub mod contract;
pub mod ledger;
pub mod openmetrics;
pub mod proxy;
pub mod python;
pub mod scratch;
pub mod seed;
pub mod services;
mod stopped;
