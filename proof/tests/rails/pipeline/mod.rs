//! Pipelines from Kafka to Kafka as processes that are killed, stopped and replaced: Kafka's own consumer judges.
//!
//! `cargo xtask services up --only kafka`, then `cargo test -p proof --features stores,sinks --test rails pipeline::`.
//! `SEMEL_PIPELINE_KILLS` (8) and `SEMEL_PIPELINE_MESSAGES` (20000) have more killed, over more messages.
mod killed;
mod moved;
mod outage;
mod planted;
mod poison;
mod scene;

use std::time::Duration;

/// Nothing here takes this long on a machine that works.
const SOON: Duration = Duration::from_secs(90);

fn wanted(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
