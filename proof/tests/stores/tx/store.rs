//! The same table as the store: what one side commits the other sees, and of a guard and a transaction one runs.

use std::time::{Duration, Instant};

use semel::store::postgres::PostgresStore;
use semel::store::{Claim, Claimed, Finish, Finished, Store};
use semel::tx::{Once, TxError, once_tx};
use semel::{
    Effect, Failure, Guard, GuardError, InFlight, OnceError, Outcome, Owner, Retention, State, Verdict,
};

use crate::tx::world::{World, asked, book, intent};

fn claim(key: &str, effect: Effect, lease_ms: u64) -> Claim {
    Claim {
        intent: intent(key),
        fingerprint: asked(1),
        owner: Owner::random(),
        effect,
        lease_ms,
        window: semel::intent::guard_expiry::KeyWindow::ENDLESS,
    }
}

#[tokio::test]
async fn the_store_sees_what_a_transaction_committed() {
    let Some(world) = World::new().await else { return };
    let (pool, store) = (world.pool(2).await, PostgresStore::open(&world.url()).await.unwrap());
    let mut tx = pool.begin().await.unwrap();
    let paid = once_tx(&mut tx, &intent("a"), asked(1), async |tx| book(tx, "a", 1).await).await.unwrap();
    // Not committed: the store sees nothing, and says "in flight" at once instead of waiting for it.
    assert!(store.get(intent("a").id()).await.unwrap().is_none());
    let begun = Instant::now();
    let claimed = store.claim(claim("a", Effect::Opaque, 1_000)).await;
    assert!(!matches!(claimed, Ok(Claimed::Run(_) | Claimed::Replay(_))), "{claimed:?}");
    assert!(begun.elapsed() < Duration::from_secs(30));
    tx.commit().await.unwrap();
    let record = store.get(intent("a").id()).await.unwrap().unwrap();
    assert_eq!(
        (record.head.state, record.head.effect, record.attempts),
        (State::Completed, Effect::Atomic, 1)
    );
    assert_eq!(record.intent, intent("a"));
    assert_eq!(record.outcome.unwrap().body_bytes().unwrap(), paid.value.to_string().as_bytes());
    assert!(matches!(store.claim(claim("a", Effect::Opaque, 1_000)).await.unwrap(), Claimed::Replay(_)));
    pool.close().await;
    store.close().await;
    world.end().await;
}

