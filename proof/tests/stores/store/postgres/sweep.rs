//! The sweep forgets what has expired, a little at a time, and nothing else.

use semel::store::{Claimed, Store};

use super::place::Place;
use super::work::*;

/// Rows of every state, all with an expiry long past (open ones never have one; here they do), and one for ever.
const ROWS: &str =
    "INSERT INTO semel_intent (seq, epoch, lease_until, created_at, changed_at, expires_at, recipe,
        operation, attempts, state, effect, id, owner, fingerprint, scope, key)
    SELECT n, n, 9000000000000, 1, 1, CASE WHEN n % 10 < 9 THEN 2 END, 1, 1, 1, n % 5, 0,
        decode(lpad(to_hex(n), 64, '0'), 'hex'), decode(lpad('', 32, '1'), 'hex'),
        decode(lpad('', 64, '2'), 'hex'), 'acme', 'old-' || n
    FROM generate_series(1, 5000) n";

#[tokio::test(flavor = "multi_thread")]
async fn two_sweepers_beside_claims_forget_the_expired_once_and_keep_the_rest() {
    let Some(place) = Place::take() else { return };
    let (one, two) = (place.store().await, place.store().await);
    run(&one, "warm-two").await;
    let person = place.client().await;
    person.batch_execute(ROWS).await.unwrap();
    let count = "SELECT count(*) FROM semel_intent WHERE expires_at IS NOT NULL AND state >= 2";
    let expired: i64 = person.query_one(count, &[]).await.unwrap().get(0);
    let open = "SELECT count(*) FROM semel_intent WHERE state < 2 OR expires_at IS NULL";
    let kept: i64 = person.query_one(open, &[]).await.unwrap().get(0);

    let sweeps: Vec<_> = [one.clone(), two.clone()]
        .into_iter()
        .map(|store| tokio::spawn(async move { store.sweep(10_000).await.unwrap() }))
        .collect();
    let claims: Vec<_> = (0..100)
        .map(|n| {
            let store = one.clone();
            tokio::spawn(async move { run(&store, &format!("beside-{n}")).await })
        })
        .collect();
    for claim in claims {
        soon(claim).await.unwrap();
    }
    let mut swept = 0;
    for sweep in sweeps {
        swept += soon(sweep).await.unwrap();
    }
    assert_eq!(swept as i64, expired);
    assert_eq!(person.query_one(open, &[]).await.unwrap().get::<_, i64>(0), kept + 100);
    assert_eq!(soon(one.sweep(10)).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_is_left_for_the_next_time() {
    let Some(place) = Place::take() else { return };
    let store = place.store().await;
    run(&store, "warm-left").await;
    let person = place.client().await;
    person.batch_execute(ROWS).await.unwrap();
    let before = soon(store.sweep(7)).await.unwrap();
    assert_eq!(before, 7);
    person
        .batch_execute("BEGIN; SELECT 1 FROM semel_intent WHERE expires_at = 2 AND state >= 2 FOR UPDATE")
        .await
        .unwrap();
    assert_eq!(soon(store.sweep(7)).await.unwrap(), 0);
    person.batch_execute("COMMIT").await.unwrap();
    assert_eq!(soon(store.sweep(7)).await.unwrap(), 7);
    // A claim of what has expired but was not swept starts anew.
    assert!(
        matches!(soon(store.claim(claim("old-22"))).await.unwrap(), Claimed::Run(ticket) if ticket.attempt == 1)
    );
}
