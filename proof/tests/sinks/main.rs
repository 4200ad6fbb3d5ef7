//! The sinks against real brokers, judged by readers that have nothing to do with them.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features sinks --test sinks`.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod kafka;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use semel::outbox::Event;

/// Nothing here takes this long on a machine that works.
const SOON: Duration = Duration::from_secs(60);

/// A name nobody has used before: servers keep their data from run to run.
fn unique(prefix: &str) -> String {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{prefix}-{}-{nanos}-{}", std::process::id(), fastrand::u32(..))
}

/// The `n`th event of that key, which says so.
fn event(topic: &str, key: &str, n: usize) -> Arc<Event> {
    Arc::new(Event::new(topic, "number", n.to_string()).unwrap().key(key).unwrap())
}