#[tokio::test]
async fn a_transaction_respects_what_the_store_has() {
    let Some(world) = World::new().await else { return };
    let (pool, store) = (world.pool(4).await, PostgresStore::open(&world.url()).await.unwrap());
    let try_now = async |key: &str| {
        let mut tx = pool.begin().await.unwrap();
        let once = Once::new(&intent(key), asked(1)).wait(Duration::from_millis(50));
        let answer = once.run_tx(&mut tx, async |tx| book(tx, key, 1).await).await;
        tx.commit().await.unwrap();
        answer
    };
    // A live claim is in flight; what it ends in is replayed.
    let Claimed::Run(ticket) = store.claim(claim("a", Effect::Opaque, 60_000)).await.unwrap() else {
        panic!()
    };
    assert!(matches!(try_now("a").await, Err(TxError::InFlight { .. })));
    let waits = tokio::spawn({
        let pool = pool.clone();
        async move {
            let mut tx = pool.begin().await.unwrap();
            let once = Once::new(&intent("a"), asked(1)).wait(Duration::from_secs(60));
            once.run_tx(&mut tx, async |tx| book(tx, "a", 1).await).await.unwrap()
        }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let outcome = Some(Outcome::new(200, "77"));
    let finish = Finish { verdict: Verdict::Completed, outcome, retention: Retention::DAY };
    store.finish(ticket, finish).await.unwrap();
    let reply = waits.await.unwrap();
    assert_eq!((reply.value, reply.replayed), (77, true));
    // An opaque claim whose lease ran out is in doubt; a protected one may be taken over.
    for (key, effect) in [("b", Effect::Opaque), ("c", Effect::Keyed)] {
        store.claim(claim(key, effect, 1)).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert!(matches!(try_now("b").await, Err(TxError::Uncertain { .. })));
    assert!(!try_now("c").await.unwrap().replayed);
    assert_eq!(store.get(intent("c").id()).await.unwrap().unwrap().attempts, 2);
    // Refused for good is the answer to every retry; failed retryably may run.
    for (key, verdict) in [("d", Verdict::FailedFinal), ("e", Verdict::FailedRetryable)] {
        let Claimed::Run(ticket) = store.claim(claim(key, Effect::Opaque, 60_000)).await.unwrap() else {
            panic!()
        };
        let outcome = Some(Outcome::new(402, "card declined"));
        store.finish(ticket, Finish { verdict, outcome, retention: Retention::DAY }).await.unwrap();
    }
    match try_now("d").await {
        Err(TxError::Refused(failure)) => assert_eq!(failure, Failure::refused("card declined").code(402)),
        other => panic!("{other:?}"),
    }
    assert!(!try_now("e").await.unwrap().replayed);
    assert_eq!(world.count("SELECT count(*) FROM payment").await, 2);
    pool.close().await;
    store.close().await;
    world.end().await;
}

#[tokio::test]
async fn of_guards_and_transactions_at_once_one_has_its_effect() {
    let Some(world) = World::new().await else { return };
    let (pool, store) = (world.pool(24).await, PostgresStore::open(&world.url()).await.unwrap());
    // Of their own: a transaction that waits keeps its connection, and those who wait for an owner's work must not
    // take the last one it could work with.
    let for_guards = world.pool(4).await;
    let guarded = Guard::new(store.clone()).operation("payment.create").unwrap();
    let guarded = guarded.in_flight(InFlight::Wait(Duration::from_secs(10))).unwrap();
    let tasks: Vec<_> = (0..64)
        .map(|task: usize| {
            let (pool, for_guards, guarded) = (pool.clone(), for_guards.clone(), guarded.clone());
            tokio::spawn(async move {
                for round in 0..8 {
                    let key = format!("k{}-{round}", task / 8);
                    if task.is_multiple_of(2) {
                        let mut tx = pool.begin().await.unwrap();
                        let once = Once::new(&intent(&key), asked(1)).wait(Duration::from_secs(60));
                        once.run_tx(&mut tx, async |tx| book(tx, &key, 1).await).await.unwrap();
                        tx.commit().await.unwrap();
                        continue;
                    }
                    loop {
                        let (pool, name) = (for_guards.clone(), key.clone());
                        let work = move |_| async move {
                            let mut connection = pool.acquire().await?;
                            Ok::<_, Failure>(book(&mut connection, &name, 1).await?)
                        };
                        let intent = intent(&key);
                        match guarded.once(intent.scope(), intent.key(), &("EUR", 1), work).await {
                            Ok(_) => break,
                            Err(OnceError::Guard(GuardError::InFlight { .. })) => {
                                tokio::time::sleep(Duration::from_millis(5)).await;
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(world.count("SELECT count(*) FROM payment").await, 64);
    assert_eq!(world.count("SELECT count(DISTINCT name) FROM payment").await, 64);
    assert_eq!(world.count("SELECT cents FROM account").await, 64);
    pool.close().await;
    for_guards.close().await;
    store.close().await;
    world.end().await;
}

/// The last owner of a claim that lapsed brings its outcome while a transaction has taken over, and runs.
#[tokio::test]
async fn an_outcome_that_came_while_a_transaction_took_over_stands() {
    let Some(world) = World::new().await else { return };
    let (pool, store) = (world.pool(2).await, PostgresStore::open(&world.url()).await.unwrap());
    for verdict in [Verdict::Completed, Verdict::FailedFinal] {
        let key = format!("late-{verdict:?}");
        let Claimed::Run(ticket) = store.claim(claim(&key, Effect::Keyed, 1)).await.unwrap() else {
            panic!()
        };
        tokio::time::sleep(Duration::from_millis(30)).await;
        let outcome = Some(Outcome::new(200, "77"));
        let finish = Finish { verdict, outcome, retention: Retention::DAY };
        let mut tx = pool.begin().await.unwrap();
        let lost = once_tx(&mut tx, &intent(&key), asked(1), async |tx| {
            let paid = book(tx, &key, 1).await;
            assert_eq!(store.finish(ticket, finish.clone()).await.unwrap(), Finished::Recorded);
            paid
        })
        .await;
        assert!(matches!(lost, Err(TxError::Lost)), "{lost:?}");
        tx.rollback().await.unwrap();
        let record = store.get(intent(&key).id()).await.unwrap().unwrap();
        assert_eq!((record.head.state, record.head.epoch), (State::from(verdict), ticket.epoch));
        assert_eq!(record.outcome.unwrap().body_bytes().unwrap(), &b"77"[..]);
        assert_eq!(world.payments(&key).await, 0);
    }
    // One that was brought and has expired by now is not replayed: it is written over.
    let Claimed::Run(ticket) = store.claim(claim("old", Effect::Keyed, 60_000)).await.unwrap() else {
        panic!()
    };
    let brief = Finish { verdict: Verdict::Completed, outcome: None, retention: Retention::Ms(1) };
    store.finish(ticket, brief).await.unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    let mut tx = pool.begin().await.unwrap();
    let paid = once_tx(&mut tx, &intent("old"), asked(1), async |tx| book(tx, "old", 1).await).await.unwrap();
    tx.commit().await.unwrap();
    assert!(!paid.replayed);
    assert_eq!(world.payments("old").await, 1);
    pool.close().await;
    store.close().await;
    world.end().await;
}

/// Locks are the database's: two schemas with the same intent wait for each other, and that is all.
#[tokio::test]
async fn the_same_intent_in_two_schemas_waits_and_happens_in_both() {
    let (Some(one), Some(two)) = (World::new().await, World::new().await) else { return };
    let (first, second) = (one.pool(2).await, two.pool(2).await);
    let mut open = first.begin().await.unwrap();
    once_tx(&mut open, &intent("a"), asked(1), async |tx| book(tx, "a", 1).await).await.unwrap();
    let mut tx = second.begin().await.unwrap();
    let at_once = Once::new(&intent("a"), asked(1)).wait(Duration::ZERO);
    let met = at_once.run_tx(&mut tx, async |tx| book(tx, "a", 1).await).await;
    assert!(matches!(met, Err(TxError::InFlight { .. })), "{met:?}");
    open.commit().await.unwrap();
    // Not the other schema's answer: this one has none yet.
    let paid = once_tx(&mut tx, &intent("a"), asked(1), async |tx| book(tx, "a", 1).await).await.unwrap();
    assert!(!paid.replayed);
    tx.commit().await.unwrap();
    assert_eq!((one.payments("a").await, two.payments("a").await), (1, 1));
    first.close().await;
    second.close().await;
    one.end().await;
    two.end().await;
}
