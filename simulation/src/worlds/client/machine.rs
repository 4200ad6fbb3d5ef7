//! The clients' machine: its wall clock, its disk with the journal, its processes.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderName;
use semel::guard::Spawn;
use semel::http::client::durable::{Disk, DurableClient, MemoryFile};
use semel::http::client::{IdempotentClient, RetryLayer, RetryPolicy};
use semel::store::Fate;
use tower_layer::Layer;

use super::network::Network;
use super::plan::Settings;
use super::scene::{Scene, TENANT};
use crate::process::Process;
use crate::stage::Stage;

/// Intents taken up by one `resume`.
const RESUMED_MAX: usize = 100;

/// A set-back of this much is noticed even while no process runs: the file is further ahead than any pause.
const SURELY_NOTICED_MS: i64 = 30 * 24 * 3_600 * 1_000;

/// One client process.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) process: Process,
    pub(super) durable: DurableClient<Network>,
    pub(super) plain: IdempotentClient<Network>,
}

/// What the disk does, and until when.
#[derive(Clone, Copy, Default)]
struct DiskState {
    until: Duration,
    disk: Disk,
}

/// The machine.
pub(super) struct Machine {
    clients: Mutex<Vec<Option<Client>>>,
    file: Mutex<Option<MemoryFile>>,
    disk: Arc<Mutex<DiskState>>,
    network_down_until: Mutex<Duration>,
    clock_is_off_by_ms: Arc<AtomicI64>,
    /// Of a clock that waits, where that is planted.
    latest_ms: Arc<AtomicI64>,
    set_backs: AtomicU32,
    unnoticed_set_backs: AtomicU32,
    /// The clock was set back since the journal was last written: so far it is noticed in memory only.
    set_back_in_memory: Arc<AtomicBool>,
    forward_jumps: AtomicU32,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    pub(super) fn new(processes: usize) -> Self {
        Self {
            clients: Mutex::new((0..processes).map(|_| None).collect()),
            file: Mutex::default(),
            disk: Arc::default(),
            network_down_until: Mutex::default(),
            clock_is_off_by_ms: Arc::default(),
            latest_ms: Arc::default(),
            set_backs: AtomicU32::new(0),
            unnoticed_set_backs: AtomicU32::new(0),
            set_back_in_memory: Arc::default(),
            forward_jumps: AtomicU32::new(0),
        }
    }

    /// What the machine takes for the time.
    pub(super) fn wall(&self, stage: &Stage) -> SystemTime {
        wall(stage, &self.clock_is_off_by_ms)
    }

    /// How often the clock was set back, and how often of these while no process ran that could have noticed, or none that
    /// lived to write it down.
    pub(super) fn set_backs(&self) -> (u32, u32) {
        (self.set_backs.load(Ordering::Relaxed), self.unnoticed_set_backs.load(Ordering::Relaxed))
    }

    /// How often the clock jumped ahead.
    pub(super) fn forward_jumps(&self) -> u32 {
        self.forward_jumps.load(Ordering::Relaxed)
    }

    pub(super) fn is_network_down(&self, stage: &Stage) -> bool {
        stage.elapsed() < *locked(&self.network_down_until)
    }

    pub(super) fn network_down(&self, until: Duration) {
        *locked(&self.network_down_until) = until;
    }

    pub(super) fn disk(&self, until: Duration, disk: Disk) {
        *locked(&self.disk) = DiskState { until, disk };
    }

    /// A running process, this one if it runs.
    pub(super) fn client(&self, process: usize) -> Option<(usize, Client)> {
        let clients = locked(&self.clients);
        let process = process % clients.len();
        let order = (process..clients.len()).chain(0..process);
        order.into_iter().find_map(|process| Some((process, clients[process].clone()?)))
    }

    pub(super) fn is_running(&self, process: usize) -> bool {
        locked(&self.clients)[process].is_some()
    }

