//! The reconcile loop: what is found is replayed, what is not there is released, what is unknown is held.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::guard::{CurrentRuntime, Guarded, Limits, Lookup};
use semel::intent::fingerprint::Recipe;
use semel::intent::state::{StepEvent, step};
use semel::observe::Metrics;
use semel::recover::{ReconcileLimits, Reconciler, Report};
use semel::store::faulty::{Fault, Faulty, StoreCall};
use semel::store::memory::MemoryStore;
use semel::store::{Claim, Claimed, Finish, Finished, Record, Store, Ticket};
use semel::{Effect, Found, Guard, IntentId, Outcome, Owner, Retention, State, Verdict};

use crate::guard_world::{acme, key, store};

const SETTLE: Duration = Duration::from_secs(10);

/// Claims, and leaves the claim to lapse: its owner is gone.
async fn abandon(pay: &Guarded<impl Store>, name: &str, effect: Effect) -> Ticket {
    let claim = Claim {
        intent: pay.intent(&acme(), &key(name)),
        fingerprint: Recipe::default().value(&()).unwrap(),
        owner: Owner::random(),
        effect,
        lease_ms: 1_000,
        window: semel::intent::guard_expiry::KeyWindow::ENDLESS,
    };
    match pay.guard().store().claim(claim).await.unwrap() {
        Claimed::Run(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

async fn state(pay: &Guarded<impl Store>, name: &str) -> Option<State> {
    let store = pay.guard().store();
    let now = store.now().await.unwrap();
    let record = store.get(pay.intent(&acme(), &key(name)).id()).await.unwrap();
    record.and_then(|record| record.state_at(now))
}

fn finish(body: &str) -> Finish {
    let outcome = Some(Outcome::new(201, body.to_owned()));
    Finish { verdict: Verdict::Completed, outcome, retention: Retention::DAY }
}

/// A lookup that counts how often it is asked about whom.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<String>>>);

impl Asked {
    fn answering(&self, found: impl Fn(&str) -> Found + Send + Sync + 'static) -> impl Lookup {
        let asked = self.clone();
        move |record: Record| {
            let name = record.intent.key().as_str().to_owned();
            let found = found(&name);
            asked.0.lock().unwrap().push(name);
            async move { found }
        }
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

fn pay_with(lookup: impl Lookup) -> Guarded<MemoryStore> {
    Guard::new(store()).operation("pay").unwrap().lookup(lookup, SETTLE)
}

/// Past the lease and the settle delay.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(1) + SETTLE).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_found_is_replayed_although_no_caller_came() {
    let asked = Asked::default();
    let pay = pay_with(asked.answering(|name| Found::Applied(Outcome::new(200, format!("\"{name}\"")))));
    abandon(&pay, "k", Effect::Opaque).await;
    settle().await;
    let report = Reconciler::new().watch(&pay).run_once().await;
    assert_eq!((report.asked, report.applied, report.held), (1, 1, 0), "{report:?}");
    let reply = pay.once::<String, _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
    let reply = reply.unwrap();
    assert_eq!((reply.value.as_str(), reply.replayed), ("k", true));
    let record = pay.guard().store().get(pay.intent(&acme(), &key("k")).id()).await.unwrap().unwrap();
    assert_eq!(record.head.state, State::Completed);
    assert_eq!(record.outcome, Some(Outcome::new(200, "\"k\"")));
    assert_eq!(record.decision.unwrap().by, "lookup");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_released_but_not_before_it_has_settled() {
    let asked = Asked::default();
    let pay = pay_with(asked.answering(|_| Found::NotApplied));
    let mut reconciler = Reconciler::new().watch(&pay);
    let ticket = abandon(&pay, "k", Effect::Opaque).await;
    assert_eq!(reconciler.run_once().await, Report::default(), "a live claim is left alone");
    tokio::time::sleep(SETTLE).await;
    let early = reconciler.run_once().await;
    assert_eq!((early.settling, early.asked, asked.count()), (1, 0, 0), "{early:?}");
    assert_eq!(state(&pay, "k").await, Some(State::Uncertain));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(reconciler.run_once().await.not_applied, 1);
    assert_eq!(state(&pay, "k").await, Some(State::FailedRetryable));
    // It was decided: the owner that comes back now is too late, and gets an error.
    assert_eq!(pay.guard().store().finish(ticket, finish("late")).await.unwrap(), Finished::Stale);
}

#[tokio::test(start_paused = true)]
async fn what_is_unknown_is_held_and_reported_and_looked_up_ever_less_often() {
    let asked = Asked::default();
    let pay = pay_with(asked.answering(|_| Found::Unknown));
    abandon(&pay, "k", Effect::Opaque).await;
    settle().await;
    let mut reconciler = Reconciler::new().watch(&pay);
    for second in 0..3_600 {
        let report = reconciler.run_once().await;
        assert_eq!((report.held, report.settled()), (1, 0), "{second}");
        let oldest = report.oldest_held.unwrap();
        assert_eq!(oldest.id, pay.intent(&acme(), &key("k")).id());
        assert_eq!(oldest.held_ms / 1_000, second + 10);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // 30, 60, 120, … 1,920 s, each a little less.
    assert!((7..=8).contains(&asked.count()), "{}", asked.count());
    assert_eq!(state(&pay, "k").await, Some(State::Uncertain));
    let metrics = pay.guard().metrics().render();
    assert!(metrics.contains(r#"idempotency_held{operation="pay"} 1"#), "{metrics}");
    assert!(metrics.contains(r#"idempotency_held_oldest_seconds{operation="pay"} 3609"#), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_panics_or_hangs_holds_its_intent_and_no_other() {
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let pay = pay_with(move |record: Record| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            match record.intent.key().as_str() {
                "panics" => panic!("on purpose"),
                "hangs" => std::future::pending().await,
                _ => Found::NotApplied,
            }
        }
    });
    for name in ["panics", "hangs", "a", "b", "c", "d", "e"] {
        abandon(&pay, name, Effect::Opaque).await;
    }
    settle().await;
    let report = Reconciler::new().watch(&pay).run_once().await;
    assert_eq!((report.not_applied, report.held, report.asked), (5, 2, 7), "{report:?}");
    for name in ["panics", "hangs"] {
        assert_eq!(state(&pay, name).await, Some(State::Uncertain), "{name}");
    }
}

/// A lookup that answers after the owner has come back: its lie must change nothing.
async fn late_lie(pay: Guarded<MemoryStore>, lie: Found) -> (Report, Option<Outcome>) {
    let ticket_seen = Arc::new(Mutex::new(None::<Ticket>));
    let (store, owner) = (pay.guard().store().clone(), Arc::clone(&ticket_seen));
    let pay = pay.lookup(
        move |_| {
            let (store, ticket, lie) = (store.clone(), owner.lock().unwrap().unwrap(), lie.clone());
            async move {
                assert_eq!(store.finish(ticket, finish("true")).await.unwrap(), Finished::Recorded);
                lie
            }
        },
        SETTLE,
    );
    *ticket_seen.lock().unwrap() = Some(abandon(&pay, "k", Effect::Opaque).await);
    settle().await;
    let report = Reconciler::new().watch(&pay).run_once().await;
    let record = pay.guard().store().get(pay.intent(&acme(), &key("k")).id()).await.unwrap();
    (report, record.and_then(|record| record.outcome))
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_lies_about_a_returned_owner_is_not_believed() {
    for lie in [Found::NotApplied, Found::Applied(Outcome::new(200, "a lie"))] {
        let pay = Guard::new(store()).operation("pay").unwrap();
        let (report, outcome) = late_lie(pay, lie.clone()).await;
        assert_eq!((report.overtaken, report.settled()), (1, 0), "{lie:?}");
        assert_eq!(outcome, Some(Outcome::new(201, "true")), "{lie:?}");
    }
}

/// The same with a claimant in between: the record has a new owner, whose work runs.
async fn lie_over_a_new_claim(store: MemoryStore) -> Option<State> {
    let pay = Guard::new(store.clone()).operation("pay").unwrap();
    let first = Arc::new(Mutex::new(None::<Ticket>));
    let (inner, ticket, again) = (store, Arc::clone(&first), pay.clone());
    let pay = pay.lookup(
        move |_| {
            let (store, ticket, again) = (inner.clone(), ticket.lock().unwrap().unwrap(), again.clone());
            async move {
                store.finish(ticket, Finish::release(Retention::DAY)).await.unwrap();
                // Claimed anew, and lapsed at once: only the epoch tells it from the one that was looked up.
                abandon(&again, "k", Effect::Opaque).await;
                tokio::time::sleep(Duration::from_secs(2)).await;
                Found::NotApplied
            }
        },
        SETTLE,
    );
    *first.lock().unwrap() = Some(abandon(&pay, "k", Effect::Opaque).await);
    settle().await;
    Reconciler::new().watch(&pay).run_once().await;
    state(&pay, "k").await
}

#[tokio::test(start_paused = true)]
async fn an_answer_about_an_older_epoch_decides_nothing() {
    assert_eq!(lie_over_a_new_claim(store()).await, Some(State::Uncertain));
    // The same against a store that does not compare epochs: this test would notice.
    let careless = store().deciding_with(|head, event, now| match (head, *event) {
        (Some(it), StepEvent::Decide { ruling, retention, fresh, .. }) => {
            step(head, &StepEvent::Decide { seen: it.epoch, ruling, retention, fresh }, now)
        }
        _ => step(head, event, now),
    });
    assert_eq!(lie_over_a_new_claim(careless).await, Some(State::FailedRetryable));
}

#[tokio::test(start_paused = true)]
async fn abandoned_claims_of_a_protected_effect_are_looked_up_too() {
    let asked = Asked::default();
    let pay = pay_with(asked.answering(|_| Found::Applied(Outcome::new(200, "1"))));
    let pay = pay.effect(Effect::Keyed).unwrap();
    abandon(&pay, "gone", Effect::Keyed).await;
    settle().await;
    let live = Claim {
        intent: pay.intent(&acme(), &key("live")),
        fingerprint: Recipe::default().bytes(b""),
        owner: Owner::random(),
        effect: Effect::Keyed,
        lease_ms: 60_000,
        window: semel::intent::guard_expiry::KeyWindow::ENDLESS,
    };
    assert!(matches!(pay.guard().store().claim(live).await.unwrap(), Claimed::Run(_)));
    let report = Reconciler::new().watch(&pay).run_once().await;
    assert_eq!((report.applied, report.asked), (1, 1), "{report:?}");
    assert_eq!(state(&pay, "gone").await, Some(State::Completed));
    assert_eq!(state(&pay, "live").await, Some(State::InProgress));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_lives_in_this_process_is_left_alone() {
    let down = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let script = Arc::clone(&down);
    let faulty = Faulty::new(store(), move |call| {
        if call == StoreCall::Renew && script.load(Ordering::SeqCst) { Fault::Refused } else { Fault::None }
    });
    let asked = Asked::default();
    let pay = Guard::new(faulty).operation("pay").unwrap();
    let first = pay.clone();
    let first = tokio::spawn(async move {
        let work = |_| async {
            tokio::time::sleep(Duration::from_secs(120)).await;
            Ok::<_, semel::Failure>(1)
        };
        first.once(&acme(), &key("k"), &(), work).await
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    down.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(state(&pay, "k").await, Some(State::Uncertain));
    // Even a lookup that may be believed at once is not asked.
    let hasty = pay.clone().lookup(asked.answering(|_| Found::NotApplied), Duration::ZERO);
    let report = Reconciler::new().watch(&hasty).run_once().await;
    assert_eq!((asked.count(), report), (0, Report::default()));
    assert!(first.await.unwrap().unwrap().stored);
}

#[tokio::test(start_paused = true)]
async fn a_run_keeps_its_limits_and_the_next_goes_on() {
    let asked = Asked::default();
    let pay = pay_with(asked.answering(|name| {
        // The newest, which come first on every page, never get settled.
        if name.starts_with("new") { Found::Unknown } else { Found::NotApplied }
    }));
    for n in 0..10 {
        abandon(&pay, &format!("old-{n}"), Effect::Opaque).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for n in 0..10 {
        abandon(&pay, &format!("new-{n}"), Effect::Opaque).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    settle().await;
    let mut limits = ReconcileLimits::default();
    (limits.page_records, limits.run_lookups_max, limits.run_records_max) = (3, 4, 100);
    let mut reconciler = Reconciler::new().watch(&pay).limits(limits);
    let (mut not_applied, mut runs) = (0, 0);
    while not_applied < 10 {
        let report = reconciler.run_once().await;
        assert!(report.asked <= 4, "{report:?}");
        not_applied += report.not_applied;
        runs += 1;
        assert!(runs < 10, "the old ones are starved: {report:?}");
    }
    assert_eq!(reconciler.run_once().await.held, 10);
    assert_eq!(asked.count(), 20);

    // Of what may be looked at, not more is looked at.
    (limits.page_records, limits.run_records_max) = (3, 5);
    let mut reconciler = Reconciler::new().watch(&pay).limits(limits);
    let report = reconciler.run_once().await;
    assert!(report.held <= 5 && report.more, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn an_operation_without_a_lookup_is_counted_and_left() {
    let pay = Guard::new(store()).operation("pay").unwrap();
    abandon(&pay, "k", Effect::Opaque).await;
    settle().await;
    let report = Reconciler::new().watch(&pay).run_once().await;
    assert_eq!((report.held, report.asked), (1, 0));
    assert_eq!(state(&pay, "k").await, Some(State::Uncertain));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_delays_and_changes_nothing() {
    let inner = store();
    let failing = Arc::new(Mutex::new(None::<StoreCall>));
    let script = Arc::clone(&failing);
    let faulty =
        Faulty::new(
            inner,
            move |call| {
                if *script.lock().unwrap() == Some(call) { Fault::Refused } else { Fault::None }
            },
        );
    let asked = Asked::default();
    let mut limits = Limits::default();
    limits.store_timeout = Duration::from_secs(1);
    let guard = Guard::with(faulty, limits, semel::observe::Metrics::new(), semel::guard::CurrentRuntime);
    let pay = guard.operation("pay").unwrap().lookup(asked.answering(|_| Found::NotApplied), SETTLE);
    abandon(&pay, "k", Effect::Opaque).await;
    settle().await;
    let mut reconciler = Reconciler::new().watch(&pay);
    for call in [StoreCall::List, StoreCall::Get, StoreCall::Decide] {
        *failing.lock().unwrap() = Some(call);
        let report = reconciler.run_once().await;
        assert_eq!((report.store_failures, report.settled()), (1, 0), "{call:?}");
        assert_eq!(state_unfailing(&pay, &failing).await, Some(State::Uncertain), "{call:?}");
    }
    // No pause for what was not the intent's fault.
    assert_eq!(reconciler.run_once().await.not_applied, 1);
}

async fn state_unfailing(pay: &Guarded<impl Store>, failing: &Mutex<Option<StoreCall>>) -> Option<State> {
    *failing.lock().unwrap() = None;
    state(pay, "k").await
}

#[tokio::test(start_paused = true)]
async fn the_loop_does_it_by_itself() {
    let asked = Asked::default();
    let pay = pay_with(asked.answering(|_| Found::Applied(Outcome::new(200, "1"))));
    let running = tokio::spawn(Reconciler::new().watch(&pay).run());
    abandon(&pay, "k", Effect::Opaque).await;
    // A lease of 1 s, 10 s to settle, and a look every 5 to 15 s.
    tokio::time::sleep(Duration::from_secs(27)).await;
    assert_eq!(state(&pay, "k").await, Some(State::Completed));
    running.abort();
}

/// Two loops that look at the same intents at once: each is decided once.
async fn two_loops<S: Store>(stores: [S; 2], intents: usize) -> (Vec<IntentId>, usize) {
    let asked = Asked::default();
    let decided = |name: &str| {
        if name.ends_with('3') { Found::Applied(Outcome::new(200, "1")) } else { Found::NotApplied }
    };
    let guarded = stores.map(|store| {
        // What a busy disk holds up is not to be taken for a store that is away.
        let mut limits = Limits::default();
        (limits.store_timeout, limits.finish_wait) = (Duration::from_secs(60), Duration::from_secs(60));
        let guard = Guard::with(store, limits, Metrics::new(), CurrentRuntime);
        let pay = guard.operation("pay").unwrap();
        pay.lookup(asked.answering(decided), Duration::from_millis(1))
    });
    let mut ids = Vec::new();
    for n in 0..intents {
        let name = format!("k-{n}");
        abandon(&guarded[0], &name, Effect::Opaque).await;
        ids.push(guarded[0].intent(&acme(), &key(&name)).id());
    }
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let mut limits = ReconcileLimits::default();
    (limits.page_records, limits.run_lookups_max) = (20, 1_000);
    let [one, two] = guarded.each_ref().map(|pay| Reconciler::new().watch(pay).limits(limits));
    let (mut one, mut two) = (one, two);
    let (first, second) = tokio::join!(one.run_once(), two.run_once());
    let settled = (first.settled() + second.settled()) as usize;
    assert_eq!(settled, intents, "{first:?} {second:?}");
    (ids, asked.count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_loops_at_once_do_no_harm() {
    let store = MemoryStore::new();
    let (ids, asked) = two_loops([store.clone(), store.clone()], 100).await;
    assert!(asked < 200, "every lookup was asked twice");
    for id in ids {
        let record = store.get(id).await.unwrap().unwrap();
        assert!(matches!(record.head.state, State::Completed | State::FailedRetryable));
        // One decision: the claim's epoch and one more.
        assert!(record.decision.is_some() && record.attempts == 1);
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_on_one_file_do_no_harm() {
    use crate::sqlite_support::open_among_others;
    let place = crate::sqlite_support::place();
    let stores = [open_among_others(&place.path).await, open_among_others(&place.path).await];
    let (ids, _) = two_loops(stores, 60).await;
    let store = open_among_others(&place.path).await;
    for id in ids {
        let record = store.get(id).await.unwrap().unwrap();
        assert!(matches!(record.head.state, State::Completed | State::FailedRetryable));
    }
}
