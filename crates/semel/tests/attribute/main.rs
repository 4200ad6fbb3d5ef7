//! `#[semel::idempotent]`: what it makes of functions and handlers. What it refuses is shown in `semel-macros`.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod failures;
mod functions;
mod handlers;
mod methods;
mod policies;
mod world;
