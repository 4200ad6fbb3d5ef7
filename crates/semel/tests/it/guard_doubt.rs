//! Doubt, outages and leases that end too early: cases in which a guard could run twice or forget.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use semel::guard::{Guarded, Limits, Spawn, WAIT_MAX};
use semel::intent::fingerprint::Recipe;
use semel::intent::identity::IntentId;
use semel::observe::Metrics;
use semel::store::faulty::{Fault, Faulty, StoreCall};
use semel::store::memory::MemoryStore;
use semel::store::{
    Capabilities, Claim, Claimed, Decide, Decided, Existing, Filter, Finish, Finished, Page, Record, Renewed,
    Store, StoreError, Ticket,
};
use semel::{
    Effect, Execution, Failure, Found, Guard, GuardError, InFlight, Key, KeyFormat, OnceError, Outcome,
    Owner, State, StoreDown, StoreTime,
};

use tokio::sync::Notify;

use crate::guard_world::{Effects, acme, key, store};

async fn state(guarded: &Guarded<impl Store>, store: &MemoryStore) -> Option<State> {
    let id = guarded.intent(&acme(), &key("k")).id();
    let now = store.now().await.unwrap();
    store.get(id).await.unwrap().and_then(|record| record.state_at(now))
}

/// The first claim is carried out unseen; what the others get, `then` says.
fn first_claim_unseen(
    inner: &MemoryStore,
    then: impl Fn(u32) -> Fault + Send + Sync + 'static,
) -> Faulty<MemoryStore> {
    let claims = AtomicU32::new(0);
    Faulty::new(inner.clone(), move |call| match call {
        StoreCall::Claim => match claims.fetch_add(1, Ordering::SeqCst) {
            0 => Fault::AnswerLost,
            nth => then(nth),
        },
        _ => Fault::None,
    })
}

#[tokio::test(start_paused = true)]
async fn one_try_in_doubt_is_given_back_although_the_later_ones_were_refused() {
    let inner = store();
    let faulty = first_claim_unseen(&inner, |nth| if nth <= 2 { Fault::Refused } else { Fault::None });
    let pay = Guard::new(faulty).operation("pay").unwrap();
    let refused = pay.once::<(), _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(refused, Err(OnceError::Guard(GuardError::StoreUnavailable(_)))), "{refused:?}");
    assert!(pay.guard().drain(Duration::from_secs(60)).await.is_clean());
    assert_eq!(state(&pay, &inner).await, Some(State::FailedRetryable));
}

#[tokio::test(start_paused = true)]
async fn an_unguarded_run_is_recorded_under_its_own_claim_that_lapsed_meanwhile() {
    let inner = store();
    let down = Arc::new(AtomicBool::new(true));
    let script = Arc::clone(&down);
    let faulty =
        first_claim_unseen(
            &inner,
            move |_| {
                if script.load(Ordering::SeqCst) { Fault::Refused } else { Fault::None }
            },
        );
    let pay = Guard::new(faulty).operation("pay").unwrap().store_down(StoreDown::Open);
    let reply = pay.once(&acme(), &key("k"), &(), |_| async { Ok(1) }).await.unwrap();
    assert!(!reply.guarded);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(state(&pay, &inner).await, Some(State::Uncertain));
    down.store(false, Ordering::SeqCst);
    assert!(pay.guard().drain(Duration::from_secs(600)).await.is_clean());
    assert_eq!(state(&pay, &inner).await, Some(State::Completed));
}

#[tokio::test(start_paused = true)]
async fn an_open_policy_does_not_run_what_it_has_seen_in_flight() {
    let (inner, effects) = (store(), Effects::default());
    let here = Guard::new(inner.clone()).operation("pay").unwrap();
    let mine = effects.clone();
    let first = tokio::spawn(async move {
        let work = |_| async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok::<_, Failure>(mine.happen())
        };
        here.once(&acme(), &key("k"), &(), work).await
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let claims = AtomicU32::new(0);
    let faulty = Faulty::new(inner, move |call| match call {
        StoreCall::Claim if claims.fetch_add(1, Ordering::SeqCst) > 0 => Fault::Refused,
        _ => Fault::None,
    });
    let there = Guard::new(faulty).operation("pay").unwrap().store_down(StoreDown::Open);
    let there = there.in_flight(InFlight::Wait(Duration::from_secs(30))).unwrap();
    let second = there.once::<u32, _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(second, Err(OnceError::Guard(GuardError::InFlight { .. }))), "{second:?}");
    first.await.unwrap().unwrap();
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_open_policy_does_not_run_because_the_store_is_full() {
    let pay = Guard::new(store().records_max(1)).operation("pay").unwrap().store_down(StoreDown::Open);
    pay.once(&acme(), &key("other"), &(), |_| async { Ok(0) }).await.unwrap();
    let full = pay.once::<i32, _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(full, Err(OnceError::Guard(GuardError::StoreUnavailable(_)))), "{full:?}");
}

