//! A start whose caller goes away, or whose answer is late.

use std::sync::Arc;
use std::time::Duration;

use semel::saga::memory::MemoryJournal;
use semel::saga::{
    Answering, AtomicEnd, AtomicWork, DefinitionId, Journal, Loaded, NewEntry, NewSaga, SagaChange,
    SagaChanged, SagaFilter, SagaNumber, SagaRecord, SagaRow, SagaStarted, SagasBuilder, Signal, Signalled,
    Status, WorkerId,
};
use semel::{IntentId, Key, Scope, StoreTime};
use tokio::sync::Semaphore;

use super::shop::{Shop, definition, journal, options};

/// A start is carried out whether or not its caller waits, after a while; its answer comes when the gate opens.
#[derive(Clone)]
struct LateStarts {
    inner: MemoryJournal,
    carried_out_after: Duration,
    answers: Arc<Semaphore>,
}

impl Journal for LateStarts {
    fn start(&self, saga: NewSaga) -> Answering<'_, SagaStarted> {
        Box::pin(async move {
            let late = self.clone();
            let started = tokio::spawn(async move {
                tokio::time::sleep(late.carried_out_after).await;
                late.inner.start(saga).await
            });
            self.answers.acquire().await.unwrap().forget();
            started.await.unwrap()
        })
    }

    fn now(&self) -> Answering<'_, StoreTime> {
        self.inner.now()
    }

    fn join(&self, lease_ms: u64) -> Answering<'_, WorkerId> {
        self.inner.join(lease_ms)
    }

    fn renew(&self, worker: WorkerId, lease_ms: u64) -> Answering<'_, bool> {
        self.inner.renew(worker, lease_ms)
    }

    fn leave(&self, worker: WorkerId) -> Answering<'_, ()> {
        self.inner.leave(worker)
    }

    fn change(&self, number: SagaNumber, change: SagaChange) -> Answering<'_, SagaChanged> {
        self.inner.change(number, change)
    }

    fn atomic<'a>(
        &'a self,
        number: SagaNumber,
        change: SagaChange,
        done: NewEntry,
        work: Arc<dyn AtomicWork>,
    ) -> Answering<'a, AtomicEnd> {
        self.inner.atomic(number, change, done, work)
    }

    fn load(&self, number: SagaNumber) -> Answering<'_, Option<Loaded>> {
        self.inner.load(number)
    }

    fn look(&self, number: SagaNumber) -> Answering<'_, Option<SagaRecord>> {
        self.inner.look(number)
    }

    fn find(&self, id: IntentId) -> Answering<'_, Option<SagaRecord>> {
        self.inner.find(id)
    }

    fn take<'a>(
        &'a self,
        worker: WorkerId,
        definitions: &'a [DefinitionId],
        limit: usize,
    ) -> Answering<'a, Vec<(SagaNumber, SagaRow)>> {
        self.inner.take(worker, definitions, limit)
    }

    fn owned(&self, worker: WorkerId) -> Answering<'_, Vec<(SagaNumber, SagaRow)>> {
        self.inner.owned(worker)
    }

    fn signal(&self, number: SagaNumber, signal: Signal) -> Answering<'_, Signalled> {
        self.inner.signal(number, signal)
    }

    fn list(&self, filter: SagaFilter) -> Answering<'_, Vec<SagaRecord>> {
        self.inner.list(filter)
    }

    fn sweep(&self, limit: usize) -> Answering<'_, usize> {
        self.inner.sweep(limit)
    }
}

/// Starts a saga, drops its caller a second later, and says how it is some polls after that.
async fn left_alone(carried_out_after: Duration, answers: usize) -> (Option<Status>, usize) {
    let (inner, shop) = (journal(), Shop::default());
    let late = LateStarts { inner: inner.clone(), carried_out_after, answers: Arc::new(Semaphore::new(0)) };
    let gate = Arc::clone(&late.answers);
    let mut options = options();
    options.lease = Duration::from_secs(3_600);
    let mut builder = SagasBuilder::new(late, shop.clone()).options(options);
    let order = builder.register(definition(false)).unwrap();
    let sagas = builder.start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (tenant, key) = (Scope::single_tenant(), Key::new("k").unwrap());
    let sku = "sku".to_owned();
    let once = sagas.once(&order, &tenant, &key, &sku);
    assert!(tokio::time::timeout(Duration::from_secs(1), once).await.is_err(), "it was answered");
    gate.add_permits(answers);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let found = inner.list(SagaFilter::default()).await.unwrap();
    (found.first().map(|saga| saga.row.status), shop.calls("charge"))
}

/// It does not wait until this worker's sagas are looked through, once per lease.
#[tokio::test(start_paused = true)]
async fn a_saga_whose_caller_went_away_while_it_was_started_runs_at_once() {
    assert_eq!(left_alone(Duration::ZERO, 1).await, (Some(Status::Completed), 1));
}

/// The journal did not answer in time, and carried it out when it had been looked for already.
#[tokio::test(start_paused = true)]
async fn a_start_that_is_carried_out_after_its_timeout_runs_at_once() {
    let timeout = options().journal_timeout;
    assert_eq!(left_alone(timeout + Duration::from_secs(3), 0).await, (Some(Status::Completed), 1));
}
