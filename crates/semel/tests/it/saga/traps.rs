//! What has gone wrong elsewhere, once each: takeovers, deploys, cancellations, signals, and many at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::guard::Spawn;
use semel::saga::memory::MemoryJournal;
use semel::saga::{
    BODY_BYTES_MAX, Definition, DefinitionError, EntryKind, Journal, Loaded, NothingToUndo, Op, ParkReason,
    Registered, Requested, Saga, SagaEnd, SagaError, SagaFilter, SagaNumber, SagaResult, SagaStep, Sagas,
    SagasBuilder, Signalled, Status, StepResult, StepSpec, StepType, UndoCause,
};
use semel::{Key, Scope};
use tokio::task::AbortHandle;

use super::shop::{Does, Hold, Open, Price, Shop, Truck, completed, definition, journal, options};

const HOUR: Duration = Duration::from_secs(3_600);

/// A process that can be killed: its tasks end where they wait.
#[derive(Clone, Default)]
struct Process(Arc<Mutex<Vec<AbortHandle>>>);

impl Spawn for Process {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.lock().unwrap().push(tokio::spawn(task).abort_handle());
    }
}

impl Process {
    fn kill(&self) {
        self.0.lock().unwrap().drain(..).for_each(|task| task.abort());
    }
}

struct Worker {
    process: Process,
    sagas: Sagas<Shop>,
    order: Registered<String, String>,
}

fn worker(journal: &MemoryJournal, shop: &Shop, definition: Definition<Shop, String, String>) -> Worker {
    let process = Process::default();
    let mut sagas =
        SagasBuilder::new(journal.clone(), shop.clone()).options(options()).spawner(process.clone());
    let order = sagas.register(definition).unwrap();
    Worker { process, sagas: sagas.start(), order }
}

impl Worker {
    async fn submit(&self, key: &str) -> SagaNumber {
        let (acme, key) = (Scope::tenant("acme").unwrap(), Key::new(key).unwrap());
        self.sagas.submit(&self.order, &acme, &key, &"book".to_owned()).await.unwrap()
    }
}

async fn load(journal: &MemoryJournal, number: SagaNumber) -> Loaded {
    journal.load(number).await.unwrap().unwrap()
}

async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never comes to that")
}

async fn until_status(journal: &MemoryJournal, number: SagaNumber, status: Status) {
    until(async || load(journal, number).await.record.row.status == status).await;
}

/// A takeover or a restart must not make the participant's key live longer: Stripe forgets it a day after the first call.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_key_is_the_first_attempts_across_three_takeovers() {
    let (journal, shop) = (journal(), Shop::default());
    shop.script("hold", [Does::Hangs, Does::Hangs, Does::Hangs]);
    let mut last = worker(&journal, &shop, definition(false));
    let number = last.submit("k").await;
    for calls in 1..=3 {
        until(async || shop.calls("hold") == calls).await;
        last.process.kill();
        last = worker(&journal, &shop, definition(false));
    }
    until_status(&journal, number, Status::Completed).await;
    let entries = load(&journal, number).await.entries;
    let begun: Vec<_> = entries
        .iter()
        .filter(|entry| entry.step.name == "hold" && entry.kind == EntryKind::Begin)
        .map(|entry| (entry.epoch, entry.safe_until.unwrap()))
        .collect();
    assert_eq!(begun.len(), 4, "{begun:?}");
    assert!(begun.windows(2).all(|two| two[0].0 < two[1].0), "an epoch each: {begun:?}");
    assert!(begun.iter().all(|(_, until)| *until == begun[0].1), "one time for all: {begun:?}");
    assert_eq!(begun[0].1, entries[0].at.plus_ms(3_600_000));
}

/// Somebody who lost a claim goes on all the same: elsewhere a lost claim fell through.
#[tokio::test(start_paused = true)]
async fn of_two_processes_that_take_over_one_runs() {
    let (journal, shop) = (journal(), Shop::default());
    shop.script("hold", [Does::Hangs]);
    let first = worker(&journal, &shop, definition(false));
    let number = first.submit("k").await;
    until(async || shop.calls("hold") == 1).await;
    let before = load(&journal, number).await.record.row.epoch;
    let others = [worker(&journal, &shop, definition(false)), worker(&journal, &shop, definition(false))];
    first.process.kill();
    until_status(&journal, number, Status::Completed).await;
    tokio::time::sleep(HOUR).await;
    let loaded = load(&journal, number).await;
    assert_eq!(loaded.record.row.epoch, before + 1, "taken once");
    // Each call once, the one that hung twice.
    assert_eq!(shop.ledger().calls, ["hold", "hold", "truck", "price", "charge", "mail"]);
    drop(others);
}

