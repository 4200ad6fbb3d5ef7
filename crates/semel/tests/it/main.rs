//! Integration tests, one file per behaviour.
#![allow(missing_docs, unreachable_pub)]

mod conformance_memory;
mod guard_faults;
mod guard_protocol;
mod guard_world;
