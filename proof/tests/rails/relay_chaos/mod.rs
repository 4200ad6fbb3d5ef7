//! The relay under load while something dies: real databases, a real broker, real processes, judged by a stranger.
//!
//! `cargo xtask services up --only postgres,mariadb,mysql,kafka`, then
//! `cargo test -p proof --features stores,sinks --test rails relay_chaos::`. `SEMEL_ROUNDS` has it killed more often.
mod broker;
mod cdc;
mod exactly_once;
pub(crate) mod judge;
mod killed;
pub(crate) mod load;
mod outage;
mod planted;
mod promoted;
mod scene;
mod servers;
mod several;

use std::time::Duration;

/// Nothing here takes this long on a machine that works.
const SOON: Duration = Duration::from_secs(180);

/// How often something is done that is left to chance.
fn rounds(default: u32) -> u32 {
    std::env::var("SEMEL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
