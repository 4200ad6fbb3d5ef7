//! The sweeper: bounded work, and never a live claim.

use std::time::Duration;

use semel::intent::fingerprint::Recipe;
use semel::recover::{SweepLimits, Sweeper, Swept};
use semel::store::faulty::{Fault, Faulty, StoreCall};
use semel::store::memory::MemoryStore;
use semel::store::{Claim, Claimed, Finish, Store};
use semel::{Effect, Guard, Owner, Retention, Verdict};

use crate::guard_world::{acme, key, store};

/// `finished` records whose retention is short, one live claim and one uncertain intent.
async fn filled(finished: usize) -> (Guard<MemoryStore>, MemoryStore) {
    let store = store();
    let guard = Guard::new(store.clone());
    let pay = guard.operation("pay").unwrap();
    let claim = |name: &str, lease_ms| Claim {
        intent: pay.intent(&acme(), &key(name)),
        fingerprint: Recipe::default().bytes(b""),
        owner: Owner::random(),
        effect: Effect::Opaque,
        lease_ms,
        window: semel::intent::guard_expiry::KeyWindow::ENDLESS,
    };
    for n in 0..finished {
        let Claimed::Run(ticket) = store.claim(claim(&format!("k-{n}"), 1_000)).await.unwrap() else {
            panic!("fresh")
        };
        let finish = Finish { verdict: Verdict::Completed, outcome: None, retention: Retention::Ms(1_000) };
        store.finish(ticket, finish).await.unwrap();
    }
    store.claim(claim("live", 1_000_000_000)).await.unwrap();
    store.claim(claim("uncertain", 1)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    (guard, store)
}

fn limits(batch_records: usize, run_records_max: usize) -> SweepLimits {
    let mut limits = SweepLimits::default();
    (limits.batch_records, limits.run_records_max) = (batch_records, run_records_max);
    limits
}

#[tokio::test(start_paused = true)]
async fn a_run_is_bounded_and_the_rest_comes_later() {
    let (guard, store) = filled(25).await;
    let sweeper = Sweeper::new(&guard).limits(limits(4, 10));
    assert_eq!(sweeper.run_once().await.unwrap(), Swept { records: 10, more: true });
    assert_eq!(sweeper.run_once().await.unwrap(), Swept { records: 10, more: true });
    assert_eq!(sweeper.run_once().await.unwrap(), Swept { records: 5, more: false });
    assert_eq!(sweeper.run_once().await.unwrap(), Swept { records: 0, more: false });
    assert_eq!(store.list(semel::store::Filter::default()).await.unwrap().records.len(), 2);
    assert!(guard.metrics().render().contains("semel_swept_total 25"));
}

#[tokio::test(start_paused = true)]
async fn the_loop_forgets_a_backlog_and_touches_nothing_else() {
    let (guard, store) = filled(50).await;
    let running = tokio::spawn(Sweeper::new(&guard).limits(limits(4, 10)).run());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(guard.metrics().render().contains("semel_swept_total 50"));
    assert_eq!(store.list(semel::store::Filter::default()).await.unwrap().records.len(), 2);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_or_hangs_does_not_end_the_loop() {
    for fault in [Fault::Refused, Fault::Hangs] {
        let (_, inner) = filled(5).await;
        let times = std::sync::atomic::AtomicU32::new(0);
        let faulty = Faulty::new(inner, move |call| {
            let first =
                call == StoreCall::Sweep && times.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
            if first { fault } else { Fault::None }
        });
        let guard = Guard::new(faulty);
        let running = tokio::spawn(Sweeper::new(&guard).run());
        tokio::time::sleep(Duration::from_secs(180)).await;
        assert!(guard.metrics().render().contains("semel_swept_total 5"), "{fault:?}");
        running.abort();
    }
}
