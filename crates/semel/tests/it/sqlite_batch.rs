//! Many requests share one commit, and none of them fails for another.

use std::time::Duration;

use futures_util::future::{join_all, select_all};
use semel::store::sqlite::SqliteStore;
use semel::store::{Claimed, ErrorKind, Fate, Finished, Store};

use crate::sqlite_support::*;

#[tokio::test]
async fn what_waits_together_is_committed_together() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    let held = hold(&place.path);
    let keys: Vec<String> = (0..64).map(|n| format!("k{n}")).collect();
    let waiting: Vec<_> = keys.iter().map(|key| started(store.claim(claim(key)))).collect();
    held.release();
    let claimed = join_all(waiting).await;
    assert!(claimed.iter().all(|claimed| matches!(claimed, Ok(Claimed::Run(_)))));
    assert_eq!(store.commits(), 1);

    // A lone caller waits for no other, and a replay writes nothing.
    done(&store, "alone").await;
    assert_eq!(store.commits(), 3);
    assert_eq!(replayed(&store, "alone").await, "alone");
    assert!(matches!(store.claim(claim("k1")).await.unwrap(), Claimed::InFlight(_)));
    assert_eq!(store.commits(), 3);
}

#[tokio::test]
async fn a_batch_is_bounded() {
    let place = place();
    let store = SqliteStore::options().batch_max(10).open(&place.path).await.unwrap();
    let held = hold(&place.path);
    let keys: Vec<String> = (0..25).map(|n| format!("k{n}")).collect();
    let waiting: Vec<_> = keys.iter().map(|key| started(store.claim(claim(key)))).collect();
    held.release();
    assert!(join_all(waiting).await.iter().all(Result::is_ok));
    assert_eq!(store.commits(), 3);
}

#[tokio::test]
async fn one_intent_many_times_in_a_batch_runs_once() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    let held = hold(&place.path);
    let first = claim("k");
    let waiting: Vec<_> = [first.clone(), claim("k"), first.clone(), claim("k")]
        .into_iter()
        .map(|claim| started(store.claim(claim)))
        .collect();
    held.release();
    let claimed: Vec<Claimed> = join_all(waiting).await.into_iter().map(Result::unwrap).collect();
    let (Claimed::Run(one), Claimed::InFlight(_), Claimed::Run(same), Claimed::InFlight(_)) =
        (&claimed[0], &claimed[1], &claimed[2], &claimed[3])
    else {
        panic!("{claimed:?}")
    };
    assert_eq!(one, same, "the same attempt asking again has the claim already");
}

#[tokio::test]
async fn a_record_that_cannot_be_read_fails_alone() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    let broken = done(&store, "broken").await;
    plain(&place.path).execute("UPDATE intent SET state = 9", []).unwrap();
    let held = hold(&place.path);
    let before = started(store.claim(claim("before")));
    let middle = started(store.claim(claim("broken")));
    let late = started(store.finish(broken, completed("late")));
    let after = started(store.claim(claim("after")));
    held.release();
    assert!(matches!(before.await, Ok(Claimed::Run(_))));
    for error in [error_of(middle.await), error_of(late.await)] {
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Corrupt, Fate::NotApplied), "{error}");
        assert!(error.to_string().contains("9 is not the code of a state"), "{error}");
    }
    assert!(matches!(after.await, Ok(Claimed::Run(_))));
    assert_eq!(error_of(store.get(broken.id).await).kind(), ErrorKind::Corrupt);
    assert!(store.get(intent("after").id()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_caller_who_goes_away_leaves_it_done_or_not_done() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    let held = hold(&place.path);
    let (gone, stays) = (claim("gone"), claim("stays"));
    drop(started(store.claim(gone.clone())));
    let waiting = started(store.claim(stays));
    held.release();
    assert!(matches!(waiting.await, Ok(Claimed::Run(_))));
    // Whether it was carried out or not: the same attempt asking again holds the claim.
    let ticket = run(&store, gone).await;
    assert_eq!(store.finish(ticket, completed("x")).await.unwrap(), Finished::Recorded);
}

#[tokio::test]
async fn a_full_queue_is_an_answer() {
    let place = place();
    let options = SqliteStore::options().queue_max(1).queue_wait(Duration::from_millis(1));
    let store = options.open(&place.path).await.unwrap();
    let held = hold(&place.path);
    // The writer has one in hand and the queue holds another: of three, one is refused. It is the first to
    // be answered, because nothing is committed meanwhile.
    let claims = ["a", "b", "c"].map(|key| Box::pin(store.claim(claim(key))));
    let (answer, _, others) = select_all(claims).await;
    let error = error_of(answer);
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Busy, Fate::NotApplied), "{error}");
    assert!(error.may_retry());
    held.release();
    join_all(others).await;
    done(&store, "later").await;
}

#[tokio::test]
async fn a_closed_store_says_so_and_answers_what_was_asked_before() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    let other = store.clone();
    let held = hold(&place.path);
    let asked = started(store.claim(claim("asked")));
    let mut closing = started(other.close());
    held.release();
    closing.as_mut().await;
    assert!(matches!(asked.await, Ok(Claimed::Run(_))));
    for error in [
        error_of(store.claim(claim("k")).await),
        error_of(store.get(intent("k").id()).await),
        error_of(store.sweep(1).await),
    ] {
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Closed, Fate::NotApplied));
    }
    store.close().await;
}

#[tokio::test]
async fn a_writer_that_panics_leaves_no_caller_waiting() {
    let (place, hand) = (place(), Hand::at(1));
    let clock = hand.clock();
    let options = SqliteStore::options().clock(move || {
        let now = clock();
        let writing = std::thread::current().name() == Some("semel-sqlite-writer");
        assert!(!writing || now.0 < 100, "the clock broke");
        now
    });
    let store = options.open(&place.path).await.unwrap();
    done(&store, "before").await;
    hand.advance_ms(200);
    let held = hold(&place.path);
    let waiting: Vec<_> = ["a", "b"].map(|key| started(store.claim(claim(key)))).into();
    held.release();
    for answer in join_all(waiting).await {
        let error = error_of(answer);
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::InDoubt), "{error}");
    }
    assert_eq!(error_of(store.claim(claim("c")).await).kind(), ErrorKind::Closed);
    assert!(store.get(intent("before").id()).await.unwrap().is_some(), "what is there can be read");
    store.close().await;
}
