//! The service as a process, killed and asked again, judged by connections of the test's own to its database.

#![allow(clippy::unwrap_used)]

mod cache;
mod cards;
mod client;
mod crash;
mod database;
mod events;
#[cfg(feature = "kafka")]
mod notify;
mod once;
mod orders;
mod refunds;
mod retention;
mod service;
