//! The real gateway, on real sockets, in front of a service that keeps a ledger.
#![allow(clippy::unwrap_used)]

mod admin;
mod attacks;
mod authorize;
mod client;
mod config;
mod core_table;
#[cfg(feature = "crash-points")]
mod crash;
mod doubt;
mod drain;
mod gateway;
mod limits;
mod once;
mod pass;
mod protect;
#[cfg(feature = "postgres")]
mod server;
mod shadow;
mod upstream;
