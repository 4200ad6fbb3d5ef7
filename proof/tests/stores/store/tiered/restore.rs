//! The database is restored from an older backup, and the cache in front of it is warm.

use std::time::{Duration, Instant};

use semel::store::sqlite::schema;
use semel::store::tiered::{LINEAGE_WITHIN, TieredStore};
use semel::store::{Claimed, Decided, Store};

use super::authority::{Gates, release};
use super::support::Place;
use crate::store::redis::support::{claim, done, replayed, run};

/// A store with "old" in the backup and "new" only in the cache; the file is the backup again.
async fn restored(place: &Place) {
    let store = place.open().await;
    done(&store, "old").await;
    let backup = place.dir.path().join("backup.db");
    let connection = rusqlite::Connection::open(place.path()).unwrap();
    connection.execute("VACUUM INTO ?1", [backup.to_str().unwrap()]).unwrap();
    drop(connection);
    done(&store, "new").await;
    place.filled("stored", 2).await;
    store.authority().close().await;
    drop(store);
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", place.path().display()));
    }
    std::fs::copy(&backup, place.path()).unwrap();
}

#[tokio::test]
async fn with_a_new_lineage_nothing_from_before_is_believed() {
    let Some(place) = Place::new() else { return };
    restored(&place).await;
    schema::new_lineage(place.path()).await.unwrap();
    let store = place.open().await;
    // The restored database has no record of it, and it decides. Whether that is right is what a person has to find
    // out before the service is started again; that two answers are given by turns is not.
    run(&store, claim("new")).await;
    assert_eq!(replayed(&store, "old").await, "old");
    assert_eq!(place.looks("hit"), 0);
}

#[tokio::test]
async fn a_running_process_notices_a_new_lineage_under_any_traffic() {
    let Some(place) = Place::new() else { return };
    let store = place.open().await;
    let withdrawn = done(&store, "k").await;
    done(&store, "other").await;
    place.filled("stored", 2).await;
    assert_eq!(replayed(&store, "k").await, "k");
    assert_eq!(place.looks("hit"), 1);
    // The database is another one: it never finished this.
    let decided = store.authority().decide(withdrawn.id, release(withdrawn.epoch)).await;
    assert!(matches!(decided, Ok(Decided::Recorded)));
    schema::new_lineage(place.path()).await.unwrap();
    let made = Instant::now();
    // Every answer of the authority tells its time, and nothing but the time.
    loop {
        let asked = made.elapsed();
        store.claim_verified(claim("other")).await.unwrap();
        match store.claim(claim("k")).await.unwrap() {
            Claimed::Replay(_) => {
                assert!(asked < LINEAGE_WITHIN, "the old lineage is believed for {asked:?}")
            }
            Claimed::Run(_) => break,
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn what_was_on_its_way_under_the_old_lineage_is_not_put_under_the_new_one() {
    let Some(place) = Place::new() else { return };
    let (slow, gates) = Gates::before(place.sqlite().await);
    let store = place.over(slow).await;
    done(&store, "k").await;
    // The outcome is read from the old data, and on its way; meanwhile the data become others.
    gates.one_is_read().await;
    let lineage = schema::new_lineage(place.path()).await.unwrap();
    let known = async {
        while !format!("{store:?}").contains(&lineage.to_string()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LINEAGE_WITHIN * 3, known).await.expect("the new lineage is asked for");
    gates.arrive.add_permits(10);
    place.filled("dropped", 1).await;
    assert_eq!(replayed(&store, "k").await, "k");
    assert_eq!((place.looks("hit"), place.fills("dropped")), (0, 1), "it was filled under the new lineage");
    // What is read now is kept as ever.
    place.filled("stored", 1).await;
    assert_eq!(replayed(&store, "k").await, "k");
    assert_eq!(place.looks("hit"), 1);
}

#[tokio::test]
async fn a_withdrawal_counts_under_a_lineage_this_process_does_not_know() {
    let Some(place) = Place::new() else { return };
    let here = place.open().await;
    schema::new_lineage(place.path()).await.unwrap();
    // Started later, it knows the new one already, and fills the cache under it.
    let there = place.open().await;
    let ticket = done(&there, "k").await;
    place.filled("stored", 1).await;
    assert_eq!(replayed(&there, "k").await, "k");
    assert_eq!(place.looks("hit"), 1);
    assert!(matches!(here.decide(ticket.id, release(ticket.epoch)).await, Ok(Decided::Recorded)));
    run(&there, claim("k")).await;
}

#[tokio::test]
async fn without_one_what_the_database_forgot_is_believed_for_a_while_and_never_by_who_verifies() {
    let Some(place) = Place::new() else { return };
    restored(&place).await;
    let url = format!("{}&max_age=3", place.cache_url());
    let store = TieredStore::open(place.sqlite().await, &url, &place.metrics).await.unwrap();
    // The cache cannot know: what it has is what the database said, minutes ago.
    let first = store.claim(claim("new")).await.unwrap();
    assert!(matches!(first, Claimed::Replay(_)) || place.looks("old") == 1);
    for _ in 0..600 {
        match store.claim(claim("new")).await.unwrap() {
            Claimed::Replay(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            Claimed::Run(_) => return,
            other => panic!("{other:?}"),
        }
    }
    panic!("what the database does not know is replayed for ever");
}
