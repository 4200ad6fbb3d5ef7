//! A sink that keeps the position in one transaction with the events sees each once, whatever dies on the way.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use semel::relay::cdc::{CdcOutbox, PlantedBug};
use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{Relay, RelayError, RelayStats, RelayStopHandle};
use tokio::task::JoinHandle;

use crate::cdc::world::{World, insert, quick, until};
use crate::relay::exactly_once::broker::{Broker, Bug, Step};

const KEYS: u32 = 8;

struct Running {
    task: JoinHandle<Result<RelayStats, RelayError>>,
    stop: RelayStopHandle,
}

fn start(outbox: &CdcOutbox, broker: &Broker) -> Running {
    let relay = Relay::new(outbox.source(), broker.sink(Bug::None), quick().attempts_max(3));
    let stop = relay.stop_handle();
    Running { task: tokio::spawn(relay.run_exactly_once()), stop }
}

async fn seen(broker: &Broker, events: usize) {
    broker.until("all events", |state| state.seen.len() >= events).await;
}

/// The sink commits the first part of a transaction, the answer is lost, and the relay asks what the sink has.
async fn in_doubt(plant: Option<PlantedBug>) -> Option<Vec<String>> {
    let world = World::new().await?;
    let client = world.connect().await;
    let mut options = world.options().batch_max(3, 1 << 20);
    if let Some(plant) = plant {
        options = options.plant(plant);
    }
    let outbox = options.open().await.unwrap();
    let broker = Broker::with(&[
        Step::Commit,
        Step::InDoubt { committed: true },
        Step::InDoubt { committed: false },
        Step::InDoubt { committed: true },
    ]);
    let relay = start(&outbox, &broker);
    client.batch_execute(&insert("a", "first")).await.unwrap();
    seen(&broker, 1).await;
    let inserts: String = (0..10).map(|n| insert(&format!("k{}", n % 2), &n.to_string())).collect();
    client.batch_execute(&format!("BEGIN; {inserts} COMMIT")).await.unwrap();
    client.batch_execute(&insert("a", "last")).await.unwrap();
    broker.until("the last", |state| state.seen.iter().any(|(_, text, _)| text == "last")).await;
    relay.stop.stop();
    relay.task.await.unwrap().unwrap();
    world.end().await;
    Some(broker.texts())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_within_a_transaction_repeats_and_loses_nothing() {
    let Some(texts) = in_doubt(None).await else { return };
    let mut expected = vec!["first".to_owned()];
    expected.extend((0..10).map(|n| n.to_string()));
    expected.push("last".into());
    assert_eq!(texts, expected);
}

/// After a doubt the log is read again, from the last ack: what came before that was counted by the stream that ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_after_an_ack_repeats_nothing_from_the_table() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let outbox = world.options().checkpoint_interval(Duration::from_millis(1)).open().await.unwrap();
    let broker = Broker::new();
    let relay = start(&outbox, &broker);
    let append = async |text: &str| {
        client.batch_execute(&insert("a", text)).await.unwrap();
        broker.until(text, |state| state.seen.iter().any(|(_, seen, _)| seen == text)).await;
    };
    let holds = async |what: &str, sql: &str| {
        until(what, async || client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0)).await;
    };
    // What is appended from now on comes from the log.
    holds("the table is read", "SELECT coalesce(bool_and(walk IS NULL), false) FROM semel_outbox_slot").await;
    append("first").await;
    // The server has the ack: it does not send this transaction again.
    let acked =
        "SELECT coalesce(bool_and(s.confirmed_flush_lsn >= n.commit_lsn AND n.commit_lsn > '0/0'), false)
                 FROM semel_outbox_slot n JOIN pg_replication_slots s ON s.slot_name = n.name";
    holds("the ack", acked).await;
    broker.state().script.push_back(Step::InDoubt { committed: true });
    append("second").await;
    append("third").await;
    let counted =
        "SELECT bool_and(pg_visible_in_snapshot(o.xid, c.low)) FROM semel_outbox o, semel_outbox_cursor c";
    holds("the cursor past all of them", counted).await;
    relay.stop.stop();
    relay.task.await.unwrap().unwrap();
    assert_eq!(broker.texts(), ["first", "second", "third"]);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_is_only_a_commit_is_caught_here_too() {
    let Some(texts) = in_doubt(Some(PlantedBug::CommitOnly)).await else { return };
    assert!(texts.len() < 12, "{texts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random faults"]
async fn once_and_in_order_whatever_happens() {
    let rounds: u64 = std::env::var("SEMEL_CDC_ROUNDS").map_or(1, |text| text.parse().unwrap());
    let seed = testkit::seed::seed();
    for n in 0..rounds {
        round(seed.wrapping_add(n)).await;
    }
}

async fn round(seed: u64) {
    let Some(world) = World::new().await else { return };
    let mut rng = fastrand::Rng::with_seed(seed);
    let client = world.connect().await;
    let admin = PostgresOutbox::open(&world.url()).await.unwrap();
    let options = world.options().batch_max(5, 1 << 20).retry_after(Duration::from_millis(30));
    let outbox = options.clone().lease(Duration::from_millis(300)).open().await.unwrap();
    let broker = Broker::new();
    broker.state().chance = Some(rng.fork());
    let mut relays = vec![start(&outbox, &broker), start(&outbox, &broker)];
    let mut appended: Vec<(String, String)> = Vec::new();
    for n in 0..80 {
        let new: Vec<(String, String)> =
            (0..rng.u32(1..10)).map(|m| (format!("k{}", rng.u32(0..KEYS)), format!("{n}-{m}"))).collect();
        let inserts: String = new.iter().map(|(key, text)| insert(key, text)).collect();
        client.batch_execute(&format!("BEGIN; {inserts} COMMIT")).await.unwrap();
        appended.extend(new);
        let (_, text) = rng.choice(appended.iter()).unwrap().clone();
        {
            let mut state = broker.state();
            match rng.u32(0..12) {
                0 => drop(state.refused.insert(text)),
                1 => drop(state.failing.insert(text)),
                2 => {
                    state.refused.clear();
                    state.failing.clear();
                }
                3 => state.down = true,
                4..6 => state.down = false,
                _ => {}
            }
        }
        match rng.u32(0..8) {
            0 => {
                let relay = relays.swap_remove(rng.usize(0..relays.len()));
                relay.task.abort();
                let _ = relay.task.await;
                relays.push(start(&outbox, &broker));
            }
            1 => drop(admin.retry(None).await.unwrap()),
            2 => tokio::time::sleep(Duration::from_millis(rng.u64(1..200))).await,
            _ => {}
        }
        if let Some(at) = relays.iter().position(|relay| relay.task.is_finished()) {
            let ended = relays.swap_remove(at).task.await.unwrap();
            assert!(matches!(ended, Err(RelayError::Fenced(_))), "{ended:?}");
            relays.push(start(&outbox, &broker));
        }
    }
    {
        let mut state = broker.state();
        state.chance = None;
        state.down = false;
        state.refused.clear();
        state.failing.clear();
    }
    for relay in relays {
        relay.stop.stop();
        let _ = relay.task.await;
    }
    // At last with time to keep their lease.
    let outbox = options.open().await.unwrap();
    let relays = vec![start(&outbox, &broker), start(&outbox, &broker)];
    let (all, relays) = (appended.len(), Arc::new(tokio::sync::Mutex::new(relays)));
    until("everything is published", async || {
        admin.retry(None).await.unwrap();
        let mut relays = relays.lock().await;
        if let Some(at) = relays.iter().position(|relay| relay.task.is_finished()) {
            relays.swap_remove(at);
            relays.push(start(&outbox, &broker));
        }
        broker.state().seen.len() >= all && admin.parked(None, 1).await.unwrap().is_empty()
    })
    .await;
    for relay in Arc::into_inner(relays).unwrap().into_inner() {
        relay.stop.stop();
        let _ = relay.task.await;
    }
    let of_each = |events: &mut dyn Iterator<Item = (String, String)>| {
        let mut keys: HashMap<String, Vec<String>> = HashMap::new();
        events.for_each(|(key, text)| keys.entry(key).or_default().push(text));
        keys
    };
    let seen = of_each(&mut broker.state().seen.iter().map(|(key, text, _)| (key.clone(), text.clone())));
    assert_eq!(seen, of_each(&mut appended.into_iter()), "SEMEL_SEED={seed}\n{}", broker.repeats());
    world.end().await;
}
