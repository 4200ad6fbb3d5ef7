//! Processes under load that are replaced one after the other: by SIGTERM, and by SIGKILL.

use std::collections::BTreeSet;

use semel::State;
use semel::store::{Filter, Record, Store};

use crate::protocol::scene::{PATIENCE, Scene};

fn rounds() -> u64 {
    std::env::var("SEMEL_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(4)
}

fn records(scene: &Scene) -> (Vec<Record>, semel::StoreTime) {
    scene.with_store(async |store| {
        let (mut records, mut after) = (Vec::new(), None);
        loop {
            let page = store.list(Filter { after, ..Filter::default() }).await.unwrap();
            records.extend(page.records);
            if page.next.is_none() {
                return (records, page.now);
            }
            after = page.next;
        }
    })
}

/// Waits until the ledger has grown by some lines: the processes are really at work.
fn let_work(scene: &Scene, lines: usize) {
    let start = scene.ledger().lines().len();
    let began = std::time::Instant::now();
    while scene.ledger().lines().len() < start + lines {
        assert!(began.elapsed() < PATIENCE, "no work is done");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_rolling_restart_under_load_leaves_nothing_uncertain() {
    let scene = Scene::new("opaque");
    let seed = testkit::seed::seed();
    let mut old = scene.start_load(seed);
    let_work(&scene, 30);
    for round in 1..=rounds() {
        let new = scene.start_load(seed.wrapping_add(round));
        let_work(&scene, 10);
        old.terminate().unwrap();
        let ended = old.wait(PATIENCE).unwrap();
        assert!(ended.status.success(), "{ended:?}");
        assert_eq!(ended.stdout.last().map(String::as_str), Some("drained"));
        old = new;
    }
    old.terminate().unwrap();
    old.wait(PATIENCE).unwrap();

    let (records, now) = records(&scene);
    let ledger = scene.ledger();
    assert!(ledger.duplicates().is_empty(), "{:?}", ledger.duplicates());
    for record in &records {
        let state = record.state_at(now);
        assert!(matches!(state, Some(State::Completed | State::FailedRetryable)), "{record:?}");
        let happened = ledger.count(record.intent.child("charge").as_str());
        assert_eq!(happened, usize::from(state == Some(State::Completed)), "{record:?}");
    }
    assert!(ledger.lines().len() >= 30);
}

#[test]
fn processes_killed_under_load_never_double_and_never_lose() {
    let scene = Scene::new("opaque");
    let seed = testkit::seed::seed();
    for round in 0..rounds() {
        let mut one = scene.start_load(seed.wrapping_add(2 * round));
        let mut two = scene.start_load(seed.wrapping_add(2 * round + 1));
        let_work(&scene, 15);
        one.kill().unwrap();
        two.kill().unwrap();
    }
    let (records, _) = records(&scene);
    let ledger = scene.ledger();
    assert!(ledger.duplicates().is_empty(), "{:?}", ledger.duplicates());
    let mut known = BTreeSet::new();
    let mut held = 0;
    for record in &records {
        let key = record.intent.child("charge");
        let happened = ledger.count(key.as_str());
        match record.head.state {
            State::Completed => assert_eq!(happened, 1, "completed but not in the ledger: {record:?}"),
            State::FailedRetryable => assert_eq!(happened, 0, "may run again but happened: {record:?}"),
            // Killed in the middle of it: may or may not have happened, and is held.
            State::InProgress | State::Uncertain => held += 1,
            State::FailedFinal => panic!("{record:?}"),
        }
        known.insert(key.as_str().to_owned());
    }
    for line in ledger.lines() {
        assert!(known.contains(line), "an effect that no caller knows of: {line}");
    }
    println!("{} effects, {} records, {held} held", ledger.lines().len(), records.len());
}
