//! Redis and Redis Cluster keep every law, and say what they have lost.
#![allow(clippy::unwrap_used)]

mod conformance;
mod failover;
mod faults;
mod like_memory;
mod loss;
mod planted;
mod replicas;
mod slots;
pub(crate) mod support;
mod tls;
