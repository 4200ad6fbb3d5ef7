//! Forgetting what has expired, a little at a time.

use semel::store::Store;
use semel::{Retention, Verdict};

use crate::sqlite_support::*;

#[tokio::test]
async fn a_sweep_goes_in_steps_and_claims_go_between_them() {
    let (place, hand) = (place(), Hand::at(1_000_000));
    let store = hand.options().open(&place.path).await.unwrap();
    for chunk in 0..10 {
        let done = (0..100).map(|n| {
            let (store, key) = (store.clone(), format!("{chunk}-{n}"));
            async move { done(&store, &key).await }
        });
        futures_util::future::join_all(done).await;
    }
    let live = run(&store, claim("live")).await;
    let unknown = run(&store, claim("unknown")).await;
    let mut finish = completed("?");
    (finish.verdict, finish.retention) = (Verdict::Uncertain, Retention::Ms(1));
    store.finish(unknown, finish).await.unwrap();
    hand.advance_ms(30 * 24 * 60 * 60 * 1000);

    assert_eq!(store.sweep(0).await.unwrap(), 0);
    assert_eq!(store.sweep(300).await.unwrap(), 300);
    let held = hold(&place.path);
    let sweep = started(store.sweep(10_000));
    let claimed = started(store.claim(claim("meanwhile")));
    held.release();
    assert!(claimed.await.is_ok());
    let before = store.commits();
    assert_eq!(sweep.await.unwrap(), 700);
    assert!(store.commits() <= before + 3, "the claim did not wait for the whole sweep");
    assert_eq!(store.sweep(10).await.unwrap(), 0);
    for ticket in [live, unknown] {
        assert!(store.get(ticket.id).await.unwrap().is_some(), "open ones stay, however old");
    }
}
