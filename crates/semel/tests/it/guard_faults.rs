//! Callers that leave, work that panics or stalls, stores that fail: what the guard makes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use semel::store::faulty::{Fault, Faulty, StoreCall};
use semel::store::{Filter, Store};
use semel::{Effect, Failure, Found, Guard, GuardError, OnceError, Outcome, State, StoreDown};
use tokio::sync::oneshot;

use crate::guard_world::{Effects, acme, key, store};

/// Waits, in virtual time and bounded, until the intent under `k` has this state.
async fn until_state(guarded: &semel::Guarded<impl Store>, wanted: Option<State>) {
    let store = guarded.guard().store();
    let id = guarded.intent(&acme(), &key("k")).id();
    for _ in 0..1_000 {
        let now = store.now().await;
        let record = store.get(id).await;
        if let (Ok(now), Ok(record)) = (now, record)
            && record.and_then(|record| record.state_at(now)) == wanted
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("never became {wanted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_cancels_nothing() {
    let pay = Guard::new(store()).operation("pay").unwrap();
    let effects = Effects::default();
    let (started, running) = oneshot::channel();
    let mine = effects.clone();
    let caller = tokio::spawn({
        let pay = pay.clone();
        async move {
            let work = |_| async move {
                started.send(()).unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, Failure>(mine.happen())
            };
            pay.once(&acme(), &key("k"), &(), work).await
        }
    });
    running.await.unwrap();
    caller.abort();
    until_state(&pay, Some(State::Completed)).await;
    let again = pay.once::<u32, _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await.unwrap();
    assert_eq!((again.value, effects.count()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_during_the_claim_leaves_no_claim_behind() {
    // The claim is carried out, its answer never arrives, the caller goes.
    let hung = Arc::new(AtomicBool::new(false));
    let script = Arc::clone(&hung);
    let faulty = Faulty::new(store(), move |call| match call {
        StoreCall::Claim if !script.swap(true, Ordering::SeqCst) => Fault::AnswerHangs,
        _ => Fault::None,
    });
    let pay = Guard::new(faulty).operation("pay").unwrap();
    let (acme, k) = (acme(), key("k"));
    let call = pay.once::<(), _, _, _>(&acme, &k, &(), |_| async { panic!("ran") });
    let left = tokio::time::timeout(Duration::from_millis(10), call).await;
    assert!(left.is_err());
    until_state(&pay, Some(State::FailedRetryable)).await;
    assert_eq!(pay.once(&acme, &k, &(), |_| async { Ok(1) }).await.unwrap().value, 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_leaves_an_opaque_effect_uncertain_and_a_keyed_one_retryable() {
    let guard = Guard::new(store());
    let work = |_| async { panic!("in the middle of it") };
    let opaque = guard.operation("opaque").unwrap();
    let first = opaque.once::<(), _, _, _>(&acme(), &key("k"), &(), work).await;
    assert!(matches!(first, Err(OnceError::Guard(GuardError::Panicked { .. }))), "{first:?}");
    until_state(&opaque, Some(State::Uncertain)).await;
    let keyed = guard.operation("keyed").unwrap().effect(Effect::Keyed).unwrap();
    keyed.once::<(), _, _, _>(&acme(), &key("k"), &(), work).await.unwrap_err();
    until_state(&keyed, Some(State::FailedRetryable)).await;
}

#[tokio::test(start_paused = true)]
async fn work_beyond_its_time_is_dropped_and_uncertain() {
    let pay = Guard::new(store()).operation("pay").unwrap().timeout(Duration::from_secs(3));
    let never = |_| std::future::pending::<Result<(), Failure>>();
    let first = pay.once(&acme(), &key("k"), &(), never).await;
    assert!(matches!(first, Err(OnceError::Guard(GuardError::TimedOut { .. }))), "{first:?}");
    until_state(&pay, Some(State::Uncertain)).await;
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_while_the_work_goes_on() {
    let pay = Guard::new(store()).operation("pay").unwrap().lease(Duration::from_millis(300)).unwrap();
    let work = |_| async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok::<_, Failure>(1)
    };
    let first = tokio::spawn({
        let pay = pay.clone();
        async move { pay.once(&acme(), &key("k"), &(), work).await }
    });
    for _ in 0..90 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let duplicate = pay.once::<i32, _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
        assert!(matches!(duplicate, Err(OnceError::Guard(GuardError::InFlight { .. }))), "{duplicate:?}");
    }
    assert!(first.await.unwrap().unwrap().stored);
}

#[tokio::test(start_paused = true)]
async fn a_finish_that_fails_gives_the_true_answer_and_goes_on_being_tried() {
    let failing = Arc::new(AtomicU32::new(5));
    let script = Arc::clone(&failing);
    let left = move || script.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
    let faulty = Faulty::new(store(), move |call| match call {
        StoreCall::Finish if left() => Fault::RequestLost,
        _ => Fault::None,
    });
    let pay = Guard::new(faulty).operation("pay").unwrap();
    let first = pay.once(&acme(), &key("k"), &(), |_| async { Ok(1) }).await.unwrap();
    assert_eq!((first.value, first.stored, first.replayed), (1, false, false));
    let drained = pay.guard().drain(Duration::from_secs(60)).await;
    assert!(drained.is_clean(), "{drained:?}");
    until_state(&pay, Some(State::Completed)).await;
    assert_eq!(failing.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_finish_whose_answer_is_lost_is_recorded_once() {
    let lost = Arc::new(AtomicBool::new(false));
    let script = Arc::clone(&lost);
    let faulty = Faulty::new(store(), move |call| match call {
        StoreCall::Finish if !script.swap(true, Ordering::SeqCst) => Fault::AnswerLost,
        _ => Fault::None,
    });
    let pay = Guard::new(faulty).operation("pay").unwrap();
    assert!(!pay.once(&acme(), &key("k"), &(), |_| async { Ok(1) }).await.unwrap().stored);
    assert!(pay.guard().drain(Duration::from_secs(60)).await.is_clean());
    assert!(pay.guard().metrics().render().contains(r#"finalize_total{operation="pay",status="already"} 1"#));
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_is_lost_is_settled_by_asking_again() {
    let lost = Arc::new(AtomicBool::new(false));
    let script = Arc::clone(&lost);
    let faulty = Faulty::new(store(), move |call| match call {
        StoreCall::Claim if !script.swap(true, Ordering::SeqCst) => Fault::AnswerLost,
        _ => Fault::None,
    });
    let pay = Guard::new(faulty).operation("pay").unwrap();
    let reply = pay.once(&acme(), &key("k"), &(), |a| async move { Ok(a.number) }).await.unwrap();
    assert_eq!((reply.value, reply.replayed), (1, false));
}

#[tokio::test(start_paused = true)]
async fn a_dead_store_runs_nothing_when_closed_and_runs_unguarded_when_open() {
    let down = Arc::new(AtomicBool::new(true));
    let script = Arc::clone(&down);
    let inner = store();
    let faulty =
        Faulty::new(inner, move |_| if script.load(Ordering::SeqCst) { Fault::Refused } else { Fault::None });
    let guard = Guard::new(faulty);
    let closed = guard.operation("closed").unwrap();
    let refused = closed.once::<(), _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(refused, Err(OnceError::Guard(GuardError::StoreUnavailable(_)))), "{refused:?}");

    let open = guard.operation("open").unwrap().store_down(StoreDown::Open);
    let reply = open.once(&acme(), &key("k"), &(), |_| async { Ok(1) }).await.unwrap();
    assert_eq!((reply.guarded, reply.stored), (false, false));
    assert!(guard.metrics().render().contains(r#"idempotency_unguarded_total{operation="open"} 1"#));
    // Once the store is back, what ran unguarded is known to it.
    down.store(false, Ordering::SeqCst);
    until_state(&open, Some(State::Completed)).await;
    let again =
        open.once::<i32, _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await.unwrap();
    assert!(again.replayed);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_store_is_an_outage_not_a_hang() {
    let pay = Guard::new(Faulty::new(store(), |_| Fault::Hangs)).operation("pay").unwrap();
    let refused = pay.once::<(), _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(refused, Err(OnceError::Guard(GuardError::StoreUnavailable(_)))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn an_uncertain_intent_is_looked_up_after_it_settled_and_only_then() {
    for (found, runs) in [(Some(true), false), (Some(false), true), (None, false)] {
        let asked = Effects::default();
        let asking = asked.clone();
        let lookup = move |_record| {
            asking.happen();
            async move {
                match found {
                    Some(true) => Found::Applied(Outcome::new(200, "41")),
                    Some(false) => Found::NotApplied,
                    None => Found::Unknown,
                }
            }
        };
        let pay = Guard::new(store()).operation("pay").unwrap().lookup(lookup, Duration::from_secs(10));
        let broken = |_| async { Err::<i32, _>(Failure::unknown("reset")) };
        pay.once(&acme(), &key("k"), &(), broken).await.unwrap_err();

        let early = pay.once::<i32, _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
        match early {
            Err(OnceError::Guard(GuardError::Uncertain { settles_in, .. })) => {
                assert_eq!(settles_in, Some(Duration::from_secs(10)));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(asked.count(), 0);
        tokio::time::advance(Duration::from_secs(10)).await;
        let later = pay.once(&acme(), &key("k"), &(), |_| async { Ok(42) }).await;
        assert_eq!(asked.count(), 1);
        match (found, later) {
            (Some(_), Ok(reply)) => {
                assert_eq!((reply.value, reply.replayed), if runs { (42, false) } else { (41, true) })
            }
            (None, Err(OnceError::Guard(GuardError::Uncertain { settles_in: None, .. }))) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_keyed_owner_that_was_taken_over_gives_everybody_the_same_answer() {
    let store = store();
    // The first owner's renewals hang: like a process that stalls.
    let stalled =
        Faulty::new(store.clone(), |call| if call == StoreCall::Renew { Fault::Hangs } else { Fault::None });
    let first = Guard::new(stalled).operation("pay").unwrap().effect(Effect::Keyed).unwrap();
    let second = Guard::new(store).operation("pay").unwrap().effect(Effect::Keyed).unwrap();
    let slow = tokio::spawn(async move {
        let work = |_| async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            Ok::<_, Failure>("first".to_owned())
        };
        first.once(&acme(), &key("k"), &(), work).await
    });
    tokio::time::sleep(Duration::from_secs(31)).await;
    let quick = second.once(&acme(), &key("k"), &(), |_| async { Ok("second".to_owned()) }).await.unwrap();
    assert_eq!((quick.value.as_str(), quick.replayed), ("second", false));
    let slow = slow.await.unwrap().unwrap();
    assert_eq!((slow.value.as_str(), slow.replayed), ("second", true));
}

#[tokio::test(start_paused = true)]
async fn more_calls_than_allowed_are_refused_and_a_drain_lets_the_others_end() {
    let mut limits = semel::guard::Limits::default();
    limits.calls_max = 3;
    let guard = Guard::with(store(), limits, semel::observe::Metrics::new(), semel::guard::CurrentRuntime);
    let pay = guard.operation("pay").unwrap();
    let running: Vec<_> = (0..3)
        .map(|n| {
            let pay = pay.clone();
            tokio::spawn(async move {
                let work = |_| async {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                    Ok::<_, Failure>(1)
                };
                pay.once(&acme(), &key(&format!("k{n}")), &(), work).await
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let busy = pay.once::<i32, _, _, _>(&acme(), &key("one more"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(busy, Err(OnceError::Guard(GuardError::Busy { calls_max: 3 }))), "{busy:?}");

    let short = guard.drain(Duration::from_secs(1)).await;
    assert_eq!((short.calls, short.is_clean()), (3, false));
    assert!(guard.drain(Duration::from_secs(60)).await.is_clean());
    let late = pay.once::<i32, _, _, _>(&acme(), &key("late"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(late, Err(OnceError::Guard(GuardError::Draining))), "{late:?}");
    for call in running {
        assert!(call.await.unwrap().unwrap().stored);
    }
    let filter = Filter { states: vec![State::Uncertain, State::InProgress], limit: 10, ..Filter::default() };
    assert!(guard.store().list(filter).await.unwrap().records.is_empty());
}
