//! What the tasks of one process share: the journal with its retries, the worker's lease, and who waits for an end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, RwLock, Semaphore, oneshot, watch};
use tokio::time::Instant;

use super::definition::AnyDefinition;
use super::entry::NewEntry;
use super::journal::{
    Answering, AtomicEnd, AtomicWork, DefinitionId, Journal, Loaded, SagaChange, SagaChanged, SagaNumber,
    SagaRecord,
};
use super::limits::StepLimits;
use super::metrics::SagaMetrics;
use super::options::SagaOptions;
use super::run::{Left, Ran};
use super::state::{SagaRow, WorkerId};
use super::step::StepError;
use crate::backoff::Backoff;
use crate::guard::Spawn;
use crate::store::ErrorKind;

/// Between two tries of a request to the journal.
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2)).jitter(0.2);

/// Moments that are remembered; what is due at others waits for the next poll.
const DUES_MAX: usize = 10_000;

/// How much longer than its answer was waited for a request may still be carried out.
const CARRIED_OUT_LATE: Duration = Duration::from_secs(5);

/// A request whose answer was lost may still be carried out.
#[derive(Clone, Copy)]
struct Doubt {
    until: Instant,
    /// What it did since was not looked for.
    is_new: bool,
}

/// Who waits for an end, by saga.
type Waiting = HashMap<SagaNumber, Vec<oneshot::Sender<EndReport>>>;

/// What became of a saga; with the saga as it ended here, if it did.
pub(super) type EndReport = (Left, Option<Arc<SagaRecord>>);

pub(super) struct Engine<App: ?Sized> {
    pub(super) journal: Arc<dyn Journal>,
    pub(super) app: Arc<App>,
    pub(super) definitions: BTreeMap<String, Arc<dyn AnyDefinition<App>>>,
    pub(super) options: SagaOptions,
    pub(super) spawner: Arc<dyn Spawn>,
    pub(super) lease: Lease,
    /// Sagas at work.
    pub(super) running: Arc<Semaphore>,
    pub(super) limits: StepLimits,
    pub(super) metrics: SagaMetrics,
    /// Somebody exports the metrics.
    pub(super) is_observed: bool,
    /// Why this process takes no sagas any more: it had one that it cannot read.
    pub(super) unreadable: OnceLock<String>,
    /// Nothing new begins.
    pub(super) stopping: watch::Sender<bool>,
    /// The worker leaves.
    pub(super) stopped: watch::Sender<bool>,
    /// Something may be due earlier than the next poll.
    pub(super) woken: Notify,
    /// When sagas that this process let go of are due.
    dues: Mutex<BinaryHeap<Reverse<Instant>>>,
    /// Tasks of this process, by saga.
    at_work: Mutex<HashMap<SagaNumber, u32>>,
    /// Held for writing while the journal is compared with `at_work`, for reading from a request that gives this worker
    /// a saga until the saga is in `at_work`.
    pub(super) handing_over: RwLock<()>,
    /// An answer was lost: this worker may have sagas that it does not know.
    in_doubt: Mutex<Option<Doubt>>,
    waiting: Mutex<Waiting>,
}

