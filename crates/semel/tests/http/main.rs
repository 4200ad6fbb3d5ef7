//! The edge over real HTTP and through tower, one file per behaviour.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod atomic;
#[cfg(feature = "axum")]
mod axum_routes;
mod bodies;
mod building;
mod callers;
mod compression;
mod contract;
mod core_table;
mod failures;
mod isolation;
mod keys;
mod long_work;
mod without_framework;
mod world;
