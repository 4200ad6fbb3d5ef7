//! Limits per kind of step: a participant that hangs does not hold up sagas that do not need it.

use std::sync::Arc;
use std::time::Duration;

use semel::saga::{
    At, Definition, NewSaga, NothingToUndo, Registered, Saga, SagaEnd, SagaError, SagaFilter, SagaMetrics,
    SagaNumber, SagaResult, SagaStep, Sagas, SagasBuilder, Status, StepResult, StepSpec, StepType, UndoCause,
};
use semel::{Intent, Key, Operation, Scope};
use tokio::sync::Semaphore;

use super::shop::{journal, options};

/// A new saga that no worker has.
pub(super) fn new_saga(key: &str) -> NewSaga {
    let intent = Intent::new(Scope::single_tenant(), Operation::new("saga").unwrap(), Key::new(key).unwrap());
    NewSaga {
        intent,
        fingerprint: semel::intent::fingerprint::Recipe::default().value(&1).unwrap(),
        name: "saga".to_owned(),
        version: 1,
        input: "1".into(),
        deadline_ms: None,
        worker: None,
    }
}

/// A participant that answers each call when it is let.
#[derive(Clone)]
struct Gate {
    opens: Arc<Semaphore>,
    /// Calls that came.
    calls: Arc<std::sync::atomic::AtomicUsize>,
}

/// Hangs for as long as the gate is shut.
struct Sick {
    concurrent: Option<u32>,
}

impl StepType for Sick {
    type Input = u32;
    type Output = u32;
    type Undo = NothingToUndo;

    fn spec(&self) -> StepSpec {
        let spec = StepSpec::keyed("sick").timeout(Duration::from_secs(3_600));
        match self.concurrent {
            Some(max) => spec.concurrent_max(max),
            None => spec,
        }
    }
}

impl SagaStep<Gate> for Sick {
    async fn run(&self, at: At<'_, Gate>, n: &u32) -> StepResult<u32> {
        at.app.calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        at.app.opens.acquire().await?.forget();
        Ok(*n)
    }
}

/// Answers at once.
struct Well;

impl StepType for Well {
    type Input = u32;
    type Output = u32;
    type Undo = NothingToUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed("well")
    }
}

impl SagaStep<Gate> for Well {
    async fn run(&self, _: At<'_, Gate>, n: &u32) -> StepResult<u32> {
        Ok(*n)
    }
}

async fn sick(saga: Saga<Gate>, n: u32) -> SagaResult<u32> {
    saga.run(Sick { concurrent: None }, n).await
}

async fn well(saga: Saga<Gate>, n: u32) -> SagaResult<u32> {
    saga.run(Well, n).await
}

struct Hospital {
    gate: Gate,
    sagas: Sagas<Gate>,
    sick: Registered<u32, u32>,
    well: Registered<u32, u32>,
    metrics: SagaMetrics,
}

/// Ten places, and a hundred sagas whose step hangs.
const PLACES: usize = 10;
const SICK: u32 = 100;

impl Hospital {
    async fn new(concurrent: Option<u32>) -> Self {
        let gate = Gate { opens: Arc::new(Semaphore::new(0)), calls: Arc::default() };
        let mut options = options();
        options.running_max = PLACES;
        options.wait = Duration::from_secs(60);
        let metrics = SagaMetrics::new();
        let mut builder = SagasBuilder::new(journal(), gate.clone()).options(options).observed_by(&metrics);
        let sick = builder.register(Definition::new("sick", 1, sick).step(Sick { concurrent })).unwrap();
        let well = builder.register(Definition::new("well", 1, well).step(Well)).unwrap();
        let hospital = Self { gate, sagas: builder.start(), sick, well, metrics };
        for n in 0..SICK {
            hospital.submit(n).await;
        }
        hospital
    }

    async fn submit(&self, n: u32) -> SagaNumber {
        let key = Key::new(format!("sick-{n}")).unwrap();
        self.sagas.submit(&self.sick, &Scope::single_tenant(), &key, &n).await.unwrap()
    }

    async fn one_that_is_well(&self, n: u32) -> Result<SagaEnd<u32>, SagaError> {
        let key = Key::new(format!("well-{n}")).unwrap();
        self.sagas.once(&self.well, &Scope::single_tenant(), &key, &n).await
    }