/// Between `begin` and the call: nothing happened, and that cannot be known.
#[tokio::test(start_paused = true)]
async fn a_step_that_never_ran_is_undone_as_perhaps() {
    let (journal, shop) = (journal(), Shop::default());
    shop.script("hold", [Does::Hangs, Does::Refuses]);
    let first = worker(&journal, &shop, definition(false));
    let number = first.submit("k").await;
    until(async || shop.calls("hold") == 1).await;
    first.process.kill();
    let next = worker(&journal, &shop, definition(false));
    assert_eq!(next.sagas.cancel(number).await.unwrap(), Requested::Recorded);
    until_status(&journal, number, Status::Undone).await;
    // It was asked for again under its key before anything was undone, and its undo got `None`.
    assert_eq!(shop.effects(), ["release perhaps"]);
}

#[tokio::test(start_paused = true)]
async fn a_deploy_that_renames_a_step_parks_the_saga_and_calls_nothing() {
    struct Reserve;
    impl StepType for Reserve {
        type Input = String;
        type Output = String;
        type Undo = NothingToUndo;

        fn spec(&self) -> StepSpec {
            StepSpec::keyed("reserve")
        }
    }
    impl SagaStep<Shop> for Reserve {
        async fn run(&self, at: semel::saga::At<'_, Shop>, _: &String) -> StepResult<String> {
            at.app.call("reserve", at.key(), true).await
        }
    }
    async fn renamed(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        saga.run(Reserve, sku).await
    }
    let (journal, shop) = (journal(), Shop::default());
    shop.script("truck", [Does::Hangs]);
    let before = worker(&journal, &shop, definition(false));
    let number = before.submit("k").await;
    until(async || shop.calls("truck") == 1).await;
    before.process.kill();
    let calls = shop.ledger().calls.len();
    let after =
        worker(&journal, &shop, Definition::new("order", 1, renamed).step(Reserve).step(Hold).step(Truck));
    until_status(&journal, number, Status::Parked).await;
    assert_eq!(load(&journal, number).await.record.row.reason, Some(ParkReason::Changed));
    assert_eq!(shop.ledger().calls.len(), calls);
    after.process.kill();
    // The code that fits goes on, when a person says so.
    let fits = worker(&journal, &shop, definition(false));
    let admin = semel::saga::SagaAdmin::new(journal.clone());
    let epoch = load(&journal, number).await.record.row.epoch;
    admin.retry(number, epoch, &semel::saga::DecidedBy::new("ann", "rolled back")).await.unwrap();
    until_status(&journal, number, Status::Completed).await;
    drop(fits);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_no_worker_has_is_left_alone_and_goes_on_when_it_is_registered() {
    async fn waits(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        saga.signal::<()>("go", None).await;
        saga.run(Hold, sku).await
    }
    let version = |version| Definition::new("order", version, waits).step(Hold);
    let (journal, shop) = (journal(), Shop::default());
    let new = worker(&journal, &shop, version(2));
    let number = new.submit("k").await;
    until_status(&journal, number, Status::Waiting).await;
    new.process.kill();
    let old = worker(&journal, &shop, version(1));
    let other = worker(&journal, &shop, Definition::new("refund", 9, waits).step(Hold));
    assert_eq!(old.sagas.signal(number, "s", "go", &()).await.unwrap(), Signalled::Recorded);
    let before = load(&journal, number).await.record.row;
    tokio::time::sleep(24 * HOUR).await;
    assert_eq!(load(&journal, number).await.record.row, before, "it is due, and no worker here knows it");
    assert_eq!(shop.calls("hold"), 0);
    let new = worker(&journal, &shop, version(2));
    until_status(&journal, number, Status::Completed).await;
    assert_eq!(shop.calls("hold"), 1);
    drop((old, other, new));
}

/// A saga that was cancelled at one moment.
struct Cancelled {
    journal: MemoryJournal,
    shop: Shop,
    worker: Worker,
    number: SagaNumber,
}

impl Cancelled {
    async fn begin(definition: Definition<Shop, String, String>, script: &[(&str, &[Does])]) -> Self {
        let (journal, shop) = (journal(), Shop::default());
        for (step, does) in script {
            shop.script(step, does.iter().cloned());
        }
        let worker = worker(&journal, &shop, definition);
        let number = worker.submit("k").await;
        Self { journal, shop, worker, number }
    }

    async fn cancel(&self) -> Requested {
        self.worker.sagas.cancel(self.number).await.unwrap()
    }

    async fn end(&self, status: Status) -> Option<UndoCause> {
        until_status(&self.journal, self.number, status).await;
        load(&self.journal, self.number).await.record.row.undo
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_in_a_sleep_it_is_undone_at_once() {
    async fn sleeps(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        saga.run(Hold, sku.clone()).await?;
        saga.sleep(24 * HOUR).await;
        Ok(sku)
    }
    let saga = Cancelled::begin(Definition::new("order", 1, sleeps).step(Hold), &[]).await;
    let begin = tokio::time::Instant::now();
    until_status(&saga.journal, saga.number, Status::Waiting).await;
    assert_eq!(saga.cancel().await, Requested::Recorded);
    assert_eq!(saga.end(Status::Undone).await, Some(UndoCause::Cancelled));
    assert_eq!(saga.shop.effects(), ["hold", "release"]);
    assert!(begin.elapsed() < HOUR, "it did not sleep on");
}

#[tokio::test(start_paused = true)]
async fn cancelled_between_two_attempts_it_is_undone() {
    let saga = Cancelled::begin(definition(false), &[("truck", &[Does::Fails, Does::Fails])]).await;
    until(async || {
        let loaded = load(&saga.journal, saga.number).await;
        loaded.record.row.status == Status::Waiting
    })
    .await;
    assert_eq!(saga.cancel().await, Requested::Recorded);
    assert_eq!(saga.end(Status::Undone).await, Some(UndoCause::Cancelled));
    // The truck never came, and is not asked for again.
    assert_eq!(saga.shop.effects(), ["hold", "release"]);
    assert_eq!(saga.shop.calls("truck"), 1);
}

#[tokio::test(start_paused = true)]
async fn cancelled_while_it_is_undone_it_goes_on_being_undone() {
    let script: [(&str, &[Does]); 2] = [("charge", &[Does::Refuses]), ("no truck", &[Does::Hangs])];
    let saga = Cancelled::begin(definition(false), &script).await;
    until(async || saga.shop.calls("no truck") == 1).await;
    assert_eq!(saga.cancel().await, Requested::Refused);
    assert_eq!(saga.end(Status::Undone).await, Some(UndoCause::Refused), "the cause stays");
    assert_eq!(saga.shop.effects(), ["hold", "truck", "price", "no truck", "release"]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_past_its_pivot_it_completes() {
    let saga = Cancelled::begin(definition(false), &[("mail", &[Does::Hangs])]).await;
    until(async || saga.shop.calls("mail") == 1).await;
    saga.cancel().await;
    assert_eq!(saga.end(Status::Completed).await, None);
    assert_eq!(saga.shop.effects(), ["hold", "truck", "price", "charge", "mail"]);
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_comes_before_the_wait_is_kept() {
    async fn approved(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        saga.run(Hold, sku).await?;
        Ok(saga.signal::<String>("approval", Some(HOUR)).await.unwrap_or_default())
    }
    let (journal, shop) = (journal(), Shop::default());
    shop.script("hold", [Does::Hangs]);
    let worker = worker(&journal, &shop, Definition::new("order", 1, approved).step(Hold));
    let number = worker.submit("k").await;
    until(async || shop.calls("hold") == 1).await;
    let begin = tokio::time::Instant::now();
    let sent = worker.sagas.signal(number, "s1", "approval", &"ann".to_owned()).await.unwrap();
    assert_eq!(sent, Signalled::Recorded);
    until_status(&journal, number, Status::Completed).await;
    let end = worker.sagas.end(&worker.order, number).await.unwrap();
    assert_eq!(end, SagaEnd::Completed("ann".to_owned()));
    assert!(begin.elapsed() < HOUR, "it did not wait");
    let late = worker.sagas.signal(number, "s2", "approval", &"bob".to_owned()).await.unwrap();
    assert_eq!(late, Signalled::TooLate);
}

/// How many calls were under way at once.
#[derive(Clone, Default)]
struct Crowd(Arc<(AtomicUsize, AtomicUsize, AtomicUsize)>);

struct Visit;

impl StepType for Visit {
    type Input = ();
    type Output = ();
    type Undo = NothingToUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed("visit")
    }
}

impl SagaStep<Crowd> for Visit {
    async fn run(&self, at: semel::saga::At<'_, Crowd>, (): &()) -> StepResult<()> {
        let (inside, most, visits) = &*at.app.0;
        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(50)).await;
        inside.fetch_sub(1, Ordering::SeqCst);
        visits.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_that_are_due_at_once_are_taken_as_there_is_room() {
    const SLEEPERS: usize = 10_000;
    const ROOM: usize = 40;
    async fn sleeper(saga: Saga<Crowd>, (): ()) -> SagaResult<()> {
        saga.sleep(Duration::from_secs(60)).await;
        saga.run(Visit, ()).await
    }
    let (journal, crowd) = (journal(), Crowd::default());
    let mut bounds = options();
    bounds.running_max = ROOM;
    let mut sagas = SagasBuilder::new(journal.clone(), crowd.clone()).options(bounds);
    let registered = sagas.register(Definition::new("sleeper", 1, sleeper).step(Visit)).unwrap();
    let sagas = sagas.start();
    let acme = Scope::tenant("acme").unwrap();
    for n in 0..SLEEPERS {
        sagas.submit(&registered, &acme, &Key::new(format!("k{n}").as_str()).unwrap(), &()).await.unwrap();
    }
    let filter = |status| SagaFilter { statuses: vec![status], limit: 1, ..SagaFilter::default() };
    let none = async |status| {
        tokio::time::sleep(Duration::from_millis(500)).await;
        journal.list(filter(status)).await.unwrap().is_empty()
    };
    until(async || none(Status::Running).await).await;
    let (_, most, visits) = &*crowd.0;
    assert_eq!(visits.load(Ordering::SeqCst), 0, "all of them sleep");
    let mut owned = 0;
    until(async || {
        let running = SagaFilter { statuses: vec![Status::Running], ..SagaFilter::default() };
        owned = owned.max(journal.list(running).await.unwrap().len());
        none(Status::Waiting).await && none(Status::Running).await
    })
    .await;
    assert_eq!(visits.load(Ordering::SeqCst), SLEEPERS, "each once");
    assert!(most.load(Ordering::SeqCst) <= ROOM, "{most:?} calls at once");
    assert!(owned <= ROOM, "{owned} sagas were taken at once");
}

#[tokio::test(start_paused = true)]
async fn what_is_empty_or_too_large_is_refused_before_anything_starts() {
    assert!(Key::new("").is_err());
    assert!(Key::new("k".repeat(10_000).as_str()).is_err());
    let open = Open::new(definition(false));
    let large = open.once_with("k", &"x".repeat(BODY_BYTES_MAX)).await;
    assert!(matches!(large, Err(SagaError::TooLarge { .. })), "{large:?}");
    assert!(open.sagas.list(SagaFilter::default()).await.unwrap().is_empty(), "nothing was started");
    assert_eq!(open.once("k").await.unwrap(), completed(), "the key is free");
    let number = open.only().await.number;
    for (id, name) in [("", "go"), ("s", ""), ("s", "a/b"), (&*"s".repeat(300), "go"), ("/cancel", "go")] {
        let signal = open.sagas.signal(number, id, name, &()).await;
        assert!(matches!(signal, Err(SagaError::SignalName)), "{id:?} {name:?}");
    }
    for name in ["", "a#b", "a b", &"n".repeat(65)] {
        async fn nothing(_: Saga<Shop>, _: String) -> SagaResult<String> {
            Ok(String::new())
        }
        let mut builder = SagasBuilder::new(journal(), Shop::default());
        let refused = builder.register(Definition::new(name, 1, nothing)).unwrap_err();
        assert!(matches!(refused, DefinitionError::Name { .. }), "{name:?}");
    }
}

/// What happened is in the journal, without its result: it is not called again, and a person decides.
#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_parks_the_saga_and_is_not_asked_for_again() {
    async fn large(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
        saga.run(Price, sku).await?;
        Ok("x".repeat(BODY_BYTES_MAX))
    }
    let open = Open::new(Definition::new("order", 1, large).step(Price));
    let parked = open.once("k").await.unwrap_err();
    assert!(matches!(parked, SagaError::Parked { reason: ParkReason::TooLarge, .. }), "{parked}");
    tokio::time::sleep(HOUR).await;
    assert_eq!(open.shop.calls("price"), 1);
    let entries = load(&open.journal, open.only().await.number).await.entries;
    assert!(entries.iter().any(|entry| entry.kind == EntryKind::Done && entry.op == Op::Forward));
}
