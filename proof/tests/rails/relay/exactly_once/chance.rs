//! Everything at once, by chance: answers lost both ways, failures, refusals, retries, relays killed and replaced.
//!
//! `SEMEL_SEED` replays what is drawn; `SEMEL_EXACTLY_ONCE_ROUNDS` says how often (3).

use std::time::Duration;

use super::broker::{Broker, Bug};
use super::outboxes::{InSqlite, Outbox, Running, Verdict, quick};

const KEYS: u32 = 12;
/// So short that it is lost now and then: that too is left to chance.
const LEASE: Duration = Duration::from_millis(200);

async fn round(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut outbox = InSqlite::new();
    outbox.outbox = outbox.outbox.batch_max(7, 1 << 20).lease(LEASE).retry_after(Duration::from_millis(30));
    let broker = Broker::new();
    broker.state().chance = Some(rng.fork());
    let mut appended: Vec<(String, String)> = Vec::new();
    let start = || Running::start(outbox.source(), broker.sink(Bug::None), quick().attempts_max(3));
    let mut relays = vec![start(), start()];
    for n in 0..120 {
        let new: Vec<(String, String)> =
            (0..rng.u32(1..8)).map(|m| (format!("k{}", rng.u32(0..KEYS)), format!("{n}-{m}"))).collect();
        let events: Vec<(&str, &str)> = new.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
        outbox.append(&events).await;
        appended.extend(new);
        let (_, text) = rng.choice(appended.iter()).unwrap();
        {
            let mut state = broker.state();
            match rng.u32(0..12) {
                0 => drop(state.refused.insert(text.clone())),
                1 => drop(state.failing.insert(text.clone())),
                2 => {
                    state.refused.clear();
                    state.failing.clear();
                }
                3 => state.down = true,
                4..6 => state.down = false,
                _ => {}
            }
        }
        match rng.u32(0..12) {
            0 => {
                let relay = relays.swap_remove(rng.usize(0..relays.len()));
                relay.kill().await;
                relays.push(start());
            }
            1 => outbox.retry(None).await,
            2 => tokio::time::sleep(Duration::from_millis(rng.u64(1..60))).await,
            _ => {}
        }
        // A relay that was fenced is started again.
        if let Some(at) = relays.iter().position(|relay| relay.task.is_finished()) {
            relays.swap_remove(at);
            relays.push(start());
        }
    }
    {
        let mut state = broker.state();
        state.chance = None;
        state.down = false;
        state.refused.clear();
        state.failing.clear();
    }
    for relay in relays.drain(..) {
        relay.stop.stop();
        let _ = relay.task.await;
    }
    // At last with time to keep their lease.
    let patient = outbox.outbox.clone().lease(Duration::from_secs(5));
    for _ in 0..3 {
        relays.push(Running::start(patient.source(), broker.sink(Bug::None), quick().attempts_max(3)));
        // A try that was refused before may still be on its way to being written down, and would undo this one.
        for _ in 0..2_400 {
            outbox.retry(None).await;
            if outbox.parked().await.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        outbox.until_parked(0).await;
        outbox.drained(&broker).await;
    }
    for relay in relays {
        relay.stop.stop();
        let _ = relay.task.await;
    }
    let found = Verdict::of(&appended, &broker, &outbox.parked_texts().await);
    assert_eq!(found, Verdict::default(), "SEMEL_SEED={seed}");
    assert!(appended.len() > 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random faults"]
async fn once_and_in_order_whatever_happens() {
    let rounds = std::env::var("SEMEL_EXACTLY_ONCE_ROUNDS").map_or(3, |text| text.parse().unwrap());
    let seed = testkit::seed::seed();
    for n in 0..rounds {
        round(seed.wrapping_add(n)).await;
    }
}
