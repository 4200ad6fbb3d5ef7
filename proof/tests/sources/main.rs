//! Consumers as processes that are killed, over a real broker and a real database: a table judges.
//!
//! `cargo xtask services up --only postgres,kafka,rabbitmq,redis`, then
//! `cargo test -p proof --features stores,sinks --test sources`. `SEMEL_ROUNDS` has more killed and more moved,
//! `SEMEL_MESSAGES` more messages in queues and streams.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod broker;
mod crash;
mod laws;
mod moved;
mod outage;
mod planted;
mod queues;
mod rabbitmq;
mod redis_stream;
mod scene;

use std::time::Duration;

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

/// A name that nothing had before.
fn unique(of: &str) -> String {
    let nanos = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    format!("{of}_{}_{nanos}", std::process::id())
}