impl<App: Send + Sync + ?Sized + 'static> Engine<App> {
    pub(super) fn new(
        journal: Arc<dyn Journal>,
        app: Arc<App>,
        definitions: BTreeMap<String, Arc<dyn AnyDefinition<App>>>,
        options: SagaOptions,
        spawner: Arc<dyn Spawn>,
        metrics: Option<SagaMetrics>,
    ) -> Self {
        let steps = definitions.values().flat_map(|definition| definition.steps());
        let limits = StepLimits::new(steps.map(|step| step.spec()), options.running_max);
        let is_observed = metrics.is_some();
        let metrics = metrics.unwrap_or_default();
        definitions.keys().for_each(|name| metrics.declare(name));
        Self {
            journal,
            app,
            definitions,
            limits,
            metrics,
            is_observed,
            unreadable: OnceLock::new(),
            running: Arc::new(Semaphore::new(options.running_max.clamp(1, Semaphore::MAX_PERMITS))),
            lease: Lease::new(options.lease_margin),
            options,
            spawner,
            stopping: watch::channel(false).0,
            stopped: watch::channel(false).0,
            woken: Notify::new(),
            dues: Mutex::default(),
            at_work: Mutex::default(),
            handing_over: RwLock::default(),
            in_doubt: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawner.spawn(Box::pin(task));
    }

    pub(super) fn definition(&self, name: &str) -> Option<Arc<dyn AnyDefinition<App>>> {
        self.definitions.get(name).cloned()
    }

    /// What this process takes, with the names of the steps.
    pub(super) fn definitions_with_steps(&self) -> Vec<(DefinitionId, Vec<&'static str>)> {
        let of = |definition: &Arc<dyn AnyDefinition<App>>| {
            let id = DefinitionId { name: definition.name().to_owned(), version: definition.version() };
            (id, definition.steps().into_iter().map(|step| step.spec().name).collect())
        };
        self.definitions.values().map(of).collect()
    }

    /// Reads a saga that this worker has, with this row; tried for as long as its lease lasts. One that cannot be opened
    /// here is let go of for a while: another process may have the right key.
    pub(super) async fn load(&self, number: SagaNumber, row: SagaRow) -> Option<Loaded> {
        match self.persist("read a saga", || self.journal.load(number)).await {
            Ok(loaded) => loaded,
            Err(Unwritten::Corrupt(why)) => {
                self.put_off(number, row, &why).await;
                None
            }
            Err(_) => None,
        }
    }

    /// Changes a saga; tried for as long as a lease lasts.
    pub(super) async fn change(
        &self,
        number: SagaNumber,
        change: SagaChange,
    ) -> Result<SagaChanged, Unwritten> {
        self.persist("record a saga's progress", || self.journal.change(number, change.clone())).await
    }

    /// Runs an atomic step; tried again for as long as the journal says that nothing was committed. `None`: no answer in
    /// time, or not known.
    pub(super) async fn atomic(
        &self,
        number: SagaNumber,
        change: SagaChange,
        done: NewEntry,
        work: Arc<dyn AtomicWork>,
        limit: Duration,
    ) -> Option<AtomicEnd> {
        let until = Instant::now() + limit;
        for attempt in 0.. {
            let asked = self.journal.atomic(number, change.clone(), done.clone(), Arc::clone(&work));
            match tokio::time::timeout_at(until, asked).await {
                Ok(Ok(end)) => return Some(end),
                Ok(Err(error)) => {
                    tracing::warn!(%error, number = number.0, "an atomic step of a saga was not committed; it is tried again");
                    match error.kind() {
                        // Another entry has its number: somebody else goes on with the saga.
                        ErrorKind::Corrupt | ErrorKind::Closed => return Some(AtomicEnd::Lost),
                        ErrorKind::TooLarge | ErrorKind::Misconfigured => {
                            return Some(AtomicEnd::Failed(StepError::not_applied(error)));
                        }
                        _ => {}
                    }
                }
                Err(_) => return None,
            }
            let retry = Instant::now() + RETRY.delay(attempt);
            if retry >= until {
                return None;
            }
            tokio::time::sleep_until(retry).await;
        }
        None
    }

    pub(super) async fn persist<'a, T>(
        &self,
        what: &str,
        mut ask: impl FnMut() -> Answering<'a, T>,
    ) -> Result<T, Unwritten> {
        let until = Instant::now() + self.options.lease;
        for attempt in 0.. {
            if !self.lease.holds() || Instant::now() >= until {
                return Err(Unwritten::NoAnswer);
            }
            let answer = tokio::time::timeout(self.options.journal_timeout, ask()).await;
            match answer {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "could not {what}; it is tried again for as long as a lease lasts");
                    match error.kind() {
                        ErrorKind::TooLarge | ErrorKind::Misconfigured => {
                            return Err(Unwritten::Refused(error.to_string()));
                        }
                        ErrorKind::Corrupt => return Err(Unwritten::Corrupt(error.to_string())),
                        ErrorKind::Closed => return Err(Unwritten::NoAnswer),
                        _ => {}
                    }
                }
                Err(_) => tracing::warn!("could not {what}: no answer from the journal; it is tried again"),
            }
            tokio::time::sleep(RETRY.delay(attempt)).await;
        }
        Err(Unwritten::NoAnswer)
    }

    /// Nothing new begins any more.
    pub(super) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Remembers when a saga is due again, so that it does not wait for the next poll.
    pub(super) fn due_in(&self, time: Duration) {
        let mut dues = self.dues.lock().unwrap_or_else(PoisonError::into_inner);
        if dues.len() < DUES_MAX {
            dues.push(Reverse(Instant::now() + time));
            drop(dues);
            self.woken.notify_one();
        }
    }

    /// The next moment something is due. What is past is forgotten.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let mut dues = self.dues.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        while dues.peek().is_some_and(|Reverse(due)| *due <= now) {
            dues.pop();
        }
        dues.peek().map(|Reverse(due)| *due)
    }

    /// An answer was lost by which this worker may have sagas: they are looked for until it is certain.
    pub(super) fn doubts(&self) {
        let until = Instant::now() + self.options.journal_timeout + CARRIED_OUT_LATE;
        let mut in_doubt = self.in_doubt.lock().unwrap_or_else(PoisonError::into_inner);
        *in_doubt = Some(Doubt { until, is_new: true });
    }

    /// Whether to look now for sagas that this worker may have: at once, with each poll, and once more at the end. `since`:
    /// how long ago it looked last.
    pub(super) fn looks_for_lost(&self, since: Duration) -> bool {
        let mut in_doubt = self.in_doubt.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(doubt) = *in_doubt else { return false };
        let is_over = Instant::now() >= doubt.until;
        *in_doubt = (!is_over).then_some(Doubt { is_new: false, ..doubt });
        is_over || doubt.is_new || since >= self.options.poll_interval / 2
    }

    fn at_work(&self) -> MutexGuard<'_, HashMap<SagaNumber, u32>> {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn task_begins(&self, number: SagaNumber) {
        *self.at_work().entry(number).or_default() += 1;
    }

    pub(super) fn task_ends(&self, number: SagaNumber) {
        let mut at_work = self.at_work();
        if let Some(tasks) = at_work.get_mut(&number) {
            *tasks -= 1;
            if *tasks == 0 {
                at_work.remove(&number);
            }
        }
    }

    pub(super) fn is_at_work(&self, number: SagaNumber) -> bool {
        self.at_work().contains_key(&number)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is notified when this process leaves the saga. Ask the journal after this call: earlier changes are not reported.
    pub(super) fn wait_for(self: &Arc<Self>, number: SagaNumber) -> Waiter<App> {
        let (notify, left) = oneshot::channel();
        self.waiting().entry(number).or_default().push(notify);
        Waiter { engine: Arc::clone(self), number, left }
    }

    /// How many sagas somebody waits for.
    #[cfg(feature = "fault-injection")]
    pub(super) fn waited_for(&self) -> usize {
        self.waiting().len()
    }

    /// Tells those who wait for it.
    pub(super) fn left(&self, number: SagaNumber, ran: Ran) {
        let Ran { left, ended, .. } = ran;
        if let Left::Waits(_) | Left::Lost = left {
            return;
        }
        let waiters = self.waiting().remove(&number).unwrap_or_default();
        let ended = ended.map(Arc::new);
        for waiting in waiters {
            let _ = waiting.send((left, ended.clone()));
        }
    }
}

