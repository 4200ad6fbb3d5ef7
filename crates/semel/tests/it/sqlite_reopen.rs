//! What was acknowledged is there after the store is opened again.

use semel::store::sqlite::SqliteStore;
use semel::store::{Claimed, Finished, Store};
use semel::{Effect, Outcome};

use crate::sqlite_support::*;

#[tokio::test]
async fn everything_is_there_after_reopening() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    let finished = done(&store, "finished").await;
    let before = store.get(finished.id).await.unwrap().unwrap();
    let running = run(&store, claim("running")).await;
    store.close().await;
    assert!(!place.dir.path().join("semel.db-wal").exists(), "the log goes with the last connection");

    let store = SqliteStore::options().create(false).open(&place.path).await.unwrap();
    let after = store.get(finished.id).await.unwrap().unwrap();
    assert_eq!(format!("{before:?}"), format!("{after:?}"));
    assert_eq!(replayed(&store, "finished").await, "finished");
    assert!(matches!(store.claim(claim("running")).await.unwrap(), Claimed::InFlight(_)));
    assert_eq!(store.finish(running, completed("late")).await.unwrap(), Finished::Recorded);
    assert_eq!(replayed(&store, "running").await, "late");
}

#[tokio::test]
async fn an_epoch_never_comes_twice_over_release_sweep_and_reopening() {
    let (place, hand) = (place(), Hand::at(1_000_000));
    let mut last = 0;
    for round in 0..3 {
        let store = hand.options().open(&place.path).await.unwrap();
        for n in 0..5 {
            let ticket = run(&store, claim(&format!("k{n}"))).await;
            assert!(ticket.epoch.0 > last, "round {round}: {} after {last}", ticket.epoch.0);
            last = ticket.epoch.0;
            store.finish(ticket, completed("x")).await.unwrap();
        }
        hand.advance_ms(25 * 60 * 60 * 1000);
        assert_eq!(store.sweep(100).await.unwrap(), 5);
        assert_eq!(store.sweep(100).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn large_and_binary_outcomes_come_back_as_they_were() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
    let outcome = Outcome::new(200, bytes).header("x-bytes", vec![0u8, 255, 13, 10]);
    let ticket = run(&store, claim("large")).await;
    let mut finish = completed("");
    finish.outcome = Some(outcome.clone());
    store.finish(ticket, finish).await.unwrap();
    drop(store);
    let store = SqliteStore::open(&place.path).await.unwrap();
    assert_eq!(store.get(ticket.id).await.unwrap().unwrap().outcome, Some(outcome));
}

#[tokio::test]
async fn an_expired_record_makes_room_for_a_new_one() {
    let (place, hand) = (place(), Hand::at(1_000_000));
    let store = hand.options().open(&place.path).await.unwrap();
    let old = done(&store, "k").await;
    done(&store, "other").await;
    hand.advance_ms(24 * 60 * 60 * 1000);
    assert!(store.get(old.id).await.unwrap().is_none());
    let mut again = claim("k");
    again.effect = Effect::Keyed;
    let new = run(&store, again).await;
    assert!(new.epoch > old.epoch);
    assert_eq!(new.attempt, 1);
    let record = store.get(new.id).await.unwrap().unwrap();
    assert_eq!(record.created_at.0, 1_000_000 + 24 * 60 * 60 * 1000);
}
