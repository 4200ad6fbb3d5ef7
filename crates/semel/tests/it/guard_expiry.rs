//! Where the other side remembers a key for a while only, no retry is made that might arrive later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel::guard::{Guarded, PolicyError};
use semel::intent::fingerprint::Recipe;
use semel::store::memory::MemoryStore;
use semel::store::{Filter, Record, Store};
use semel::{Answer, Effect, Execution, Found, Guard, GuardError, Outcome, State, Verdict, WorkResult};

use crate::guard_world::{Effects, acme, key, store};

const TIMEOUT: Duration = Duration::from_secs(10);
const SAFE_FOR: Duration = Duration::from_secs(3_600);
/// The last moment at which an attempt begins, seen from the first one.
const LATEST: Duration = Duration::from_millis(3_600_000 - 10_000 - 5_000 - 1);

fn charge() -> Guarded<MemoryStore> {
    let guarded = Guard::new(store()).operation("charge").unwrap();
    guarded.effect(Effect::Keyed).unwrap().timeout(TIMEOUT).safe_for(SAFE_FOR).unwrap()
}

/// Work that has its effect, and does not know it.
async fn broken(guarded: &Guarded<MemoryStore>, effects: &Effects) -> Result<Answer, GuardError> {
    let effects = effects.clone();
    let work = move |_| async move {
        effects.happen();
        Execution { result: WorkResult::Unknown, outcome: Outcome::new(502, "broken off") }
    };
    guarded.run(guarded.intent(&acme(), &key("k")), Recipe::default().bytes(b"42"), work).await
}

async fn record(guarded: &Guarded<MemoryStore>) -> Record {
    let id = guarded.intent(&acme(), &key("k")).id();
    guarded.guard().store().get(id).await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_made_until_the_key_may_be_forgotten_and_not_after() {
    let (charge, effects) = (charge(), Effects::default());
    broken(&charge, &effects).await.unwrap();
    let safe_until = record(&charge).await.head.safe_until.unwrap();
    tokio::time::advance(LATEST).await;
    broken(&charge, &effects).await.unwrap();
    assert_eq!(record(&charge).await.head.safe_until, Some(safe_until), "the retry has not moved it");
    tokio::time::advance(Duration::from_millis(1)).await;
    let refused = broken(&charge, &effects).await.unwrap_err();
    assert!(matches!(refused, GuardError::Uncertain { settles_in: None, .. }), "{refused}");
    assert_eq!(effects.count(), 2);
    let metrics = charge.guard().metrics().render();
    assert!(metrics.contains("idempotency_guard_expired_total{operation=\"charge\"} 1"), "{metrics}");
    // It is kept for a person, whatever the retention.
    tokio::time::advance(Duration::from_secs(30 * 24 * 3_600)).await;
    assert_eq!(charge.guard().store().sweep(100).await.unwrap(), 0);
    let now = charge.guard().store().now().await.unwrap();
    assert_eq!(record(&charge).await.state_at(now), Some(State::Uncertain));
    assert!(broken(&charge, &effects).await.is_err());
    assert_eq!(effects.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lookup_settles_what_may_not_run_again() {
    let applied = Arc::new(AtomicBool::new(false));
    let happened = Arc::clone(&applied);
    let lookup = move |_| {
        let found = happened.load(Ordering::SeqCst);
        async move { if found { Found::Applied(Outcome::new(201, "found")) } else { Found::NotApplied } }
    };
    let charge = charge().lookup(lookup, Duration::from_secs(30));
    let effects = Effects::default();
    broken(&charge, &effects).await.unwrap();
    let first = record(&charge).await.head.safe_until;
    tokio::time::advance(SAFE_FOR).await;
    // "Not applied": the next attempt is a first one.
    broken(&charge, &effects).await.unwrap();
    assert_eq!(effects.count(), 2);
    assert!(record(&charge).await.head.safe_until > first);
    tokio::time::advance(SAFE_FOR).await;
    applied.store(true, Ordering::SeqCst);
    let answer = broken(&charge, &effects).await.unwrap();
    assert_eq!((answer.verdict, answer.replayed), (Verdict::Completed, true));
    assert_eq!(effects.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_forgotten_soon_are_listed_and_counted() {
    let (charge, effects) = (charge(), Effects::default());
    broken(&charge, &effects).await.unwrap();
    let mut reconciler = semel::recover::Reconciler::new().watch(&charge);
    reconciler.run_once().await;
    let within = |ms| Filter { expiring_within_ms: Some(ms), ..Filter::default() };
    let store = charge.guard().store();
    assert_eq!(store.list(within(3_599_999)).await.unwrap().records.len(), 0);
    assert_eq!(store.list(within(3_600_000)).await.unwrap().records.len(), 1);
    let metrics = charge.guard().metrics().render();
    assert!(metrics.contains("idempotency_guard_expiring{operation=\"charge\"} 1"), "{metrics}");
}

#[test]
fn what_makes_no_sense_is_refused_at_the_start() {
    let operation = || Guard::new(MemoryStore::new()).operation("charge").unwrap();
    let keyed = || operation().effect(Effect::Keyed).unwrap();
    assert_eq!(operation().timeout(TIMEOUT).safe_for(SAFE_FOR).unwrap_err(), PolicyError::SafeForEffect);
    assert_eq!(keyed().safe_for(SAFE_FOR).unwrap_err(), PolicyError::SafeForTimeout);
    let short = keyed().timeout(TIMEOUT).safe_for(Duration::from_secs(15)).unwrap_err();
    assert!(matches!(short, PolicyError::SafeForShort { .. }), "{short}");
    keyed().timeout(TIMEOUT).safe_for(Duration::from_millis(15_001)).unwrap();
    let opaque = keyed().timeout(TIMEOUT).safe_for(SAFE_FOR).unwrap().effect(Effect::Opaque);
    assert_eq!(opaque.unwrap_err(), PolicyError::SafeForEffect);
}
