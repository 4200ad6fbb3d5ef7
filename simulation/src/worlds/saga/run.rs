//! Plays a plan.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel::guard::Spawn;
use semel::saga::memory::MemoryJournal;
use semel::saga::{
    Journal, Loaded, Registered, RowAnswer, SagaEnd, SagaError, SagaFilter, SagaOptions, Sagas, SagasBuilder,
    Status,
};
use semel::{Key, Scope, StoreTime};
use tokio::sync::oneshot;

use super::bugs;
use super::laws;
use super::line::Line;
use super::network::Network;
use super::plan::{Fault, FaultKind, LEASE_MARGIN_MS, Plan};
use super::steps;
use crate::process::Process;
use crate::stage::Stage;
use crate::world::Violation;

/// A client waits so long for one answer, and then asks another process.
const CLIENT_WAITS: Duration = Duration::from_secs(10);

/// What a client of a saga got in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Got {
    Completed(u32),
    Undone,
    Abandoned,
}

/// One process.
struct Running {
    process: Process,
    sagas: Sagas<Network>,
    registered: Vec<Registered<u32, u32>>,
}

struct Fleet {
    stage: Stage,
    plan: Arc<Plan>,
    network: Network,
    journal: MemoryJournal,
    running: std::sync::Mutex<Vec<Option<Arc<Running>>>>,
    /// Processes started until now.
    starts: AtomicUsize,
    /// Sagas whose cancel was recorded before their pivot began.
    cancelled: std::sync::Mutex<BTreeSet<usize>>,
}