#[tokio::test(start_paused = true)]
async fn an_open_policy_runs_in_an_outage_also_with_time_ordered_keys() {
    let pay = Guard::new(Faulty::new(store(), |_| Fault::Refused)).operation("pay").unwrap();
    let pay = pay.store_down(StoreDown::Open).key_format(KeyFormat::TimeOrdered { skew_ms: 1_000 });
    assert!(!pay.once(&acme(), &Key::random(), &(), |_| async { Ok(1) }).await.unwrap().guarded);
}

#[tokio::test(start_paused = true)]
async fn an_outcome_with_too_many_headers_is_recorded_without_them_and_never_run_again() {
    for effect in [Effect::Opaque, Effect::Keyed] {
        let (inner, effects) = (store(), Effects::default());
        let pay = Guard::new(inner.clone()).operation("pay").unwrap().effect(effect).unwrap();
        for replayed in [false, true] {
            let mine = effects.clone();
            let work = |_| async move {
                mine.happen();
                let outcome = (0..257).fold(Outcome::new(200, "x"), |it, n| it.header(format!("h{n}"), "v"));
                Execution::completed(outcome)
            };
            let print = Recipe::default().bytes(b"");
            let answer = pay.run(pay.intent(&acme(), &key("k")), print, work).await.unwrap();
            assert_eq!((answer.stored, answer.replayed), (true, replayed), "{effect}");
            tokio::time::sleep(Duration::from_secs(31)).await;
        }
        assert_eq!(effects.count(), 1, "{effect}");
    }
}

/// A payment whose renewals fail from the first to the 36th second, and which takes two minutes.
fn slow_through_an_outage(
    inner: &MemoryStore,
    effects: &Effects,
    settle: Duration,
) -> (Guarded<Faulty<MemoryStore>>, Arc<AtomicBool>) {
    let down = Arc::new(AtomicBool::new(false));
    let script = Arc::clone(&down);
    let faulty =
        Faulty::new(
            inner.clone(),
            move |_| {
                if script.load(Ordering::SeqCst) { Fault::Refused } else { Fault::None }
            },
        );
    let book = effects.clone();
    let lookup = move |_| {
        let happened = book.count() > 0;
        async move { if happened { Found::Applied(Outcome::new(200, "1")) } else { Found::NotApplied } }
    };
    (Guard::new(faulty).operation("pay").unwrap().lookup(lookup, settle), down)
}

async fn outage(down: &AtomicBool) {
    tokio::time::sleep(Duration::from_secs(1)).await;
    down.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(35)).await;
    down.store(false, Ordering::SeqCst);
}

