//! Where the other side remembers a key for a while only, no retry is made that might arrive later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel::guard::{Guarded, PolicyError};
use semel::intent::fingerprint::Recipe;
use semel::store::faulty::{Fault, Faulty};
use semel::store::memory::MemoryStore;
use semel::store::{Filter, Record, Store};
use semel::{
    Answer, Effect, Execution, Found, Guard, GuardError, Outcome, State, StoreDown, Verdict, WorkResult,
};

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
async fn broken<S: Store>(guarded: &Guarded<S>, effects: &Effects) -> Result<Answer, GuardError> {
    let effects = effects.clone();
    let work = move |_| async move {
        effects.happen();
        Execution { result: WorkResult::Unknown, outcome: Outcome::new(502, "broken off") }
    };
    guarded.run(guarded.intent(&acme(), &key("k")), Recipe::default().bytes(b"42"), work).await
}

async fn record<S: Store>(guarded: &Guarded<S>) -> Record {
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
    let counted = |count: u8| {
        let metrics = charge.guard().metrics().render();
        let line = format!("idempotency_guard_expiring{{operation=\"charge\"}} {count}\n");
        assert!(metrics.contains(&line), "{metrics}");
    };
    // In the first half of its time it is left to its callers.
    reconciler.run_once().await;
    counted(0);
    let within = |ms| Filter { expiring_within_ms: Some(ms), ..Filter::default() };
    let store = charge.guard().store();
    assert_eq!(store.list(within(3_599_999)).await.unwrap().records.len(), 0);
    assert_eq!(store.list(within(3_600_000)).await.unwrap().records.len(), 1);
    tokio::time::advance(SAFE_FOR / 2).await;
    reconciler.run_once().await;
    counted(1);
    // Also when it is too late, and not while somebody works on it.
    tokio::time::advance(SAFE_FOR / 4).await;
    let (started, wait) = tokio::sync::oneshot::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let work = move |_| async move {
        started.send(()).unwrap();
        ended.await.unwrap();
        Execution { result: WorkResult::Unknown, outcome: Outcome::new(502, "broken off") }
    };
    let (retrying, intent) = (charge.clone(), charge.intent(&acme(), &key("k")));
    let fingerprint = Recipe::default().bytes(b"42");
    let retry = tokio::spawn(async move { retrying.run(intent, fingerprint, work).await });
    wait.await.unwrap();
    reconciler.run_once().await;
    counted(0);
    end.send(()).unwrap();
    retry.await.unwrap().unwrap();
    tokio::time::advance(SAFE_FOR / 4).await;
    reconciler.run_once().await;
    counted(1);
}

#[tokio::test(start_paused = true)]
async fn work_that_ran_unguarded_is_recorded_with_the_time_it_began() {
    let (inner, effects) = (store(), Effects::default());
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let script = move |_| if is_down.load(Ordering::SeqCst) { Fault::Refused } else { Fault::None };
    let charge = Guard::new(Faulty::new(inner.clone(), script)).operation("charge").unwrap();
    let charge = charge.effect(Effect::Keyed).unwrap().timeout(TIMEOUT).safe_for(SAFE_FOR).unwrap();
    let charge = charge.store_down(StoreDown::Open);
    assert!(!broken(&charge, &effects).await.unwrap().guarded);
    // The claims before the work have taken a moment, the work none.
    let began = inner.now().await.unwrap();
    tokio::time::sleep(Duration::from_secs(50 * 60)).await;
    down.store(false, Ordering::SeqCst);
    assert!(charge.guard().drain(Duration::from_secs(60)).await.is_clean());
    let safe_until = record(&charge).await.head.safe_until.unwrap();
    assert!(safe_until <= began.plus_ms(3_600_000), "{safe_until:?}, and the work began at {began:?}");
    tokio::time::advance(Duration::from_secs(11 * 60)).await;
    let again = Guard::new(inner).operation("charge").unwrap();
    let again = again.effect(Effect::Keyed).unwrap().timeout(TIMEOUT).safe_for(SAFE_FOR).unwrap();
    let refused = broken(&again, &effects).await.unwrap_err();
    assert!(matches!(refused, GuardError::Uncertain { .. }), "{refused}");
    assert_eq!(effects.count(), 1);
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
