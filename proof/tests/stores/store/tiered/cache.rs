//! A cache that is down, slow, flushed, full of somebody else's bytes: the answers stay right, and it is counted.

use std::time::Duration;

use semel::store::tiered::TieredStore;
use semel::store::{Claimed, Store};
use testkit::proxy::{Fault, Proxy};

use super::support::Place;
use crate::store::redis::support::{claim, connect, done, replayed, soon};

#[tokio::test]
async fn a_flushed_cache_is_filled_again() {
    let Some(place) = Place::new() else { return };
    let store = place.open().await;
    done(&store, "k").await;
    place.filled("stored", 1).await;
    let mut connection = connect(place.redis.url()).await;
    for key in place.entries().await {
        ::redis::cmd("DEL").arg(key).query_async::<()>(&mut connection).await.unwrap();
    }
    assert_eq!(replayed(&store, "k").await, "k");
    assert_eq!((place.looks("hit"), place.looks("miss")), (0, 2));
    place.filled("stored", 2).await;
    assert_eq!(replayed(&store, "k").await, "k");
    assert_eq!(place.looks("hit"), 1);
}

#[tokio::test]
async fn a_lying_cache_is_not_believed() {
    let Some(place) = Place::new() else { return };
    let store = place.open().await;
    done(&store, "one").await;
    done(&store, "two").await;
    place.filled("stored", 2).await;
    let mut connection = connect(place.redis.url()).await;
    let keys = place.entries().await;
    assert_eq!(keys.len(), 2);
    let mut entries: Vec<Vec<u8>> = Vec::new();
    for key in &keys {
        entries.push(::redis::cmd("GET").arg(key).query_async(&mut connection).await.unwrap());
    }
    let mut flipped = entries[0].clone();
    let last = flipped.len() - 1;
    flipped[last] ^= 1;
    let mut wrong = 0;
    // The other's answer, another body, nothing, rubbish, and something that is no text at all.
    for bytes in [&entries[1][..], &flipped, b"", b"HTTP/1.1 200 OK", &entries[0][..40]] {
        ::redis::cmd("SET").arg(&keys[0]).arg(bytes).query_async::<()>(&mut connection).await.unwrap();
        let ended = place.fills_ended();
        for key in ["one", "two"] {
            assert_eq!(replayed(&store, key).await, key);
        }
        wrong += 1;
        assert_eq!(place.looks("wrong"), wrong);
        // The fill after the authority's answer may replace what is put there next: it comes first.
        soon(async {
            while place.fills_ended() == ended {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
    ::redis::cmd("DEL").arg(&keys[0]).query_async::<()>(&mut connection).await.unwrap();
    ::redis::cmd("LPUSH").arg(&keys[0]).arg("x").query_async::<()>(&mut connection).await.unwrap();
    for key in ["one", "two"] {
        assert_eq!(replayed(&store, key).await, key);
    }
    assert!(place.looks("error") >= 1);
}

#[tokio::test]
async fn a_hanging_cache_costs_its_timeout_a_few_times_and_then_nothing() {
    const CALLS: u64 = 50;
    let Some(place) = Place::new() else { return };
    let proxy = Proxy::start(place.redis.url().trim_start_matches("redis://")).unwrap();
    let url = format!("redis://{}?prefix={}&timeout=1000&connections=1", proxy.addr(), place.prefix);
    // It is filled with patience, and known to be reached under the short bound before it hangs.
    let patient = place.open().await;
    done(&patient, "k").await;
    place.filled("stored", 1).await;
    let store = TieredStore::open(place.sqlite().await, &url, &place.metrics).await.unwrap();
    soon(async {
        while place.looks("hit") == 0 {
            assert_eq!(replayed(&store, "k").await, "k");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let looked = || ["error", "skipped", "hit"].map(|result| place.looks(result));
    let before = looked();
    proxy.set(Fault::Hang);
    for _ in 0..CALLS {
        assert_eq!(replayed(&store, "k").await, "k");
    }
    let after = looked();
    let [failed, skipped, hits] = std::array::from_fn(|n| after[n] - before[n]);
    assert!((1..CALLS / 2).contains(&failed), "{failed} calls waited for the cache");
    assert_eq!(failed + skipped + hits, CALLS);
    assert_eq!(hits, 0);
    // It comes back: one finds out, and then everybody gets their answers from there again.
    proxy.set(Fault::Pass);
    let enough = place.looks("hit") + 5;
    soon(async {
        while place.looks("hit") <= enough {
            assert_eq!(replayed(&store, "k").await, "k");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn without_redis_everything_works() {
    let Some(place) = Place::new() else { return };
    let url = "redis://127.0.0.1:1?timeout=200";
    let store = TieredStore::open(place.sqlite().await, url, &place.metrics).await.unwrap();
    for n in 0..20 {
        let key = format!("k{n}");
        done(&store, &key).await;
        assert_eq!(replayed(&store, &key).await, key);
        assert!(matches!(store.claim_verified(claim(&key)).await.unwrap(), Claimed::Replay(_)));
    }
    assert_eq!(place.looks("hit"), 0);
    assert!(place.looks("skipped") > 0);
}
