//! Records for people: pages, filters, and the few among many.

use std::collections::HashSet;

use semel::store::sqlite::SqliteStore;
use semel::store::{Claim, ErrorKind, Filter, Store};
use semel::{Effect, Outcome, State};

use crate::sqlite_support::*;

fn of(states: &[State], limit: usize) -> Filter {
    Filter { states: states.to_vec(), limit, ..Filter::default() }
}

/// All pages, one after the other.
async fn walk(store: &SqliteStore, mut filter: Filter, between: impl AsyncFn(usize)) -> Vec<String> {
    let mut keys = Vec::new();
    for page in 0.. {
        let found = store.list(filter.clone()).await.unwrap();
        keys.extend(found.records.iter().map(|record| record.intent.key().as_str().to_owned()));
        filter.after = match found.next {
            Some(next) => Some(next),
            None => break,
        };
        between(page).await;
    }
    keys
}

#[tokio::test]
async fn walking_the_pages_while_claims_go_on_shows_each_once() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    for n in 0..50 {
        done(&store, &format!("k{n}")).await;
    }
    let keys = walk(&store, of(&[], 7), async |page| {
        done(&store, &format!("new{page}")).await;
    })
    .await;
    let expected: Vec<String> = (0..50).rev().map(|n| format!("k{n}")).collect();
    assert_eq!(keys, expected, "newest first, and the new ones come before where the walk is");
}

/// Every thousandth is lost, the others are finished.
async fn claim_some(store: &SqliteStore, n: usize) {
    let key = format!("k{n}");
    if n.is_multiple_of(1_000) {
        run(store, Claim { lease_ms: 0, ..claim(&key) }).await;
    } else {
        done(store, &key).await;
    }
}

#[tokio::test]
async fn a_few_uncertain_ones_are_found_among_many() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    for chunk in 0..30 {
        let claims = (0..100).map(|n| claim_some(&store, chunk * 100 + n));
        futures_util::future::join_all(claims).await;
    }
    run(&store, Claim { lease_ms: 0, effect: Effect::Keyed, ..claim("keyed") }).await;
    let found = walk(&store, of(&[State::Uncertain], 2), async |_| ()).await;
    assert_eq!(found, ["k2000", "k1000", "k0"]);
    let running = walk(&store, of(&[State::InProgress], 10), async |_| ()).await;
    assert_eq!(running, ["keyed"], "what may run again is not uncertain");
    // Windows of a thousand rows: what matches is at the far end of them.
    let oldest = Filter { operation: Some("payment.create".into()), ..of(&[State::Completed], 1_000) };
    assert_eq!(walk(&store, oldest, async |_| ()).await.len(), 2_997);

    let plan: Vec<String> = plain(&place.path)
        .prepare(
            "EXPLAIN QUERY PLAN SELECT * FROM intent INDEXED BY intent_open
             WHERE seq < 9 AND seq >= 0 AND state < 2 ORDER BY seq DESC",
        )
        .unwrap()
        .query_map([], |row| row.get(3))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(plan.len(), 1, "{plan:?}");
    assert!(plan[0].contains("SEARCH") && plan[0].contains("intent_open"), "{plan:?}");
}

#[tokio::test]
async fn filters_by_tenant_operation_and_age() {
    let (place, hand) = (place(), Hand::at(1_000_000));
    let store = hand.options().open(&place.path).await.unwrap();
    let scopes = [("acme", "pay", "1"), ("acme/x", "pay", "2"), ("acme0", "refund", "3"), ("ac", "pay", "4")];
    for (tenant, operation, key) in scopes {
        run(&store, claim_of(intent_of(tenant, operation, key))).await;
        hand.advance_ms(1_000);
    }
    let actor = semel::Scope::tenant("acme").unwrap().actor("u").unwrap();
    let alone = semel::Scope::single_tenant().actor("u").unwrap();
    for (scope, key) in [(actor, "5"), (alone, "6")] {
        let operation = semel::Operation::new("pay").unwrap();
        run(&store, claim_of(semel::Intent::new(scope, operation, semel::Key::new(key).unwrap()))).await;
    }
    let all = || of(&[], 100);
    for (filter, expected) in [
        (Filter { tenant: Some("acme".into()), ..all() }, vec!["5", "1"]),
        (Filter { tenant: Some("acme%2Fx".into()), ..all() }, vec!["2"]),
        (Filter { tenant: Some(String::new()), ..all() }, vec!["6"]),
        (Filter { operation: Some("refund".into()), ..all() }, vec!["3"]),
        (Filter { operation: Some("unheard of".into()), ..all() }, vec![]),
        (Filter { older_than_ms: Some(3_000), ..all() }, vec!["2", "1"]),
        (Filter { older_than_ms: Some(u64::MAX), ..all() }, vec![]),
    ] {
        assert_eq!(walk(&store, filter.clone(), async |_| ()).await, expected, "{filter:?}");
    }
}

#[tokio::test]
async fn a_page_is_bounded_in_records_and_in_bytes() {
    let place = place();
    let store = SqliteStore::open(&place.path).await.unwrap();
    for n in 0..9 {
        let ticket = run(&store, claim(&format!("k{n}"))).await;
        let mut finish = completed("");
        finish.outcome = Some(Outcome::new(200, vec![0; 4_000_000]));
        store.finish(ticket, finish).await.unwrap();
    }
    let page = store.list(of(&[], 1)).await.unwrap();
    assert_eq!(page.records.len(), 1);
    let page = store.list(of(&[], 0)).await.unwrap();
    assert!(page.records.len() > 1 && page.next.is_some(), "no limit is the largest page");
    let page = store.list(of(&[], usize::MAX)).await.unwrap();
    assert!(page.records.len() < 9 && page.next.is_some(), "{}", page.records.len());
    let keys: HashSet<String> = walk(&store, of(&[], 100), async |_| ()).await.into_iter().collect();
    assert_eq!(keys.len(), 9);
    let wrong = Filter { after: Some("not a cursor".into()), ..of(&[], 1) };
    assert_eq!(error_of(store.list(wrong).await).kind(), ErrorKind::Misconfigured);
}
