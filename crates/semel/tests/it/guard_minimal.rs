//! Minimal mode: the store holds the status and a reference, and a failing hook never makes anything run again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::guard::{Guarded, Kept, Rebuild, Rebuilt};
use semel::store::Store;
use semel::store::memory::MemoryStore;
use semel::{Body, Failure, Found, Guard, GuardError, OnceError, Outcome};

use crate::guard_world::{Effects, acme, key, store};

/// Knows payments by their id; 0 works, 1 fails, 2 panics, 3 hangs.
#[derive(Clone, Default)]
struct Ledger(Arc<AtomicU32>);

impl Rebuild for Ledger {
    fn reference(&self, outcome: &Outcome) -> Option<String> {
        let answer: String = serde_json::from_slice(outcome.body_bytes()?).ok()?;
        assert_ne!(answer, "paid panic");
        Some(answer.strip_prefix("paid ")?.split(' ').next()?.to_owned())
    }

    fn rebuild(&self, kept: Kept) -> Rebuilt<'_> {
        let mode = self.0.load(Ordering::SeqCst);
        Box::pin(async move {
            match mode {
                0 => Ok(Outcome::new(kept.code, format!("\"rebuilt {}\"", kept.reference))),
                1 => Err("the ledger is away".into()),
                2 => panic!("on purpose"),
                _ => std::future::pending().await,
            }
        })
    }
}

async fn pay(pay: &Guarded<MemoryStore>, effects: &Effects, says: &str) -> Result<String, OnceError> {
    let (mine, says) = (effects.clone(), says.to_owned());
    let work = |_| async move {
        mine.happen();
        if says == "declined" { Err(Failure::refused("no, Jane Doe").code(402)) } else { Ok(says) }
    };
    pay.once(&acme(), &key("k"), &(), work).await.map(|reply| reply.value)
}

async fn stored(pay: &Guarded<MemoryStore>) -> Outcome {
    let record = pay.guard().store().get(pay.intent(&acme(), &key("k")).id()).await.unwrap();
    record.unwrap().outcome.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_store_holds_a_reference_and_later_callers_get_a_rebuilt_answer() {
    let (ledger, effects) = (Ledger::default(), Effects::default());
    let guarded = Guard::new(store()).operation("pay").unwrap().minimal(ledger.clone());
    assert_eq!(pay(&guarded, &effects, "paid pay_7 by Jane Doe").await.unwrap(), "paid pay_7 by Jane Doe");
    let kept = stored(&guarded).await;
    assert_eq!(kept, Outcome { code: 200, headers: vec![].into(), body: Body::Reference("pay_7".into()) });
    assert_eq!(pay(&guarded, &effects, "x").await.unwrap(), "rebuilt pay_7");
    for mode in 1..=3 {
        ledger.0.store(mode, Ordering::SeqCst);
        let failed = pay(&guarded, &effects, "x").await;
        assert!(matches!(failed, Err(OnceError::Guard(GuardError::NotRebuilt { .. }))), "{mode}: {failed:?}");
    }
    // Without the hook (a deploy that forgot it) nothing runs either.
    let without = guarded.guard().operation("pay").unwrap();
    let failed = pay(&without, &effects, "x").await;
    assert!(matches!(failed, Err(OnceError::Guard(GuardError::NotRebuilt { .. }))), "{failed:?}");
    ledger.0.store(0, Ordering::SeqCst);
    assert_eq!(pay(&guarded, &effects, "x").await.unwrap(), "rebuilt pay_7");
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_has_no_reference_is_kept_as_it_is() {
    let effects = Effects::default();
    let guarded = Guard::new(store()).operation("pay").unwrap().minimal(Ledger::default());
    for _ in 0..2 {
        let declined = pay(&guarded, &effects, "declined").await.unwrap_err();
        assert!(
            matches!(&declined, OnceError::Failed { failure, .. } if failure.code == 402),
            "{declined:?}"
        );
    }
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_at_the_finish_leaves_a_tombstone_and_the_true_answer() {
    let effects = Effects::default();
    let guarded = Guard::new(store()).operation("pay").unwrap().minimal(Ledger::default());
    assert_eq!(pay(&guarded, &effects, "paid panic").await.unwrap(), "paid panic");
    assert_eq!(stored(&guarded).await.body, Body::NotKept);
    assert!(matches!(pay(&guarded, &effects, "x").await, Err(OnceError::Value { .. })));
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_lookup_finds_is_reduced_too() {
    let effects = Effects::default();
    let lookup = |_| async { Found::Applied(Outcome::new(200, "\"paid pay_9 by Jane Doe\"")) };
    let guarded = Guard::new(store()).operation("pay").unwrap();
    let guarded = guarded.timeout(Duration::from_secs(1)).lookup(lookup, Duration::from_secs(1));
    let guarded = guarded.minimal(Ledger::default());
    let hang = |_| std::future::pending::<Result<String, Failure>>();
    assert!(guarded.once(&acme(), &key("k"), &(), hang).await.is_err());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(pay(&guarded, &effects, "x").await.unwrap(), "rebuilt pay_9");
    assert_eq!(stored(&guarded).await.body, Body::Reference("pay_9".into()));
    assert_eq!(effects.count(), 0);
}
