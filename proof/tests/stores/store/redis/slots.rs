//! Slots that move to another node while claims go on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use semel::store::{Claimed, ErrorKind, Finished, Store};
use testkit::services::{Service, alone};

use super::support::{claim, cluster_url, completed, connect, intent, options, prefix, replayed, say};

fn bucket(key: &str) -> u16 {
    let id = intent(key).id();
    u16::from_be_bytes([id.as_bytes()[0], id.as_bytes()[1]]) >> 6
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_go_on_while_their_slot_moves() {
    const TASKS: usize = 4;
    let Some(cluster) = alone(Service::RedisCluster) else { return };
    let nodes: Vec<&str> = cluster.url().split(',').collect();
    let name = prefix("slots");
    let store = options(&cluster_url(cluster.url()), &name).create().await.unwrap();
    let home = bucket("key-0");
    let digit = |n: u16| char::from_digit(u32::from(n), 32).unwrap();
    let tag = format!("{name}{{{}{}}}", digit(home >> 5), digit(home % 32));
    let keys: Vec<String> =
        (0..).map(|n| format!("key-{n}")).filter(|key| bucket(key) == home).take(400).collect();

    /// How far it is: not begun, on its way, arrived.
    const WAITING: u8 = 0;
    const MOVING: u8 = 1;
    const MOVED: u8 = 2;
    let way = Arc::new(AtomicU8::new(WAITING));
    // What was claimed and finished on the way.
    let meanwhile = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let (store, way, meanwhile) = (store.clone(), way.clone(), meanwhile.clone());
        let keys: Vec<String> = keys.iter().skip(task).step_by(TASKS).cloned().collect();
        tasks.push(tokio::spawn(async move {
            let mut runs: HashMap<String, usize> = HashMap::new();
            for (n, key) in keys.into_iter().enumerate() {
                // Some before it moves, the others not before that.
                while n > 20 && way.load(Ordering::SeqCst) == WAITING {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                // The slot is on its way for a while: asked again under the same owner until it has arrived.
                let claim = claim(&key);
                let ticket = loop {
                    match store.claim(claim.clone()).await {
                        Ok(Claimed::Run(ticket)) => break ticket,
                        Ok(other) => panic!("{other:?}"),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                    }
                };
                *runs.entry(key.clone()).or_default() += 1;
                loop {
                    match store.finish(ticket, completed(&key)).await {
                        Ok(Finished::Recorded | Finished::Already) => break,
                        Ok(other) => panic!("{other:?}"),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                    }
                }
                if way.load(Ordering::SeqCst) == MOVING {
                    meanwhile.fetch_add(1, Ordering::SeqCst);
                }
                if way.load(Ordering::SeqCst) == MOVED {
                    tokio::task::yield_now().await;
                } else {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            runs
        }));
    }

    let mut connection = connect(nodes[0]).await;
    let slot: u16 = say(&mut connection, &["CLUSTER", "KEYSLOT", &tag]).await;
    way.store(MOVING, Ordering::SeqCst);
    for moves in 0..20 {
        if moves >= 2 && meanwhile.load(Ordering::SeqCst) >= 20 {
            break;
        }
        move_slot(&nodes, slot, &tag).await;
    }
    way.store(MOVED, Ordering::SeqCst);
    assert!(meanwhile.load(Ordering::SeqCst) > 0, "nothing was claimed while the slot moved");
    let mut runs = HashMap::new();
    for task in tasks {
        let ran = tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap();
        runs.extend(ran);
    }
    assert_eq!(runs.len(), keys.len());
    assert!(runs.values().all(|times| *times == 1));
    for key in &keys {
        assert_eq!(replayed(&store, key).await, *key);
    }
}

/// Moves a slot from the node that has it to another one, as an operator's tool does.
async fn move_slot(nodes: &[&str], slot: u16, probe: &str) {
    let slot = slot.to_string();
    let mut from = None;
    for (at, node) in nodes.iter().enumerate() {
        let mut ask = ::redis::cmd("EXISTS");
        ask.arg(probe);
        if ask.query_async::<u64>(&mut connect(node).await).await.is_ok() {
            from = Some(at);
        }
    }
    let from = from.expect("somebody has the slot");
    let to = (from + 1) % nodes.len();
    let (mut source, mut target) = (connect(nodes[from]).await, connect(nodes[to]).await);
    let source_id: String = say(&mut source, &["CLUSTER", "MYID"]).await;
    let target_id: String = say(&mut target, &["CLUSTER", "MYID"]).await;
    say::<()>(&mut target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await;
    say::<()>(&mut source, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).await;
    let (host, port) = nodes[to].trim_start_matches("redis://").split_once(':').unwrap();
    loop {
        let keys: Vec<Vec<u8>> = say(&mut source, &["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).await;
        if keys.is_empty() {
            break;
        }
        let mut migrate = ::redis::cmd("MIGRATE");
        migrate.arg(host).arg(port).arg("").arg(0).arg(5_000).arg("KEYS").arg(keys);
        migrate.query_async::<()>(&mut source).await.unwrap();
    }
    for connection in [&mut target, &mut source] {
        say::<()>(connection, &["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await;
    }
    for node in nodes {
        say::<()>(&mut connect(node).await, &["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await;
    }
}
