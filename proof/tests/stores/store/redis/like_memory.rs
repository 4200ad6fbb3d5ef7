//! The same requests at the same times get the same answers as from the store in memory: the Lua scripts decide as
//! `step` does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use semel::StoreTime;
use semel::store::memory::MemoryStore;
use testkit::services::{Service, require};

use super::support::{Server, connect, options, prefix, say};
use crate::store::history::{Op, Transcript};

const HISTORIES: usize = 40;
const STEPS: usize = 80;
/// Far in the future: Redis' own clock must not expire anything meanwhile.
const BEGIN_MS: u64 = 4_000_000_000_000;
const FAR_MS: u64 = 1 << 47;

/// A clock that both stores share, and that stands until it is set.
struct Hand {
    ms: Arc<AtomicU64>,
    key: String,
    connection: ::redis::aio::MultiplexedConnection,
}

impl Hand {
    async fn advance(&mut self, ms: u64) {
        let now = self.ms.fetch_add(ms, Ordering::SeqCst) + ms;
        say::<()>(&mut self.connection, &["SET", &self.key, &now.to_string()]).await;
    }
}

/// Slow: thousands of steps, each a round trip to the server.
#[tokio::test]
async fn redis_answers_as_memory_does() {
    let Some(_) = require(Service::Redis) else { return };
    let server = Server::start(&[]).await;
    let seed = testkit::seed::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    for history in 0..HISTORIES {
        let name = prefix("like");
        server.say::<()>(&["FLUSHALL"]).await;
        let key = format!("{name}clock");
        let mut hand = Hand {
            ms: Arc::new(AtomicU64::new(BEGIN_MS)),
            key: key.clone(),
            connection: connect(&server.url()).await,
        };
        hand.advance(0).await;
        let ms = hand.ms.clone();
        let memory = MemoryStore::with_clock(move || StoreTime(ms.load(Ordering::SeqCst)));
        let theirs = "local time = redis.call('TIME')\n    return time[1] * 1000000 + time[2]";
        let ours = format!("return redis.call('GET', '{key}') * 1000");
        let redis = options(&server.url(), &name).editing(move |_, text| {
            assert!(text.contains(theirs));
            text.replace(theirs, &ours)
        });
        let redis = redis.create().await.unwrap();
        let (mut by_memory, mut by_redis) = (Transcript::thrifty(FAR_MS), Transcript::thrifty(FAR_MS));
        let mut played = Vec::new();
        for _ in 0..STEPS {
            let op = Op::draw(&mut random);
            // Redis sweeps by itself.
            if matches!(op, Op::Sweep { .. }) {
                continue;
            }
            if let Op::Wait { ms } = op {
                hand.advance(ms).await;
            }
            played.push(format!("{op:?}"));
            let (memory, redis) = (by_memory.play(&memory, &op).await, by_redis.play(&redis, &op).await);
            assert_eq!(redis, memory, "seed {seed}, history {history}:\n{}", played.join("\n"));
        }
    }
}
