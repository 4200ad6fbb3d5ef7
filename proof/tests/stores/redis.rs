//! Redis and Redis Cluster keep every law, and say what they have lost.

mod conformance;
pub(crate) mod support;
