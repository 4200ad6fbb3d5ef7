//! Redis and Redis Cluster keep every law, and say what they have lost.

mod conformance;
mod faults;
mod like_memory;
mod loss;
mod planted;
mod slots;
pub(crate) mod support;
