//! Webhooks received: what is believed, what is not, and what is answered.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod edges;
mod fuzz;
mod packages;
mod planted;
mod request;
mod service;
mod vectors;
