//! The client against servers that lose, delay, refuse and forget.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod answers;
mod budget;
mod durable;
mod durable_file;
mod killed;
#[cfg(feature = "reqwest")]
mod over_reqwest;
mod own_layer;
mod script;
