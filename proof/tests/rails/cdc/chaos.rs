//! Crashes anywhere: the relay's future is dropped, connections are cut, the sink fails; what must hold is that of each
//! key everything comes, in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::proxy::{Fault, Proxy};
use testkit::seed::{rng_for, seed};

use crate::cdc::world::{Running, World, insert, quick};
use crate::relay::sink::TestSink;

const KEYS: u32 = 5;

/// Writes to all keys until stopped, several events a transaction, some of them rolled back. Gives how many of
/// each key were committed.
async fn write(world: &World, part: u32, mut rng: fastrand::Rng, stop: Arc<AtomicBool>) -> u32 {
    let client = world.connect().await;
    let (mut next, key) = (0, format!("w{part}"));
    while !stop.load(Ordering::Relaxed) {
        let events = rng.u32(1..8);
        let inserts: String = (next..next + events).map(|n| insert(&key, &n.to_string())).collect();
        if rng.u32(0..5) == 0 {
            let all = inserts.replace("'t'", "'no'");
            client.batch_execute(&format!("BEGIN; {all} ROLLBACK")).await.unwrap();
        }
        if rng.u32(0..4) == 0 {
            let extra = insert(&key, "no");
            client
                .batch_execute(&format!("BEGIN; SAVEPOINT s; {extra} ROLLBACK TO s; {inserts} COMMIT"))
                .await
                .unwrap();
        } else {
            client.batch_execute(&format!("BEGIN; {inserts} COMMIT")).await.unwrap();
        }
        next += events;
        tokio::time::sleep(Duration::from_millis(rng.u64(0..6))).await;
    }
    next
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random crashes"]
async fn crashes_anywhere_lose_and_swap_nothing() {
    let rounds: u32 = std::env::var("SEMEL_CDC_ROUNDS").map_or(2, |text| text.parse().unwrap());
    let seed = seed();
    for round in 0..rounds {
        let Some(world) = World::new().await else { return };
        let mut rng = rng_for(seed, u64::from(round));
        let proxy = Proxy::start(world.url.split('@').nth(1).unwrap().split('/').next().unwrap()).unwrap();
        let at = world.url.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
        let url = world.url().replace(&at, &proxy.addr().to_string());
        let options = |url: &str| world.options_at(url).batch_max(7, 1 << 20);
        let outbox = options(&url).lease(Duration::from_millis(300)).open().await.unwrap();
        // At last one that nothing happens to: by another way, and with time to keep its lease.
        let last = options(&world.url()).open().await.unwrap();
        let (sink, stop) = (TestSink::default(), Arc::new(AtomicBool::new(false)));
        sink.state().fail_percent = 3;
        let world = Arc::new(world);
        let writers: Vec<_> = (0..KEYS)
            .map(|part| {
                let (world, rng, stop) =
                    (world.clone(), rng_for(seed, u64::from(100 * round + part)), stop.clone());
                tokio::spawn(async move { write(&world, part, rng, stop).await })
            })
            .collect();
        for _ in 0..12 {
            let relay = Running::start(outbox.source(), &sink, quick().attempts_max(1_000));
            match rng.u32(0..4) {
                0 => proxy.next(1, Fault::CutAnswerAfter(rng.u64(0..20_000))),
                1 => proxy.next(2, Fault::CutAnswerAfter(rng.u64(0..200_000))),
                _ => {}
            }
            tokio::time::sleep(Duration::from_millis(rng.u64(20..500))).await;
            if rng.bool() {
                proxy.cut();
                tokio::time::sleep(Duration::from_millis(rng.u64(0..300))).await;
            }
            if rng.u32(0..4) == 0 {
                relay.stop().await;
            } else {
                relay.kill().await;
            }
        }
        stop.store(true, Ordering::Relaxed);
        let mut written = 0;
        let mut of_each = Vec::new();
        for writer in writers {
            let count = writer.await.unwrap();
            written += count;
            of_each.push(count);
        }
        sink.state().fail_percent = 0;
        let relay = Running::start(last.source(), &sink, quick());
        sink.wait_for(usize::try_from(written).unwrap()).await;
        relay.stop().await;
        let first = sink.first_of_each();
        for (part, count) in of_each.iter().enumerate() {
            let expected: Vec<String> = (0..*count).map(|n| n.to_string()).collect();
            assert_eq!(first[&format!("w{part}")], expected);
        }
        println!("round {round}: {written} events, {} sent", sink.texts().len());
        drop(proxy);
        Arc::into_inner(world).unwrap().end().await;
    }
}
