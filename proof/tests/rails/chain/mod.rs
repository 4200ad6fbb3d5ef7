//! The whole way from a commit to an effect: outbox, relay, broker, inbox, each killed in turn, and a table judges.
//!
//! `cargo xtask services up --only postgres,kafka`, then
//! `cargo test -p proof --features stores,sinks --test rails chain::`. `SEMEL_ROUNDS` has everything killed more often.
mod killed;
mod planted;
mod scene;

use std::time::Duration;

/// Nothing here takes this long on a machine that works.
const SOON: Duration = Duration::from_secs(120);

/// How often something is done that is left to chance.
fn rounds(default: u32) -> u32 {
    std::env::var("SEMEL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
