//! How long the guard goes on in the background: claims in doubt and outcomes that the store does not take.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::intent::fingerprint::Recipe;
use semel::store::faulty::{Fault, Faulty, StoreCall};
use semel::store::memory::MemoryStore;
use semel::store::{
    Capabilities, Claim, Claimed, Decide, Decided, ErrorKind, Fate, Filter, Finish, Finished, Page, Record,
    Renewed, Store, StoreError, Ticket,
};
use semel::{Effect, Execution, Guard, GuardError, Guarded, IntentId, Outcome, State, StoreTime, Verdict};

use crate::guard_world::{acme, key, store};

const HOUR: Duration = Duration::from_secs(60 * 60);
const MINUTE: Duration = Duration::from_secs(60);

/// Counts requests of one kind; the rest of the script says what becomes of each.
fn counted(
    inner: &MemoryStore,
    wanted: StoreCall,
    fault: impl Fn(StoreCall, u32) -> Fault + Send + Sync + 'static,
) -> (Faulty<MemoryStore>, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    let mine = Arc::clone(&count);
    let script = move |call| {
        let before = if call == wanted { mine.fetch_add(1, Ordering::SeqCst) } else { 0 };
        fault(call, before)
    };
    (Faulty::new(inner.clone(), script), count)
}

async fn unavailable<S: Store>(pay: &Guarded<S>, name: &str) {
    let print = Recipe::default().bytes(b"");
    let run = pay.run(pay.intent(&acme(), &key(name)), print, |_| async { panic!("ran") });
    let refused = run.await;
    assert!(matches!(refused, Err(GuardError::StoreUnavailable(_))), "{refused:?}");
}

/// Requests within this time.
async fn during(count: &AtomicU32, time: Duration) -> u32 {
    let before = count.load(Ordering::SeqCst);
    tokio::time::sleep(time).await;
    count.load(Ordering::SeqCst) - before
}

#[tokio::test(start_paused = true)]
async fn a_claim_in_doubt_is_asked_about_for_an_hour() {
    let (faulty, claims) = counted(&store(), StoreCall::Claim, |_, _| Fault::RequestLost);
    let pay = Guard::new(faulty).operation("pay").unwrap();
    unavailable(&pay, "k").await;
    // Every five seconds at the latest, every two and a half at the earliest.
    tokio::time::sleep(MINUTE).await;
    let each_minute = during(&claims, MINUTE).await;
    assert!((11..=25).contains(&each_minute), "{each_minute} in a minute");
    tokio::time::sleep(HOUR - 4 * MINUTE).await;
    assert!(during(&claims, MINUTE).await > 0, "it stopped before the hour was over");
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(during(&claims, HOUR).await, 0, "it goes on after the hour");
    assert!(pay.guard().drain(MINUTE).await.is_clean());
}

/// Without a permit: three tries for the caller and ten in the background, then the claim is left to its lease.
#[tokio::test(start_paused = true)]
async fn claims_in_doubt_beyond_a_thousand_are_asked_about_ten_times() {
    let losing = Closing::new();
    let pay = Guard::new(losing.clone()).operation("pay").unwrap();
    for round in 0..2 {
        for number in 0..1_000 {
            unavailable(&pay, &format!("permit-{round}-{number}")).await;
        }
        unavailable(&pay, "none").await;
        let of = |name: &str| losing.asked_for(&pay.intent(&acme(), &key(name)).id());
        tokio::time::sleep(10 * MINUTE).await;
        // The second time it is the same intent again.
        assert_eq!(of("none"), 13 * (round + 1));
        assert!((0..1_000).all(|number| of(&format!("permit-{round}-{number}")) > 100));
        // Permits are returned: the second thousand has them all.
        tokio::time::sleep(HOUR).await;
        assert_eq!(during(&losing.asked, HOUR).await, 0);
    }
    assert!(pay.guard().drain(MINUTE).await.is_clean());
}

/// A store that loses every claim, and is closed at some time.
#[derive(Clone)]
struct Closing {
    store: MemoryStore,
    closed: Arc<AtomicBool>,
    asked: Arc<AtomicU32>,
    by_intent: Arc<Mutex<HashMap<IntentId, u32>>>,
}

impl Closing {
    fn new() -> Self {
        Self { store: store(), closed: Arc::default(), asked: Arc::default(), by_intent: Arc::default() }
    }

    fn asked_for(&self, id: &IntentId) -> u32 {
        self.by_intent.lock().unwrap().get(id).copied().unwrap_or_default()
    }
}

