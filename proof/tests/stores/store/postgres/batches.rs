//! Many callers, few statements; one bad request fails alone.

use futures_util::future::join_all;
use semel::store::{Claimed, ErrorKind, Fate, Finished, Store};

use super::place::Place;
use super::work::*;

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_request_of_a_batch_fails_alone() {
    let Some(place) = Place::take() else { return };
    let store = place.options().connections(1).open().await.unwrap();
    run(&store, "warm-bad").await;
    let person = place.client().await;
    let trigger = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN IF NEW.key = ''poison'' THEN RAISE check_violation; END IF; RETURN NEW; END';
        CREATE TRIGGER refuse BEFORE INSERT ON semel_intent FOR EACH ROW EXECUTE FUNCTION refuse()";
    person.batch_execute(trigger).await.unwrap();

    let mut tasks = Vec::new();
    for n in 0..64 {
        let store = store.clone();
        let key = if n == 31 { "poison".to_owned() } else { format!("sound-{n}") };
        tasks.push(tokio::spawn(async move { (key.clone(), store.claim(claim(&key)).await) }));
    }
    for task in tasks {
        match soon(task).await.unwrap() {
            (key, Err(error)) => {
                assert_eq!(key, "poison", "{error}");
                assert_eq!((error.kind(), error.fate()), (ErrorKind::Corrupt, Fate::NotApplied), "{error}");
            }
            (key, Ok(claimed)) => {
                assert!(key != "poison" && matches!(claimed, Claimed::Run(_)), "{claimed:?}")
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_row_that_cannot_be_read_fails_alone() {
    let Some(place) = Place::take() else { return };
    let store = place.options().connections(1).open().await.unwrap();
    for key in ["state", "outcome"] {
        let ticket = run(&store, key).await;
        soon(store.finish(ticket, finish())).await.unwrap();
    }
    let person = place.client().await;
    let spoil = "UPDATE semel_intent SET state = 9 WHERE key = 'state';
        UPDATE semel_intent SET outcome = '\\xff' WHERE key = 'outcome'";
    person.batch_execute(spoil).await.unwrap();

    let keys: Vec<String> = (0..64)
        .map(|n| match n {
            20 | 21 => "state".to_owned(),
            40 => "outcome".to_owned(),
            _ => format!("good-{n}"),
        })
        .collect();
    let results = soon(join_all(keys.iter().map(|key| store.claim(claim(key))))).await;
    for (key, result) in keys.iter().zip(results) {
        if key.starts_with("good") {
            assert!(matches!(result, Ok(Claimed::Run(_))), "{key}: {result:?}");
        } else {
            let error = result.unwrap_err();
            assert_eq!(
                (error.kind(), error.fate()),
                (ErrorKind::Corrupt, Fate::NotApplied),
                "{key}: {error}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_together_travels_together() {
    let Some(place) = Place::take() else { return };
    let store = place.options().connections(1).open().await.unwrap();
    run(&store, "warm-together").await;
    let mut tasks = Vec::new();
    for n in 0..200 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            let ticket = run(&store, &format!("together-{n}")).await;
            assert_eq!(soon(store.finish(ticket, finish())).await.unwrap(), Finished::Recorded);
        }));
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
    // Rows written by one statement have one transaction id.
    let person = place.client().await;
    let row = person.query_one("SELECT count(*), count(DISTINCT xmin::text) FROM semel_intent", &[]).await;
    let row = row.unwrap();
    let (rows, statements): (i64, i64) = (row.get(0), row.get(1));
    assert_eq!(rows, 201);
    assert!(statements < 101, "{statements} statements finished {rows} records");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_want_the_same_are_answered_together() {
    let Some(place) = Place::take() else { return };
    let store = place.store().await;
    let mut tasks = Vec::new();
    for _ in 0..200 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move { store.claim(claim("hot")).await.unwrap() }));
    }
    let mut ran = 0;
    for task in tasks {
        match soon(task).await.unwrap() {
            Claimed::Run(_) => ran += 1,
            Claimed::InFlight(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ran, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_goes_away_changes_nothing_for_the_others() {
    let Some(place) = Place::take() else { return };
    let store = place.options().connections(1).open().await.unwrap();
    run(&store, "warm-away").await;
    let mut tasks = Vec::new();
    for n in 0..64 {
        let store = store.clone();
        let task = tokio::spawn(async move { store.claim(claim(&format!("away-{n}"))).await.unwrap() });
        if n % 2 == 0 {
            task.abort();
        } else {
            tasks.push(task);
        }
    }
    for task in tasks {
        assert!(matches!(soon(task).await.unwrap(), Claimed::Run(_)));
    }
    soon(store.close()).await;
    let error = soon(store.claim(claim("after"))).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Closed, Fate::NotApplied), "{error}");
    assert_eq!(soon(store.now()).await.unwrap_err().kind(), ErrorKind::Closed);
}