pub(super) async fn play(plan: &Plan, stage: &Stage) -> Result<(), Violation> {
    let plan = Arc::new(plan.clone());
    let network = Network::new(stage.clone(), Arc::clone(&plan));
    let clock = stage.clone();
    let journal =
        MemoryJournal::with_clock(move || StoreTime(1_000_000 + clock.elapsed().as_millis() as u64))
            .deciding_with(bugs::decider(|bug| stage.has(bug)))
            .forgetting_done(stage.has("an atomic step does not look for its own result"));
    let fleet = Arc::new(Fleet {
        stage: stage.clone(),
        plan: Arc::clone(&plan),
        network,
        journal,
        running: std::sync::Mutex::new((0..plan.settings.workers).map(|_| None).collect()),
        starts: AtomicUsize::new(0),
        cancelled: std::sync::Mutex::default(),
    });
    for worker in 0..plan.settings.workers {
        fleet.start(worker);
    }
    let faults: Vec<_> =
        plan.faults.iter().map(|fault| tokio::spawn(Arc::clone(&fleet).fault(*fault))).collect();
    let clients: Vec<_> =
        (0..plan.sagas.len()).map(|saga| tokio::spawn(Arc::clone(&fleet).client(saga))).collect();
    let others: Vec<_> =
        (0..plan.sagas.len()).map(|saga| tokio::spawn(Arc::clone(&fleet).tell(saga))).collect();
    for fault in faults.into_iter().chain(others) {
        let _ = fault.await;
    }
    let calm = stage.elapsed();
    let bound = laws::bound(&plan);
    let until = tokio::time::Instant::now() + bound;
    let mut got = Vec::new();
    for client in clients {
        got.push(tokio::time::timeout_at(until, client).await.ok().and_then(Result::ok));
    }
    // Sagas whose client is content may still be under way elsewhere only if their end was seen; others have until then.
    while tokio::time::Instant::now() < until && !fleet.is_quiet().await {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    // Nothing runs by itself from here on: also not a while later.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let loaded = fleet.loaded().await;
    for one in fleet.running().iter().flatten() {
        one.process.kill();
    }
    stage.trace(format_args!("calm since {calm:?}"));
    laws::judge(&plan, stage, &fleet.network, &loaded, &fleet.journal.events(), &got)?;
    let cancelled = fleet.cancelled.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    laws::cancelled(&cancelled, &loaded)
}

impl Fleet {
    fn running(&self) -> std::sync::MutexGuard<'_, Vec<Option<Arc<Running>>>> {
        self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, worker: usize) {
        let settings = &self.plan.settings;
        let process = Process::default();
        let line = Line {
            journal: self.journal.clone(),
            network: self.network.clone(),
            worker,
            requests: Arc::default(),
        };
        let mut options = SagaOptions::default();
        options.running_max = settings.running_max;
        options.lease = Duration::from_millis(settings.lease_ms);
        options.lease_margin = Duration::from_millis(LEASE_MARGIN_MS);
        options.poll_interval = Duration::from_millis(settings.poll_ms);
        options.journal_timeout = Duration::from_secs(1);
        options.wait = CLIENT_WAITS;
        let network = self.network.of_process(self.starts.fetch_add(1, Ordering::Relaxed));
        let mut builder = SagasBuilder::new(line, network).options(options).spawner(process.clone());
        let definitions = (0..self.plan.sagas.len()).map(|saga| steps::definition(&self.network, saga));
        let registered = definitions.map(|definition| builder.register(definition));
        let registered: Vec<_> = registered.map(|one| one.expect("the names are valid")).collect();
        self.stage.trace(format_args!("worker {worker} starts"));
        let sagas = builder.start();
        self.running()[worker] = Some(Arc::new(Running { process, sagas, registered }));
    }

    async fn fault(self: Arc<Self>, fault: Fault) {
        tokio::time::sleep(Duration::from_millis(fault.at_ms)).await;
        let length = Duration::from_millis(fault.for_ms);
        let running = self.running()[fault.worker].clone();
        match fault.kind {
            FaultKind::Kill => {
                if let Some(running) = self.running()[fault.worker].take() {
                    self.stage.count("kills", 1);
                    self.stage.trace(format_args!("worker {} is killed", fault.worker));
                    running.process.kill();
                }
                tokio::time::sleep(length).await;
                self.start_if_down(fault.worker);
            }
            FaultKind::Stall => {
                let Some(running) = running else { return };
                self.stage.count("stalls", 1);
                self.stage.trace(format_args!("worker {} stalls", fault.worker));
                running.process.stall();
                tokio::time::sleep(length).await;
                self.stage.trace(format_args!("worker {} goes on", fault.worker));
                running.process.resume();
            }
            FaultKind::Drain => {
                let Some(running) = self.running()[fault.worker].take() else { return };
                self.stage.count("drains", 1);
                self.stage.trace(format_args!("worker {} drains", fault.worker));
                let (drained, sagas) = (oneshot::channel(), running.sagas.clone());
                let stage = self.stage.clone();
                running.process.spawn(Box::pin(async move {
                    let left = sagas.drain(length).await;
                    stage.count("drained clean", u64::from(left == 0));
                    let _ = drained.0.send(());
                }));
                let _ = tokio::time::timeout(length + Duration::from_secs(1), drained.1).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
                running.process.kill();
                self.start_if_down(fault.worker);
            }
            FaultKind::JournalDown | FaultKind::AnswersLost | FaultKind::JournalHangs | FaultKind::CutOff => {
                tokio::time::sleep(length).await;
            }
        }
    }

    /// Another fault may have started it already.
    fn start_if_down(self: &Arc<Self>, worker: usize) {
        if self.running()[worker].is_none() {
            self.start(worker);
        }
    }

    /// Asks one process after the other until there is an end.
    async fn client(self: Arc<Self>, saga: usize) -> Got {
        tokio::time::sleep(Duration::from_millis(self.plan.sagas[saga].begins_ms)).await;
        let (tenant, key) = (scope(), Key::new(format!("key-{saga}")).expect("a valid key"));
        for attempt in 0.. {
            let worker = (saga + attempt) % self.plan.settings.workers;
            let running = self.running()[worker].clone();
            if let Some(running) = running {
                let (answered, answer) = oneshot::channel();
                let (tenant, key) = (tenant.clone(), key.clone());
                let (sagas, registered) = (running.sagas.clone(), running.registered[saga].clone());
                running.process.spawn(Box::pin(async move {
                    let input = u32::try_from(saga).unwrap_or_default();
                    let _ = answered.send(sagas.once(&registered, &tenant, &key, &input).await);
                }));
                let answer = tokio::time::timeout(CLIENT_WAITS + Duration::from_secs(5), answer).await;
                match answer {
                    Ok(Ok(Ok(end))) => {
                        self.stage.trace(format_args!("client {saga} gets {end:?}"));
                        return match end {
                            SagaEnd::Completed(value) => Got::Completed(value),
                            SagaEnd::Undone { .. } => Got::Undone,
                            SagaEnd::Abandoned => Got::Abandoned,
                        };
                    }
                    Ok(Ok(Err(SagaError::Parked { reason, .. }))) => {
                        self.stage.trace(format_args!("client {saga}: parked, {}", reason.as_str()));
                    }
                    _ => {}
                }
            }
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        Got::Abandoned
    }

    /// Signals and cancels, by a person whose own line to the journal is fine.
    async fn tell(self: Arc<Self>, saga: usize) {
        let plan = &self.plan.sagas[saga];
        let (mut signal, mut cancel) = (plan.signal_ms, plan.cancel_ms);
        while let Some(at) = [signal, cancel].into_iter().flatten().min() {
            let now = self.stage.elapsed().as_millis() as u64;
            tokio::time::sleep(Duration::from_millis(at.saturating_sub(now))).await;
            let found = self
                .journal
                .list(SagaFilter { name: Some(steps::name(saga)), ..SagaFilter::default() })
                .await;
            let number = found.ok().and_then(|found| found.first().map(|record| record.number));
            let is_signal = signal == Some(at);
            if let Some(number) = number {
                if is_signal {
                    let (id, body) = ("s1".to_owned(), bytes::Bytes::from_static(b"1"));
                    let signal = semel::saga::Signal { id, name: "go".to_owned(), body };
                    let answer = self.journal.signal(number, signal).await;
                    self.stage.count("signals", 1);
                    self.stage.trace(format_args!("saga {saga} gets a signal: {answer:?}"));
                } else {
                    let change = semel::saga::SagaChange::of(semel::saga::RowEvent::Cancel);
                    let answer = self.journal.change(number, change).await.map(|changed| changed.answer);
                    self.stage.count("cancels", 1);
                    self.stage.trace(format_args!("saga {saga} is cancelled: {answer:?}"));
                    // Nothing comes between the two: this journal answers at once.
                    let loaded = self.journal.load(number).await.ok().flatten();
                    let begun = loaded.is_some_and(|loaded| {
                        loaded.entries.iter().any(|entry| entry.op == semel::saga::Op::Pivot)
                    });
                    if matches!(answer, Ok(RowAnswer::Done)) && !begun {
                        let mut cancelled =
                            self.cancelled.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        cancelled.insert(saga);
                    }
                }
            }
            if is_signal { signal = None } else { cancel = None }
        }
    }

    async fn loaded(&self) -> Vec<Option<Loaded>> {
        let mut loaded = Vec::new();
        for saga in 0..self.plan.sagas.len() {
            let filter = SagaFilter { name: Some(steps::name(saga)), ..SagaFilter::default() };
            let found = self.journal.list(filter).await.unwrap_or_default();
            loaded.push(match found.first() {
                Some(record) => self.journal.load(record.number).await.ok().flatten(),
                None => None,
            });
        }
        loaded
    }

    /// Every saga has ended, or waits for a person.
    async fn is_quiet(&self) -> bool {
        let quiet = |loaded: &Option<Loaded>| {
            loaded.as_ref().is_some_and(|loaded| {
                let row = &loaded.record.row;
                row.status.is_ended() || (row.status == Status::Parked && row.due_at.is_none())
            })
        };
        self.loaded().await.iter().all(quiet)
    }
}

fn scope() -> Scope {
    Scope::tenant("acme").expect("a valid tenant")
}