/// Why something is not in the journal.
pub(super) enum Unwritten {
    /// It is not known: the next worker reads it.
    NoAnswer,
    /// The journal will never take it.
    Refused(String),
    /// What the journal has cannot be read, or does not fit.
    Corrupt(String),
}

/// Somebody waits for an end. Dropped, it is forgotten.
pub(super) struct Waiter<App: Send + Sync + ?Sized + 'static> {
    engine: Arc<Engine<App>>,
    number: SagaNumber,
    left: oneshot::Receiver<EndReport>,
}

impl<App: Send + Sync + ?Sized + 'static> Waiter<App> {
    pub(super) async fn left(&mut self) -> Option<EndReport> {
        (&mut self.left).await.ok()
    }
}

impl<App: Send + Sync + ?Sized + 'static> Drop for Waiter<App> {
    fn drop(&mut self) {
        self.left.close();
        let mut waiting = self.engine.waiting();
        if let Some(of_saga) = waiting.get_mut(&self.number) {
            of_saga.retain(|other| !other.is_closed());
            if of_saga.is_empty() {
                waiting.remove(&self.number);
            }
        }
    }
}

/// The lease of this process's worker, as this process knows it: from before its renewal was sent.
pub(super) struct Lease {
    held: watch::Sender<Option<(WorkerId, Instant)>>,
    margin: Duration,
}

impl Lease {
    fn new(margin: Duration) -> Self {
        Self { held: watch::channel(None).0, margin }
    }

    pub(super) fn set(&self, held: Option<(WorkerId, Instant)>) {
        self.held.send_replace(held);
    }

    pub(super) fn worker(&self) -> Option<WorkerId> {
        self.held.borrow().filter(|(_, until)| Instant::now() < *until).map(|(worker, _)| worker)
    }

    fn holds(&self) -> bool {
        self.worker().is_some()
    }

    /// Waits until the lease of this worker lasts longer than `time` and the margin. `false`: it is lost.
    pub(super) async fn lasts(&self, of: WorkerId, time: Duration) -> bool {
        let mut held = self.held.subscribe();
        loop {
            let lease = *held.borrow_and_update();
            match lease {
                Some((worker, until)) if worker == of => {
                    let now = Instant::now();
                    if now >= until {
                        return false;
                    }
                    if until > now + time + self.margin {
                        return true;
                    }
                    // Renewed in a moment, or over.
                    let _ = tokio::time::timeout_at(until, held.changed()).await;
                }
                _ => return false,
            }
        }
    }

    /// Until this worker's lease is lost.
    pub(super) async fn lost(&self, of: WorkerId) {
        let mut held = self.held.subscribe();
        loop {
            let lease = *held.borrow_and_update();
            match lease {
                Some((worker, until)) if worker == of && Instant::now() < until => {
                    let _ = tokio::time::timeout_at(until, held.changed()).await;
                }
                _ => return,
            }
        }
    }
}