    /// Whether it was running.
    pub(super) fn kill(&self, process: usize) -> bool {
        let mut clients = locked(&self.clients);
        let Some(client) = clients[process].take() else { return false };
        client.process.kill();
        if clients.iter().all(Option::is_none) && self.set_back_in_memory.swap(false, Ordering::Relaxed) {
            self.unnoticed_set_backs.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    pub(super) fn wake_all(&self) {
        locked(&self.clients).iter().flatten().for_each(|client| client.process.resume());
    }

    /// Nothing runs any more, so that the file can be read as it is.
    pub(super) fn stall_all(&self) {
        locked(&self.clients).iter().flatten().for_each(|client| client.process.stall());
    }

    /// Lets go of everything. What a killed process held is never dropped, so the file is closed under it.
    pub(super) fn end(&self) {
        locked(&self.clients).clear();
        if let Some(file) = locked(&self.file).take() {
            file.close();
        }
    }
}

fn wall(stage: &Stage, off_by_ms: &AtomicI64) -> SystemTime {
    let off_by_ms = off_by_ms.load(Ordering::Relaxed);
    let span = Duration::from_millis(off_by_ms.unsigned_abs());
    match off_by_ms {
        0.. => stage.wall() + span,
        _ => stage.wall() - span,
    }
}

pub(super) fn policy(settings: &Settings) -> RetryPolicy {
    let ms = Duration::from_millis;
    RetryPolicy::default()
        .attempts_max(settings.attempts_max)
        .time_max(ms(settings.time_max_ms))
        .attempt_timeout(ms(settings.attempt_timeout_ms))
        .backoff(ms(settings.backoff_max_ms.min(200)), ms(settings.backoff_max_ms))
        .retention(ms(settings.retention_ms))
        .answer_bytes_max(settings.answer_bytes_max)
}

impl Scene {
    /// The clock jumps by this much.
    pub(super) fn clock_jumps(&self, by_ms: i64) {
        let machine = &self.machine;
        if by_ms == 0 {
            return;
        }
        let runs = locked(&machine.clients).iter().any(Option::is_some);
        machine.clock_is_off_by_ms.fetch_add(by_ms, Ordering::Relaxed);
        if by_ms < 0 {
            machine.set_backs.fetch_add(1, Ordering::Relaxed);
            let unnoticed = !runs && by_ms > -SURELY_NOTICED_MS;
            machine.unnoticed_set_backs.fetch_add(u32::from(unnoticed), Ordering::Relaxed);
            machine.set_back_in_memory.store(runs && by_ms > -SURELY_NOTICED_MS, Ordering::Relaxed);
            self.stage.count("clock set back", 1);
        } else {
            machine.forward_jumps.fetch_add(1, Ordering::Relaxed);
            self.stage.count("clock jumps ahead", 1);
        }
        self.stage.trace(format_args!("the clients' wall clock jumps by {by_ms} ms"));
    }

    /// The clock is right again.
    pub(super) fn clock_is_set_right(&self) {
        self.clock_jumps(-self.machine.clock_is_off_by_ms.load(Ordering::Relaxed));
    }

    /// The journal's file: the same one for every process.
    fn file(&self) -> MemoryFile {
        let mut file = locked(&self.machine.file);
        let (state, stage) = (Arc::clone(&self.machine.disk), self.stage.clone());
        let takes = Duration::from_millis(self.plan.settings.disk_takes_ms);
        let set_back_in_memory = Arc::clone(&self.machine.set_back_in_memory);
        let disk = move || {
            let DiskState { until, disk } = *locked(&state);
            let works = stage.elapsed() >= until;
            if works {
                set_back_in_memory.store(false, Ordering::Relaxed);
                return slow(takes);
            }
            stage.count("commits on a bad disk", 1);
            disk
        };
        file.get_or_insert_with(|| MemoryFile::new(disk).expect("SQLite has memory")).clone()
    }

    /// The clients of one process.
    pub(super) fn clients(
        self: &Arc<Self>,
        process: usize,
        closed: bool,
    ) -> (DurableClient<Network>, IdempotentClient<Network>) {
        let settings = &self.plan.settings;
        let network = Network { scene: Arc::clone(self), process, closed };
        let (stage, off_by_ms) = (self.stage.clone(), Arc::clone(&self.machine.clock_is_off_by_ms));
        let now = move || wall(&stage, &off_by_ms);
        let plain = RetryLayer::new(policy(settings)).wall_clock(now.clone()).layer(network);
        let now_ms = move || now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
        let waits = self.stage.has("clock-that-waits");
        let latest_ms = Arc::clone(&self.machine.latest_ms);
        let now_ms = move || match waits {
            true => latest_ms.fetch_max(now_ms(), Ordering::Relaxed).max(now_ms()),
            false => now_ms(),
        };
        let scene = Arc::downgrade(self);
        let durable = DurableClient::builder(plain.clone())
            .store_headers([HeaderName::from_static("x-tenant-id")])
            .with_credentials(move |_, headers| {
                let token = scene.upgrade().map(|scene| scene.token(process));
                if let Some(Ok(token)) = token.map(|token| token.parse()) {
                    headers.insert("authorization", token);
                }
            })
            .lease(Duration::from_millis(settings.journal_lease_ms))
            .clock(now_ms);
        let durable = if waits { durable.steady_clock(|| Duration::ZERO) } else { durable };
        (durable.open_in_memory(&self.file()).expect("a journal in memory opens"), plain)
    }

    /// What the process authenticates with. It changes every minute.
    pub(super) fn token(&self, process: usize) -> String {
        format!("{TENANT}-{process}-{}", self.stage.elapsed().as_secs() / 60)
    }

    /// Starts a process, which resumes what is open: at once, and every now and then.
    pub(super) fn start_client(self: &Arc<Self>, process: usize) {
        if self.machine.is_running(process) {
            return;
        }
        if self.stage.has("journal-on-a-scratch-disk") {
            *locked(&self.machine.file) = None;
        }
        let (durable, plain) = self.clients(process, false);
        let client = Client { process: Process::default(), durable: durable.clone(), plain };
        self.stage.trace(format_args!("process {process} starts"));
        if !self.stage.has("never-resumed") {
            client.process.spawn(Box::pin(resume(Arc::clone(self), process, durable)));
        }
        locked(&self.machine.clients)[process] = Some(client);
    }

    /// Kills a process.
    pub(super) fn kill_client(&self, process: usize) {
        if self.machine.kill(process) {
            self.stage.count("client crashes", 1);
            self.stage.trace(format_args!("process {process} is killed"));
        }
    }

    /// Stops a process, as SIGSTOP does.
    pub(super) fn stall_client(&self, process: usize) -> Option<Process> {
        let client = locked(&self.machine.clients)[process].clone()?;
        client.process.stall();
        self.stage.count("client stalls", 1);
        self.stage.trace(format_args!("process {process} stands still"));
        Some(client.process)
    }
}

async fn resume(scene: Arc<Scene>, process: usize, client: DurableClient<Network>) {
    let every = Duration::from_millis(scene.plan.settings.resume_every_ms);
    loop {
        match client.resume(RESUMED_MAX).await {
            Ok(resumed) => {
                for resumed in resumed.ended {
                    let Some(intent) = scene.intent_of(&resumed.key) else { continue };
                    scene.stage.count("resumed", 1);
                    scene.stage.trace(format_args!(
                        "intent {intent}: process {process} resumed it: {:?}",
                        resumed.end
                    ));
                    scene.was_resumed(intent, resumed.end).await;
                }
            }
            Err(error) => scene.stage.trace(format_args!("process {process} could not resume: {error}")),
        }
        tokio::time::sleep(every).await;
    }
}

/// What a simulated disk does to a commit that fails.
pub(super) fn failing(in_doubt: bool) -> Disk {
    let fate = if in_doubt { Fate::InDoubt } else { Fate::NotApplied };
    Disk { fails: Some(fate), ..Disk::default() }
}

/// A disk that takes that long.
pub(super) fn slow(takes: Duration) -> Disk {
    Disk { before: takes / 2, after: takes / 2, fails: None }
}
