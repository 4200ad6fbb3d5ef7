//! The database is restored from an older backup, and the cache in front of it is warm.

use std::time::Duration;

use semel::store::sqlite::schema;
use semel::store::tiered::TieredStore;
use semel::store::{Claimed, Store};

use super::support::Place;
use crate::redis::support::{claim, done, replayed, run};

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
    // The restored database never heard of it, and it decides. Whether that is right is what a person has to find
    // out before the service is started again; that two answers are given by turns is not.
    run(&store, claim("new")).await;
    assert_eq!(replayed(&store, "old").await, "old");
    assert_eq!(place.looks("hit"), 0);
}

#[tokio::test]
async fn a_running_process_notices_a_new_lineage() {
    let Some(place) = Place::new() else { return };
    let store = place.open().await;
    done(&store, "k").await;
    place.filled("stored", 1).await;
    assert_eq!(replayed(&store, "k").await, "k");
    assert_eq!(place.looks("hit"), 1);
    schema::new_lineage(place.path()).await.unwrap();
    // Asked again every ten seconds while there is traffic.
    for _ in 0..600 {
        let before = place.looks("miss");
        assert_eq!(replayed(&store, "k").await, "k");
        if place.looks("miss") > before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the old lineage is believed for ever");
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
    for _ in 0..200 {
        match store.claim(claim("new")).await.unwrap() {
            Claimed::Replay(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            Claimed::Run(_) => return,
            other => panic!("{other:?}"),
        }
    }
    panic!("what the database does not know is replayed for ever");
}