    fn calls(&self) -> usize {
        self.gate.calls.load(std::sync::atomic::Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn one_sick_kind_of_step_does_not_hold_up_the_others() {
    for (concurrent, at_once) in [(None, PLACES / 2), (Some(3), 3)] {
        let hospital = Hospital::new(concurrent).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(hospital.calls(), at_once, "so many of the sick kind are called");
        for n in 0..20 {
            assert_eq!(hospital.one_that_is_well(n).await.unwrap(), SagaEnd::Completed(n), "{concurrent:?}");
        }
        let text = hospital.metrics.render();
        let at_work = text.lines().find_map(|line| line.strip_prefix("semel_saga_at_work ")).unwrap();
        assert!(at_work.parse::<usize>().unwrap() <= PLACES, "bounded: {at_work}");
        assert!(text.contains("semel_saga_step_waits_total{step=\"sick\"}"), "{text}");
        // When it is cured all of them go on, each once.
        hospital.gate.opens.add_permits(SICK as usize);
        tokio::time::sleep(Duration::from_secs(120)).await;
        let left = SagaFilter { statuses: vec![Status::Running, Status::Waiting], ..SagaFilter::default() };
        assert_eq!(hospital.sagas.list(left).await.unwrap().len(), 0);
        assert_eq!(hospital.calls(), SICK as usize);
    }
}

/// The test above can fail: with a limit as large as the process, the sick kind takes it all.
#[tokio::test(start_paused = true)]
async fn without_a_limit_they_would_be_held_up() {
    let hospital = Hospital::new(Some(SICK)).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(hospital.calls(), PLACES);
    let held_up = hospital.one_that_is_well(0).await;
    assert!(matches!(held_up, Err(SagaError::UnderWay { .. })), "{held_up:?}");
}

#[tokio::test(start_paused = true)]
async fn a_saga_that_waits_for_its_kind_is_handed_over_when_the_process_stops() {
    let hospital = Hospital::new(Some(3)).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let drained = tokio::spawn({
        let sagas = hospital.sagas.clone();
        async move { sagas.drain(Duration::from_secs(30)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let running = SagaFilter { statuses: vec![Status::Running], ..SagaFilter::default() };
    let held =
        hospital.sagas.list(running).await.unwrap().into_iter().filter(|saga| saga.row.worker.is_some());
    assert_eq!(held.count(), 3, "those that are called");
    hospital.gate.opens.add_permits(3);
    assert_eq!(drained.await.unwrap(), 0);
    assert_eq!(hospital.calls(), 3, "nothing new began");
}

/// The deadline of a saga that waits for its kind is kept.
#[tokio::test(start_paused = true)]
async fn a_deadline_passes_while_a_saga_waits_for_its_kind() {
    let gate = Gate { opens: Arc::new(Semaphore::new(0)), calls: Arc::default() };
    let mut builder = SagasBuilder::new(journal(), gate.clone()).options(options());
    let sick = Definition::new("sick", 1, sick).step(Sick { concurrent: Some(1) });
    let sick = builder.register(sick.deadline(Duration::from_secs(60))).unwrap();
    let sagas = builder.start();
    let once = async |n: u32| {
        let key = Key::new(format!("sick-{n}")).unwrap();
        sagas.once(&sick, &Scope::single_tenant(), &key, &n).await.unwrap()
    };
    let begin = tokio::time::Instant::now();
    let (first, second) = tokio::join!(once(1), async {
        let second = once(2).await;
        let took = begin.elapsed();
        gate.opens.add_permits(1);
        (second, took)
    });
    assert_eq!(first, SagaEnd::Completed(1), "its call was under way, and it happened in time or after");
    assert!(
        matches!(second.0, SagaEnd::Undone { cause: semel::saga::UndoCause::Deadline, .. }),
        "{second:?}"
    );
    assert!(second.1 < Duration::from_secs(70), "{second:?}");
    assert_eq!(gate.calls.load(std::sync::atomic::Ordering::SeqCst), 1);
}

/// While a kind is full, a saga in the journal that has to be undone does not wait until a call ends.
#[tokio::test(start_paused = true)]
async fn a_deadline_passes_while_a_saga_waits_in_the_journal() {
    let gate = Gate { opens: Arc::new(Semaphore::new(0)), calls: Arc::default() };
    let mut builder = SagasBuilder::new(journal(), gate.clone()).options(options());
    let one = || Sick { concurrent: Some(1) };
    let patient = builder.register(Definition::new("patient", 1, sick).step(one())).unwrap();
    let hasty = Definition::new("hasty", 1, sick).step(one()).deadline(Duration::from_secs(60));
    let hasty = builder.register(hasty).unwrap();
    let sagas = builder.start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    // One is called, and one waits for it: there is no room for more.
    for n in 1..=2 {
        let key = Key::new(format!("patient-{n}")).unwrap();
        sagas.submit(&patient, &Scope::single_tenant(), &key, &n).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let begin = tokio::time::Instant::now();
    let end = sagas.once(&hasty, &Scope::single_tenant(), &Key::new("hasty").unwrap(), &3).await;
    assert!(matches!(end, Ok(SagaEnd::Undone { cause: UndoCause::Deadline, .. })), "{end:?}");
    assert!(begin.elapsed() < Duration::from_secs(75), "{:?}", begin.elapsed());
    assert_eq!(gate.calls.load(std::sync::atomic::Ordering::SeqCst), 1);
}