impl Store for Closing {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    async fn now(&self) -> Result<StoreTime, StoreError> {
        self.store.now().await
    }
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        *self.by_intent.lock().unwrap().entry(claim.intent.id()).or_default() += 1;
        Err(match self.closed.load(Ordering::SeqCst) {
            true => StoreError::new(ErrorKind::Closed, Fate::NotApplied, "closed on purpose"),
            false => StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, "lost on purpose"),
        })
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
async fn a_store_that_was_closed_is_not_asked_any_more() {
    let closing = Closing::new();
    let pay = Guard::new(closing.clone()).operation("pay").unwrap();
    unavailable(&pay, "k").await;
    tokio::time::sleep(MINUTE).await;
    assert!(closing.asked.load(Ordering::SeqCst) > 3, "not asked again in the background");
    closing.closed.store(true, Ordering::SeqCst);
    tokio::time::sleep(MINUTE).await;
    assert_eq!(during(&closing.asked, HOUR).await, 0);
    assert!(pay.guard().drain(MINUTE).await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_released_for_an_hour_and_then_left() {
    // The claim is carried out and its answer lost; asked again it is there, and cannot be released.
    for (down_for, wanted) in [(30 * MINUTE, State::FailedRetryable), (2 * HOUR, State::Uncertain)] {
        let inner = store();
        let (begin, lost) = (tokio::time::Instant::now(), AtomicU32::new(0));
        let (faulty, releases) = counted(&inner, StoreCall::Finish, move |call, _| match call {
            StoreCall::Claim if lost.fetch_add(1, Ordering::SeqCst) < 3 => Fault::AnswerLost,
            StoreCall::Finish if begin.elapsed() < down_for => Fault::Refused,
            _ => Fault::None,
        });
        let pay = Guard::new(faulty).operation("pay").unwrap();
        unavailable(&pay, "k").await;
        tokio::time::sleep(20 * MINUTE).await;
        assert!(during(&releases, MINUTE).await > 5);
        tokio::time::sleep(37 * MINUTE).await;
        // Minute 58: still tried, unless it went through.
        assert_eq!(during(&releases, MINUTE).await > 5, wanted == State::Uncertain);
        tokio::time::sleep(5 * MINUTE).await;
        assert_eq!(during(&releases, 2 * HOUR).await, 0);
        assert!(pay.guard().drain(MINUTE).await.is_clean());
        let id = pay.intent(&acme(), &key("k")).id();
        let now = inner.now().await.unwrap();
        let state = inner.get(id).await.unwrap().and_then(|record| record.state_at(now));
        assert_eq!(state, Some(wanted), "down for {down_for:?}");
    }
}

/// An outcome of which this store takes neither the body nor the headers.
fn large() -> Execution {
    let outcome = Outcome::new(201, "x".repeat(1_000)).header("location", "/".repeat(1_000));
    Execution::completed(outcome)
}

#[tokio::test(start_paused = true)]
async fn an_outcome_gets_smaller_until_the_store_takes_it() {
    let faulty = Faulty::new(store(), |_| Fault::None).outcome_bytes_max(40);
    let pay = Guard::new(faulty).operation("pay").unwrap();
    let print = Recipe::default().bytes(b"");
    for replayed in [false, true] {
        let answer = pay.run(pay.intent(&acme(), &key("k")), print, |_| async { large() }).await.unwrap();
        assert_eq!((answer.stored, answer.replayed, answer.outcome.code), (true, replayed, 201));
        let kept = (answer.outcome.body_bytes().is_some(), answer.outcome.headers.len());
        assert_eq!(kept, if replayed { (false, 0) } else { (true, 1) });
    }
}

#[tokio::test(start_paused = true)]
async fn a_smaller_outcome_that_cannot_be_recorded_at_once_is_recorded_later() {
    let inner = store();
    let (faulty, _) = counted(&inner, StoreCall::Finish, |call, before| match call {
        StoreCall::Finish if before < 4 => Fault::Refused,
        _ => Fault::None,
    });
    let pay = Guard::new(faulty.outcome_bytes_max(40)).operation("pay").unwrap();
    let print = Recipe::default().bytes(b"");
    let intent = || pay.intent(&acme(), &key("k"));
    let answer = pay.run(intent(), print, |_| async { large() }).await.unwrap();
    assert_eq!((answer.stored, answer.outcome.body_bytes().is_some()), (false, true));
    tokio::time::sleep(MINUTE).await;
    let again = pay.run(intent(), print, |_| async { panic!("ran twice") }).await.unwrap();
    assert_eq!((again.replayed, again.outcome.code, again.outcome.headers.len()), (true, 201, 0));
    assert!(pay.guard().drain(MINUTE).await.is_clean());
}

/// The claim was finished differently meanwhile: the caller gets the answer that stands, although its own was too large.
#[tokio::test(start_paused = true)]
async fn a_smaller_outcome_that_comes_too_late_gives_way_to_the_one_that_stands() {
    let inner = store();
    let faulty = Faulty::new(inner.clone(), |_| Fault::None).outcome_bytes_max(60);
    let pay = Guard::new(faulty).operation("pay").unwrap().effect(Effect::Keyed).unwrap();
    let print = Recipe::default().bytes(b"");
    let (id, stolen) = (pay.intent(&acme(), &key("k")).id(), inner.clone());
    let work = move |_| async move {
        // The same claim, finished with another verdict.
        let record = stolen.get(id).await.unwrap().expect("claimed");
        let finish = Finish {
            verdict: Verdict::Completed,
            outcome: Some(Outcome::new(200, "first")),
            retention: Duration::from_secs(86_400).into(),
        };
        stolen.finish(record.ticket(false), finish).await.unwrap();
        let outcome = Outcome::new(422, "x".repeat(1_000));
        Execution { result: semel::WorkResult::FailedFinal, outcome }
    };
    let answer = pay.run(pay.intent(&acme(), &key("k")), print, work).await.unwrap();
    assert_eq!((answer.outcome.code, answer.verdict), (200, Verdict::Completed));
    assert_eq!(answer.outcome.body_bytes().map(|body| body.to_vec()), Some(b"first".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_is_never_taken_is_given_up_after_an_hour() {
    let (faulty, finishes) = counted(&store(), StoreCall::Finish, |call, _| match call {
        StoreCall::Finish => Fault::Refused,
        _ => Fault::None,
    });
    let pay = Guard::new(faulty).operation("pay").unwrap();
    let print = Recipe::default().bytes(b"");
    let work = |_| async { Execution::completed(Outcome::new(201, "done")) };
    let answer = pay.run(pay.intent(&acme(), &key("k")), print, work).await.unwrap();
    assert!(!answer.stored);
    tokio::time::sleep(HOUR - 2 * MINUTE).await;
    assert!(during(&finishes, MINUTE).await > 5, "it stopped before the hour was over");
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(during(&finishes, HOUR).await, 0);
    assert!(pay.guard().drain(MINUTE).await.is_clean());
}
