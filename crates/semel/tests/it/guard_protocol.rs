//! claim → run → finish → replay, and what duplicates get in between.

use std::time::Duration;

use semel::intent::fingerprint::Recipe;
use semel::store::Store;
use semel::{Effect, Failure, Guard, GuardError, InFlight, KeyFormat, OnceError, Retention, State, Verdict};
use tokio::sync::oneshot;

use crate::guard_world::{Effects, acme, done, key, store};

#[tokio::test(start_paused = true)]
async fn the_second_caller_gets_the_first_ones_answer() {
    let pay = Guard::new(store()).operation("pay").unwrap();
    let effects = Effects::default();
    for attempt in 0..3 {
        let mine = effects.clone();
        let reply = pay
            .once(&acme(), &key("k"), &("EUR", 42), |_| async move { Ok::<_, Failure>(mine.happen()) })
            .await
            .unwrap();
        assert_eq!((reply.value, reply.replayed, reply.stored, reply.guarded), (1, attempt > 0, true, true));
    }
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_request_under_the_same_key_is_refused_also_while_the_first_runs() {
    let pay = Guard::new(store()).operation("pay").unwrap();
    let (go, wait) = oneshot::channel::<()>();
    let (started, running) = oneshot::channel::<()>();
    let first = tokio::spawn({
        let pay = pay.clone();
        async move {
            pay.once(&acme(), &key("k"), &1, |_| async move {
                started.send(()).unwrap();
                wait.await?;
                Ok(1)
            })
            .await
        }
    });
    running.await.unwrap();
    let other = pay.once::<i32, _, _, _>(&acme(), &key("k"), &2, |_| async { panic!("ran") }).await;
    assert!(matches!(other, Err(OnceError::Guard(GuardError::Mismatch))), "{other:?}");
    let same = pay.once::<i32, _, _, _>(&acme(), &key("k"), &1, |_| async { panic!("ran") }).await;
    assert!(matches!(same, Err(OnceError::Guard(GuardError::InFlight { .. }))), "{same:?}");
    go.send(()).unwrap();
    assert_eq!(first.await.unwrap().unwrap().value, 1);
}

#[tokio::test(start_paused = true)]
async fn waiting_duplicates_wake_when_the_first_ends_in_the_same_process() {
    let pay = Guard::new(store()).operation("pay").unwrap();
    let pay = pay.in_flight(InFlight::Wait(Duration::from_secs(60))).unwrap();
    let effects = Effects::default();
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let (pay, effects) = (pay.clone(), effects.clone());
            tokio::spawn(async move {
                let work = |_| async move {
                    tokio::time::sleep(Duration::from_secs(7)).await;
                    Ok::<_, Failure>(effects.happen())
                };
                pay.once(&acme(), &key("k"), &(), work).await.unwrap()
            })
        })
        .collect();
    let started = tokio::time::Instant::now();
    let mut replayed = 0;
    for caller in callers {
        let reply = caller.await.unwrap();
        assert_eq!(reply.value, 1);
        replayed += u32::from(reply.replayed);
    }
    assert_eq!((effects.count(), replayed), (1, 63));
    // In virtual time: no caller polled on, all of them woke with the end of the work.
    assert_eq!(started.elapsed(), Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn waiting_duplicates_in_another_process_poll_until_the_first_ends() {
    let store = store();
    // Two guards on one store know nothing of each other, like two processes.
    let here = Guard::new(store.clone()).operation("pay").unwrap();
    let there = Guard::new(store).operation("pay").unwrap();
    let there = there.in_flight(InFlight::Wait(Duration::from_secs(60))).unwrap();
    let effects = Effects::default();
    let (started, running) = oneshot::channel();
    let mine = effects.clone();
    let first = tokio::spawn(async move {
        let work = |_| async move {
            started.send(()).unwrap();
            // Longer than the lease: it is renewed.
            tokio::time::sleep(Duration::from_secs(45)).await;
            Ok::<_, Failure>(mine.happen())
        };
        here.once(&acme(), &key("k"), &(), work).await
    });
    running.await.unwrap();
    let asked = tokio::time::Instant::now();
    let second =
        there.once::<u32, _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await.unwrap();
    assert!(second.replayed);
    // Soon after the first has ended, and not when the time for waiting is up.
    assert!(asked.elapsed() < Duration::from_secs(50), "{:?}", asked.elapsed());
    assert_eq!(first.await.unwrap().unwrap().value, second.value);
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn waiting_is_bounded() {
    let pay = Guard::new(store()).operation("pay").unwrap();
    let pay = pay.in_flight(InFlight::Wait(Duration::from_secs(2))).unwrap();
    let (started, running) = oneshot::channel();
    let first = pay.clone();
    tokio::spawn(async move {
        let work = |_| async move {
            started.send(()).unwrap();
            std::future::pending::<Result<(), Failure>>().await
        };
        first.once(&acme(), &key("k"), &(), work).await
    });
    running.await.unwrap();
    let asked = tokio::time::Instant::now();
    let second = pay.once::<(), _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(second, Err(OnceError::Guard(GuardError::InFlight { .. }))), "{second:?}");
    assert_eq!(asked.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn final_failures_are_remembered_and_retryable_ones_are_not() {
    let pay = Guard::new(store()).operation("pay").unwrap();
    let declined = |_| async { Err::<(), _>(Failure::refused("card declined").code(402)) };
    for replay in [false, true] {
        match pay.once(&acme(), &key("declined"), &(), declined).await {
            Err(OnceError::Failed { failure, replayed }) => {
                assert_eq!(
                    (failure.message.as_str(), failure.code, replayed),
                    ("card declined", 402, replay)
                );
            }
            other => panic!("{other:?}"),
        }
    }
    let effects = Effects::default();
    for run in 1..=3 {
        let mine = effects.clone();
        let work = |_| async move {
            mine.happen();
            Err::<(), _>(Failure::not_applied("connection refused"))
        };
        let failed = pay.once(&acme(), &key("refused"), &(), work).await;
        assert!(matches!(failed, Err(OnceError::Failed { replayed: false, .. })), "{failed:?}");
        assert_eq!(effects.count(), run);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_unknown_fate_is_held_when_opaque_and_runs_again_when_keyed() {
    let guard = Guard::new(store());
    let broken = |_| async { Err::<(), Failure>(std::io::Error::other("connection reset").into()) };
    let opaque = guard.operation("opaque").unwrap();
    let first = opaque.once(&acme(), &key("k"), &(), broken).await;
    assert!(matches!(first, Err(OnceError::Failed { .. })), "{first:?}");
    let retry = opaque.once::<(), _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(retry, Err(OnceError::Guard(GuardError::Uncertain { .. }))), "{retry:?}");

    let keyed = guard.operation("keyed").unwrap().effect(Effect::Keyed).unwrap();
    keyed.once(&acme(), &key("k"), &(), broken).await.unwrap_err();
    assert_eq!(keyed.once(&acme(), &key("k"), &(), |_| async { Ok(7) }).await.unwrap().value, 7);
}

#[tokio::test(start_paused = true)]
async fn what_expired_runs_again_and_a_late_time_ordered_key_is_refused() {
    let pay = Guard::new(store()).operation("pay").unwrap().retention(Duration::from_secs(10)).unwrap();
    let effects = Effects::default();
    for run in 1..=2 {
        let mine = effects.clone();
        let work = |_| async move { Ok::<_, Failure>(mine.happen()) };
        assert_eq!(pay.once(&acme(), &key("k"), &(), work).await.unwrap().value, run);
        tokio::time::advance(Duration::from_secs(10)).await;
    }
    let ordered = pay.key_format(KeyFormat::TimeOrdered { skew_ms: 1_000 });
    // The first 48 bits say: made at 15 ms. The store's clock stands at more than 1,000,000 ms.
    let late = key("00000000-000f-7240-8000-000000000000");
    let refused = ordered.once::<(), _, _, _>(&acme(), &late, &(), |_| async { panic!("ran") }).await;
    assert!(matches!(refused, Err(OnceError::Guard(GuardError::KeyExpired))), "{refused:?}");
    let early = key("00000f00-0000-7240-8000-000000000000");
    let refused = ordered.once::<(), _, _, _>(&acme(), &early, &(), |_| async { panic!("ran") }).await;
    assert!(matches!(refused, Err(OnceError::Guard(GuardError::KeyFromFuture))), "{refused:?}");
    let plain = ordered.once::<(), _, _, _>(&acme(), &key("order-1"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(plain, Err(OnceError::Guard(GuardError::KeyNotTimeOrdered))), "{plain:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deploy_that_changes_the_recipe_replays_and_counts() {
    let guard = Guard::new(store());
    let before = guard.operation("pay").unwrap();
    before.once(&acme(), &key("k"), &1, |_| async { Ok(1) }).await.unwrap();
    let recipe = Recipe::builder().exclude_field("/sent_at").build().unwrap();
    let after = guard.operation("pay").unwrap().recipe(recipe);
    let reply =
        after.once::<i32, _, _, _>(&acme(), &key("k"), &1, |_| async { panic!("ran") }).await.unwrap();
    assert!(reply.replayed);
    assert!(guard.metrics().render().contains("idempotency_other_recipe_total{operation=\"pay\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn the_work_gets_its_attempt_and_stable_child_keys() {
    let pay = Guard::new(store()).operation("pay").unwrap();
    let mut keys = Vec::new();
    for number in 1..=2 {
        let (sender, receiver) = oneshot::channel();
        let work = |attempt: semel::Attempt| async move {
            sender.send((attempt.number, attempt.child("charge"), attempt.epoch)).unwrap();
            Err::<(), _>(Failure::not_applied("refused"))
        };
        pay.once(&acme(), &key("k"), &(), work).await.unwrap_err();
        let (attempt, child, epoch) = receiver.await.unwrap();
        assert_eq!(attempt, number);
        keys.push((child, epoch));
    }
    assert_eq!(keys[0].0, keys[1].0);
    assert!(keys[0].1 < keys[1].1);
}

#[tokio::test(start_paused = true)]
async fn an_outcome_too_large_to_keep_leaves_a_tombstone_and_never_runs_again() {
    let pay = Guard::new(store()).operation("pay").unwrap();
    let body = "x".repeat(5 << 20);
    let first = pay.once(&acme(), &key("k"), &(), |_| async move { Ok(body) }).await.unwrap();
    assert_eq!(first.value.len(), 5 << 20);
    let again = pay.once::<String, _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(again, Err(OnceError::Value { .. })), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn run_gives_bytes_and_headers_again_as_they_were() {
    let store = store();
    let pay = Guard::new(store.clone()).operation("pay").unwrap().retention(Retention::Forever).unwrap();
    let intent = pay.intent(&acme(), &key("k"));
    let print = Recipe::default().bytes(b"request");
    let first = pay.run(intent.clone(), print, |_| async { done("\u{0}body") }).await.unwrap();
    let again = pay.run(intent.clone(), print, |_| async { done("never") }).await.unwrap();
    assert_eq!((again.outcome, again.verdict, again.replayed), (first.outcome, Verdict::Completed, true));
    let record = store.get(intent.id()).await.unwrap().unwrap();
    assert_eq!((record.head.state, record.head.expires_at), (State::Completed, None));
}
