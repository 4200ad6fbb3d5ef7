//! Several processes' worth of stores race for the same fresh keys: each runs once, and everybody is answered.

use semel::store::postgres::PostgresStore;
use semel::store::{Claimed, Store};

use super::place::Place;
use super::work::*;

const STORES: usize = 4;
const KEYS: usize = 150;

/// Plays the race and says which keys did not run exactly once.
async fn race(place: &Place, edit: Option<fn(&str) -> String>) -> Vec<(usize, usize)> {
    let mut stores: Vec<PostgresStore> = Vec::new();
    for _ in 0..STORES {
        let options = place.options().connections(2);
        let options = match edit {
            Some(edit) => options.edit_sql(edit),
            None => options,
        };
        stores.push(options.open().await.unwrap());
    }
    let mut tasks = Vec::new();
    for store in &stores {
        for n in 0..KEYS {
            let (store, key) = (store.clone(), format!("{}-{n}", place.schema));
            tasks.push(tokio::spawn(async move {
                match soon(store.claim(claim(&key))).await.unwrap() {
                    Claimed::Run(_) => (n, true),
                    Claimed::InFlight(_) => (n, false),
                    other => panic!("{other:?}"),
                }
            }));
        }
    }
    let mut ran = vec![0; KEYS];
    for task in tasks {
        let (n, run) = task.await.unwrap();
        ran[n] += usize::from(run);
    }
    ran.into_iter().enumerate().filter(|(_, times)| *times != 1).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fresh_key_runs_once_and_everybody_is_answered() {
    let Some(place) = Place::take() else { return };
    assert_eq!(race(&place, None).await, [] as [(usize, usize); 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_advisory_lock_the_unique_key_still_decides() {
    let Some(place) = Place::take() else { return };
    let edit: fn(&str) -> String = |sql| sql.replace("pg_try_advisory_xact_lock(looked.lock)", "true");
    assert_eq!(race(&place, Some(edit)).await, [] as [(usize, usize); 0]);
}

/// Planted: the later insert overwrites. Without the lock that keeps them apart, the race shows it.
#[tokio::test(flavor = "multi_thread")]
async fn an_insert_that_overwrites_is_noticed() {
    let Some(place) = Place::take() else { return };
    let edit: fn(&str) -> String = |sql| {
        sql.replace("pg_try_advisory_xact_lock(looked.lock)", "true").replace(
            "ON CONFLICT (id) DO NOTHING",
            "ON CONFLICT (id) DO UPDATE SET owner = EXCLUDED.owner, epoch = EXCLUDED.epoch",
        )
    };
    // A race may end well by luck, but not ten times.
    for _ in 0..10 {
        let Some(place) = Place::take() else { return };
        if !race(&place, Some(edit)).await.is_empty() {
            return;
        }
    }
    drop(place);
    panic!("two owners of one key went unnoticed");
}
