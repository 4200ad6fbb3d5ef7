//! Short names for what the tests of Redis do all the time.

use std::sync::atomic::{AtomicU64, Ordering};

use ::redis::aio::MultiplexedConnection;
use semel::intent::fingerprint::Fingerprint;
use semel::store::redis::{RedisOptions, RedisStore};
use semel::store::{Claim, Claimed, Finish, Finished, Store, StoreError, Ticket};
use semel::{Effect, Intent, Key, Operation, Outcome, Owner, Retention, Scope, Verdict};

pub(crate) const LEASE_MS: u64 = 60_000;

/// A prefix nobody had before: a store of the test's own in a shared server.
pub(crate) fn prefix(name: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let random = fastrand::u64(..);
    format!("{name}-{random:x}-{count}:")
}

/// The URL of the cluster as semel writes it.
pub(crate) fn cluster_url(nodes: &str) -> String {
    format!("redis+cluster://{}", nodes.replace("redis://", ""))
}

pub(crate) fn options(url: &str, prefix: &str) -> RedisOptions {
    RedisStore::options(url).unwrap().prefix(prefix).unwrap()
}

/// A new store of the test's own.
pub(crate) async fn fresh(url: &str, name: &str) -> RedisStore {
    options(url, &prefix(name)).create().await.unwrap()
}

pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    ::redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

pub(crate) async fn say<T: ::redis::FromRedisValue>(
    connection: &mut MultiplexedConnection,
    words: &[&str],
) -> T {
    let mut command = ::redis::Cmd::new();
    words.iter().for_each(|word| {
        command.arg(*word);
    });
    command.query_async(connection).await.unwrap()
}

pub(crate) fn intent(key: &str) -> Intent {
    intent_of("acme", "payment.create", key)
}

pub(crate) fn intent_of(tenant: &str, operation: &str, key: &str) -> Intent {
    Intent::new(Scope::tenant(tenant).unwrap(), Operation::new(operation).unwrap(), Key::new(key).unwrap())
}

pub(crate) fn claim(key: &str) -> Claim {
    Claim {
        intent: intent(key),
        fingerprint: Fingerprint::from_parts([7; 32], 1),
        owner: Owner::random(),
        effect: Effect::Opaque,
        lease_ms: LEASE_MS,
    }
}

pub(crate) fn completed(body: &str) -> Finish {
    Finish {
        verdict: Verdict::Completed,
        outcome: Some(Outcome::new(201, body.to_owned())),
        retention: Retention::DAY,
    }
}

pub(crate) async fn run(store: &impl Store, claim: Claim) -> Ticket {
    match store.claim(claim).await {
        Ok(Claimed::Run(ticket)) => ticket,
        other => panic!("{other:?}"),
    }
}

/// Claims and finishes.
pub(crate) async fn done(store: &impl Store, key: &str) -> Ticket {
    let ticket = run(store, claim(key)).await;
    assert_eq!(store.finish(ticket, completed(key)).await.unwrap(), Finished::Recorded);
    ticket
}

/// The body that is replayed.
pub(crate) async fn replayed(store: &impl Store, key: &str) -> String {
    body_of(store.claim(claim(key)).await)
}

pub(crate) fn body_of(claimed: Result<Claimed, StoreError>) -> String {
    match claimed {
        Ok(Claimed::Replay(existing)) => {
            let outcome = existing.record.outcome.unwrap();
            String::from_utf8(outcome.body_bytes().unwrap().to_vec()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}
