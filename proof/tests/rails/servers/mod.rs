//! Each server really does the one thing semel will rely on.
//!
//! Every test asserts both sides: the effect where it must be, and its absence where it must not.
//! They run against real servers: `cargo xtask services up`, then
//! `cargo test -p proof --features stores,sinks --test rails servers::`.

mod elasticmq;
mod faults;
mod kafka;
mod mysql;
mod nats;
mod postgres;
mod rabbitmq;
mod redis;
mod redis_cluster;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nothing here takes this long on a machine that works.
const SOON: Duration = Duration::from_secs(60);

/// A new name: servers keep their data from run to run.
fn unique(prefix: &str) -> String {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{prefix}_{}_{nanos}", std::process::id())
}

/// Bounds a wait: a server that does not answer fails the test instead of hanging it.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("no answer within a minute")
}
