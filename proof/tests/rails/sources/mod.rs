//! Consumers as processes that are killed, over a real broker and a real database: a table judges.
//!
//! `cargo xtask services up --only postgres,kafka,rabbitmq,redis`, then
//! `cargo test -p proof --features stores,sinks --test rails sources::`. `SEMEL_ROUNDS` has more killed and more moved,
//! `SEMEL_MESSAGES` more messages in queues and streams.
mod crash;
mod dead;
mod kafka;
mod large;
mod laws;
mod moved;
mod nats;
mod outage;
mod planted;
mod queues;
mod quorum;
mod rabbitmq;
mod redis_stream;
mod scene;
mod sqs;
mod taken;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nothing here takes this long on a machine that works.
const SOON: Duration = Duration::from_secs(90);

/// How often something is done that is left to chance.
fn rounds(default: u32) -> u32 {
    std::env::var("SEMEL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// How many messages there are where more show more.
fn messages(default: usize) -> usize {
    std::env::var("SEMEL_MESSAGES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A new name: servers keep their data from run to run.
fn unique(prefix: &str) -> String {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{prefix}_{}_{nanos}_{}", std::process::id(), fastrand::u16(..))
}
