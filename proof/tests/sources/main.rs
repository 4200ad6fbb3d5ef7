//! Consumers as processes that are killed, over a real broker and a real database: a table judges.
//!
//! `cargo xtask services up --only postgres,kafka`, then
//! `cargo test -p proof --features stores,sinks --test sources`. `SEMEL_ROUNDS` has more killed and more moved.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod crash;
mod dead;
mod laws;
mod moved;
mod outage;
mod planted;
mod scene;

use std::time::Duration;

/// Nothing here takes this long on a machine that works.
const SOON: Duration = Duration::from_secs(90);

/// How often something is done that is left to chance.
fn rounds(default: u32) -> u32 {
    std::env::var("SEMEL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