#[tokio::test(start_paused = true)]
async fn a_lookup_does_not_decide_over_an_owner_that_lives_in_this_process() {
    let (start, ahead_ms) = (tokio::time::Instant::now(), Arc::new(AtomicU64::new(0)));
    let jump = Arc::clone(&ahead_ms);
    let clock =
        move || StoreTime(1_000_000 + start.elapsed().as_millis() as u64 + jump.load(Ordering::SeqCst));
    let lookup = |_| async { Found::NotApplied };
    let guard = Guard::new(MemoryStore::with_clock(clock));
    let pay = guard.operation("pay").unwrap().lookup(lookup, Duration::from_secs(10));
    let (effects, first) = (Effects::default(), pay.clone());
    let mine = effects.clone();
    let first = tokio::spawn(async move {
        let work = |_| async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok::<_, Failure>(mine.happen())
        };
        first.once(&acme(), &key("k"), &(), work).await
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Its lease and the settle delay are over by the store's clock, and it has not noticed yet.
    ahead_ms.store(60_000, Ordering::SeqCst);
    let second = pay.once::<u32, _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(second, Err(OnceError::Guard(GuardError::InFlight { .. }))), "{second:?}");
    assert!(first.await.unwrap().unwrap().stored);
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn opaque_work_that_lost_its_claim_is_dropped_where_a_lookup_may_say_not_applied() {
    let (inner, effects) = (store(), Effects::default());
    let (pay, down) = slow_through_an_outage(&inner, &effects, Duration::from_secs(10));
    // Another process: it knows nothing of the owner here.
    let (elsewhere, _) = slow_through_an_outage(&inner, &effects, Duration::from_secs(10));
    let mine = effects.clone();
    let first = tokio::spawn(async move {
        let work = |_| async move {
            tokio::time::sleep(Duration::from_secs(120)).await;
            Ok::<_, Failure>(mine.happen())
        };
        pay.once(&acme(), &key("k"), &(), work).await
    });
    outage(&down).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let mine = effects.clone();
    let second = elsewhere.once(&acme(), &key("k"), &(), |_| async move { Ok(mine.happen()) }).await;
    let first = first.await.unwrap();
    assert!(matches!(first, Err(OnceError::Guard(GuardError::ClaimLost { .. }))), "{first:?}");
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(effects.count(), 1, "{second:?}");
}

/// Renewals hang from the first second on. The claim is lost when the lease ends and not a renewal's patience later,
/// and the work is dropped then: the settle delay belongs to what it has sent.
#[tokio::test(start_paused = true)]
async fn a_claim_is_lost_when_its_lease_ends_also_while_a_renewal_hangs() {
    let faulty =
        Faulty::new(store(), |call| if call == StoreCall::Renew { Fault::Hangs } else { Fault::None });
    let lookup = |_| async { Found::Unknown };
    let begun = tokio::time::Instant::now();
    let pay = Guard::new(faulty).operation("pay").unwrap().lookup(lookup, Duration::from_secs(10));
    let forever = |_| async {
        std::future::pending::<()>().await;
        Ok::<_, Failure>(1)
    };
    let lost = pay.once(&acme(), &key("k"), &(), forever).await;
    assert!(matches!(lost, Err(OnceError::Guard(GuardError::ClaimLost { .. }))), "{lost:?}");
    assert_eq!(begun.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn keyed_work_that_lost_its_claim_goes_on() {
    let faulty =
        Faulty::new(store(), |call| if call == StoreCall::Renew { Fault::Refused } else { Fault::None });
    let lookup = |_| async { Found::NotApplied };
    let pay = Guard::new(faulty).operation("pay").unwrap().lookup(lookup, Duration::from_secs(10));
    let pay = pay.effect(Effect::Keyed).unwrap();
    let slow = |_| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok::<_, Failure>(1)
    };
    assert!(pay.once(&acme(), &key("k"), &(), slow).await.unwrap().stored);
}

#[tokio::test(start_paused = true)]
async fn a_keyed_failure_of_unknown_fate_is_not_reported_as_not_applied() {
    let pay = Guard::new(store()).operation("pay").unwrap().effect(Effect::Keyed).unwrap();
    let broken = |_| async { Err::<(), _>(Failure::unknown("connection reset")) };
    match pay.once(&acme(), &key("k"), &(), broken).await {
        Err(OnceError::Failed { failure, .. }) => assert_eq!(failure, Failure::unknown("connection reset")),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_counts_from_the_first_ask_for_the_claim() {
    let claims = AtomicU32::new(0);
    let faulty = Faulty::new(store(), move |call| match call {
        StoreCall::Claim if claims.fetch_add(1, Ordering::SeqCst) == 0 => Fault::AnswerHangs,
        _ => Fault::None,
    });
    // The answer is waited for for five of these seven seconds.
    let pay = Guard::new(faulty).operation("pay").unwrap().lease(Duration::from_secs(7)).unwrap();
    let work = |_| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok::<_, Failure>(1)
    };
    pay.once(&acme(), &key("k"), &(), work).await.unwrap();
    assert!(pay.guard().metrics().render().contains(r#"idempotency_lease_lost_total{operation="pay"} 0"#));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_lapsed_before_its_answer_came_is_given_back_and_runs() {
    let claims = AtomicU32::new(0);
    let faulty = Faulty::new(store(), move |call| match call {
        StoreCall::Claim if claims.fetch_add(1, Ordering::SeqCst) == 0 => Fault::AnswerHangs,
        _ => Fault::None,
    });
    // The answer is waited for for longer than this lease lasts.
    let pay = Guard::new(faulty).operation("pay").unwrap().lease(Duration::from_secs(2)).unwrap();
    let reply = pay.once(&acme(), &key("k"), &(), |_| async { Ok(1) }).await.unwrap();
    assert_eq!((reply.value, reply.replayed, reply.stored), (1, false, true));
}

#[tokio::test(start_paused = true)]
async fn one_renewal_that_hangs_does_not_lose_the_lease() {
    let renewals = AtomicU32::new(0);
    let faulty = Faulty::new(store(), move |call| match call {
        StoreCall::Renew if renewals.fetch_add(1, Ordering::SeqCst) == 0 => Fault::Hangs,
        _ => Fault::None,
    });
    let pay = Guard::new(faulty).operation("pay").unwrap().lease(Duration::from_secs(3)).unwrap();
    let work = |_| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok::<_, Failure>(1)
    };
    pay.once(&acme(), &key("k"), &(), work).await.unwrap();
    assert!(pay.guard().metrics().render().contains(r#"idempotency_lease_lost_total{operation="pay"} 0"#));
}

/// Beyond its lease the claim is counted as lost: a dashboard shows it although the caller got its answer.
#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_is_counted_as_lost() {
    let faulty = Faulty::new(store(), |call| match call {
        StoreCall::Renew => Fault::Hangs,
        _ => Fault::None,
    });
    let pay = Guard::new(faulty).operation("pay").unwrap().lease(Duration::from_secs(3)).unwrap();
    let work = |_| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok::<_, Failure>(1)
    };
    let _ = pay.once(&acme(), &key("k"), &(), work).await;
    assert!(pay.guard().metrics().render().contains(r#"idempotency_lease_lost_total{operation="pay"} 1"#));
}

#[test]
fn a_wait_may_be_as_long_as_its_maximum_and_no_longer() {
    let pay = || Guard::new(store()).operation("pay").unwrap();
    assert!(pay().in_flight(InFlight::Wait(WAIT_MAX)).is_ok());
    assert!(pay().in_flight(InFlight::Wait(WAIT_MAX + Duration::from_nanos(1))).is_err());
}

/// A store in which an open transaction hides the key from some claims: as PostgreSQL's answers a claim whose key is
/// locked, no matter by which process.
#[derive(Clone)]
struct Hiding {
    store: Faulty<MemoryStore>,
    claims: Arc<AtomicU32>,
    /// Which claims meet it, from the first on.
    hidden: std::ops::Range<u32>,
}

impl Hiding {
    /// The first claim is carried out, and its answer lost.
    fn new(inner: &MemoryStore, hidden: std::ops::Range<u32>) -> Self {
        Self { store: first_claim_unseen(inner, |_| Fault::None), claims: Arc::default(), hidden }
    }
}

impl Store for Hiding {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    async fn now(&self) -> Result<StoreTime, StoreError> {
        self.store.now().await
    }
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        if !self.hidden.contains(&self.claims.fetch_add(1, Ordering::SeqCst)) {
            return self.store.claim(claim).await;
        }
        let now = self.now().await?;
        let record = self.get(claim.intent.id()).await?.expect("the first claim's");
        let mut record = Record { outcome: None, ..record };
        record.head.owner = Owner::NONE;
        Ok(Claimed::InFlight(Existing { record: Arc::new(record), now, other_recipe: false }))
    }
    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        self.store.renew(ticket, lease_ms).await
    }
    async fn finish(&self, ticket: Ticket, finish: Finish) -> Result<Finished, StoreError> {
        self.store.finish(ticket, finish).await
    }
    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        self.store.get(id).await
    }
    async fn list(&self, filter: Filter) -> Result<Page, StoreError> {
        self.store.list(filter).await
    }
    async fn decide(&self, id: IntentId, decide: Decide) -> Result<Decided, StoreError> {
        self.store.decide(id, decide).await
    }
    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.store.sweep(limit).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_in_doubt_that_meets_an_unseen_transaction_asks_again_and_runs() {
    // The transaction that is still open is its own first try.
    let (inner, effects) = (store(), Effects::default());
    let pay = Guard::new(Hiding::new(&inner, 1..2)).operation("pay").unwrap();
    let mine = effects.clone();
    let reply = pay.once(&acme(), &key("k"), &(), |_| async move { Ok(mine.happen()) }).await.unwrap();
    assert!(reply.guarded && !reply.replayed);
    assert_eq!((effects.count(), state(&pay, &inner).await), (1, Some(State::Completed)));
}

#[tokio::test(start_paused = true)]
async fn a_claim_in_doubt_that_stays_unseen_is_in_flight_and_given_back_once_it_is_seen() {
    // Also the first two who want to give it back meet that transaction.
    let inner = store();
    let pay = Guard::new(Hiding::new(&inner, 1..5)).operation("pay").unwrap();
    let result = pay.once::<(), _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(result, Err(OnceError::Guard(GuardError::InFlight { .. }))), "{result:?}");
    assert!(pay.guard().drain(Duration::from_secs(60)).await.is_clean());
    assert_eq!(state(&pay, &inner).await, Some(State::FailedRetryable));
}

#[tokio::test(start_paused = true)]
async fn an_unseen_transaction_is_in_flight_at_once_where_nothing_is_in_doubt() {
    let inner = store();
    let print = Recipe::default().bytes(b"");
    let first = Guard::new(inner.clone()).operation("pay").unwrap();
    let intent = first.intent(&acme(), &key("k"));
    let owner = Owner::random();
    let window = semel::intent::guard_expiry::KeyWindow::ENDLESS;
    let claim = Claim { intent, fingerprint: print, owner, effect: Effect::Opaque, lease_ms: 60_000, window };
    inner.claim(claim).await.unwrap();
    let hiding = Hiding::new(&inner, 0..100);
    let claims = Arc::clone(&hiding.claims);
    let pay = Guard::new(hiding).operation("pay").unwrap();
    let result = pay.once::<(), _, _, _>(&acme(), &key("k"), &(), |_| async { panic!("ran") }).await;
    assert!(matches!(result, Err(OnceError::Guard(GuardError::InFlight { .. }))), "{result:?}");
    assert!(pay.guard().drain(Duration::from_secs(60)).await.is_clean());
    assert_eq!(claims.load(Ordering::SeqCst), 1);
}

/// A caller that waits runs under another owner than its own give-back: that one would free the claim of the work.
#[tokio::test(start_paused = true)]
async fn a_waiting_caller_does_not_share_its_owner_with_its_give_back() {
    for hidden in 4..9 {
        let (inner, effects) = (store(), Effects::default());
        let wait = InFlight::Wait(Duration::from_secs(60));
        let guard = Guard::new(Hiding::new(&inner, 1..hidden));
        let pay = guard.operation("pay").unwrap().in_flight(wait).unwrap();
        for replayed in [false, true] {
            let mine = effects.clone();
            let work = |_| async move {
                tokio::time::sleep(Duration::from_secs(20)).await;
                Ok::<_, Failure>(mine.happen())
            };
            let reply = pay.once(&acme(), &key("k"), &(), work).await.unwrap();
            assert_eq!((reply.stored, reply.replayed), (true, replayed), "{hidden}");
        }
        assert_eq!(effects.count(), 1, "{hidden}");
    }
}

/// Its answer comes after another process had "not applied" believed and ran it.
#[tokio::test(start_paused = true)]
async fn a_claim_answered_after_its_lease_does_not_run() {
    let (inner, effects) = (store(), Effects::default());
    let operation = |first: Fault| {
        let claims = AtomicU32::new(0);
        let store = Faulty::new(inner.clone(), move |call| match call {
            StoreCall::Claim if claims.fetch_add(1, Ordering::SeqCst) == 0 => first,
            _ => Fault::None,
        });
        let lookup = |_| async { Found::NotApplied };
        let pay = Guard::new(store).operation("pay").unwrap().lookup(lookup, Duration::from_secs(1));
        pay.lease(Duration::from_secs(2)).unwrap()
    };
    let (slow, quick) = (operation(Fault::AnswerSlow(Duration::from_secs(4))), operation(Fault::None));
    let mine = effects.clone();
    let first = tokio::spawn(async move {
        slow.once(&acme(), &key("k"), &(), |_| async move { Ok::<_, Failure>(mine.happen()) }).await
    });
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    let mine = effects.clone();
    let second =
        quick.once(&acme(), &key("k"), &(), |_| async move { Ok::<_, Failure>(mine.happen()) }).await;
    assert!(!second.unwrap().replayed);
    assert!(first.await.unwrap().unwrap().replayed);
    assert_eq!(effects.count(), 1);
}

/// A store that takes no body: smaller bounds than the library's are for instance MySQL's `max_allowed_packet`.
#[tokio::test(start_paused = true)]
async fn an_outcome_too_large_for_this_store_is_recorded_without_its_body() {
    let faulty = Faulty::new(store(), |_| Fault::None).outcome_bytes_max(100);
    for effect in [Effect::Opaque, Effect::Keyed] {
        let pay = Guard::new(faulty.clone()).operation(effect.as_str()).unwrap().effect(effect).unwrap();
        let print = Recipe::default().bytes(b"");
        for replayed in [false, true] {
            let work = |_| async {
                let outcome = Outcome::new(201, "x".repeat(1_000)).header("location", "/payments/1");
                Execution::completed(outcome)
            };
            let answer = pay.run(pay.intent(&acme(), &key("k")), print, work).await.unwrap();
            assert_eq!(
                (answer.stored, answer.replayed, answer.outcome.code),
                (true, replayed, 201),
                "{effect}"
            );
            assert_eq!(answer.outcome.body_bytes().is_none(), replayed, "{effect}");
            assert_eq!(answer.outcome.headers.len(), 1, "{effect}");
        }
    }
}

/// A machine whose timers stand still while it sleeps, and the time of day goes on.
#[derive(Clone, Default)]
struct Machine {
    gained_ms: Arc<AtomicI64>,
}

impl Machine {
    fn sleeps(&self, ms: i64) {
        self.gained_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Spawn for Machine {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::spawn(task);
    }
    fn gained_ms(&self) -> i64 {
        self.gained_ms.load(Ordering::SeqCst)
    }
}

const AN_HOUR_MS: i64 = 3_600_000;

#[tokio::test(start_paused = true)]
async fn a_machine_that_slept_through_its_lease_sends_nothing_after_it() {
    // What was slept, and how often the call is sent then: within the lease, beyond it, and with the clock set back.
    for (slept_ms, sent) in [(10_000, 1), (AN_HOUR_MS, 0), (-AN_HOUR_MS, 1)] {
        let (machine, effects) = (Machine::default(), Effects::default());
        let guard = Guard::with(store(), Limits::default(), Metrics::new(), machine.clone());
        let lookup = |_| async { Found::NotApplied };
        let pay = guard.operation("pay").unwrap().lookup(lookup, Duration::from_secs(10));
        let (started, wakes) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (starts, woken, sends) = (Arc::clone(&started), Arc::clone(&wakes), effects.clone());
        let work = move |_| async move {
            starts.notify_one();
            woken.notified().await;
            Ok::<_, Failure>(sends.happen())
        };
        let call = tokio::spawn(async move { pay.once(&acme(), &key("k"), &(), work).await });
        started.notified().await;
        machine.sleeps(slept_ms);
        wakes.notify_one();
        let ended = call.await.unwrap();
        assert_eq!(effects.count(), sent, "slept for {slept_ms} ms: {ended:?}");
        let lost = matches!(ended, Err(OnceError::Guard(GuardError::ClaimLost { .. })));
        assert_eq!(lost, sent == 0, "{ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_was_slept_through_is_given_back_and_asked_for_anew() {
    let (machine, claims) = (Machine::default(), Arc::new(AtomicU32::new(0)));
    let (sleeps, asked) = (machine.clone(), Arc::clone(&claims));
    let faulty = Faulty::new(store(), move |call| {
        if call == StoreCall::Claim && asked.fetch_add(1, Ordering::SeqCst) == 0 {
            sleeps.sleeps(AN_HOUR_MS);
        }
        Fault::None
    });
    let guard = Guard::with(faulty, Limits::default(), Metrics::new(), machine);
    let pay = guard.operation("pay").unwrap();
    let reply = pay.once(&acme(), &key("k"), &(), |_| async { Ok(1) }).await.unwrap();
    assert_eq!((reply.value, reply.replayed, reply.stored), (1, false, true));
    assert!(claims.load(Ordering::SeqCst) > 1, "it ran under a claim that was over");
}
