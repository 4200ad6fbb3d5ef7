//! The fleet: several processes, each with its own guard on the shared store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel::guard::{Guard, Guarded, Limits, Policy, Spawn};
use semel::intent::fingerprint::Recipe;
use semel::observe::Metrics;
use semel::store::faulty::{Call, Fault, Faulty};
use semel::store::memory::MemoryStore;
use semel::{Effect, InFlight, Key, Scope};

use super::judge::{Given, History};
use super::process::Process;
use super::work::Plan;

const WORKERS: usize = 4;
const LEASE: Duration = Duration::from_secs(2);

/// What all of a history shares.
pub(super) struct World {
    pub(super) seed: u64,
    pub(super) calm: bool,
    pub(super) store: MemoryStore,
    pub(super) history: History,
    pub(super) recipe: Recipe,
}

struct Worker {
    process: Process,
    opaque: Guarded<Faulty<MemoryStore>>,
    keyed: Guarded<Faulty<MemoryStore>>,
    stalled: bool,
}

/// The workers, and what is going on in them.
pub(super) struct Fleet {
    world: Arc<World>,
    workers: Vec<Worker>,
    intents: usize,
}

impl Fleet {
    pub(super) fn new(world: &Arc<World>, rng: &mut fastrand::Rng) -> Self {
        let workers = (0..WORKERS).map(|_| worker(world, rng)).collect();
        Self { world: Arc::clone(world), workers, intents: rng.usize(1..8) }
    }

    /// A process dies, and another one starts in its place.
    pub(super) fn crash_one(&mut self, rng: &mut fastrand::Rng) {
        let chosen = rng.usize(0..self.workers.len());
        self.workers[chosen].process.kill();
        self.workers[chosen] = worker(&self.world, rng);
        self.world.history.crashed();
    }

    /// A process stops for a while, or goes on.
    pub(super) fn stall_one(&mut self, rng: &mut fastrand::Rng) {
        let chosen = rng.usize(0..self.workers.len());
        let worker = &mut self.workers[chosen];
        worker.stalled = !worker.stalled;
        if worker.stalled { worker.process.stall() } else { worker.process.resume() }
    }

    pub(super) fn wake_all(&mut self) {
        for worker in &mut self.workers {
            worker.stalled = false;
            worker.process.resume();
        }
    }

    /// Somebody calls: mostly with the right request, sometimes with another one under the same key.
    pub(super) fn call_one(&mut self, rng: &mut fastrand::Rng) {
        let worker = &self.workers[rng.usize(0..self.workers.len())];
        let keyed = rng.bool();
        let guarded = if keyed { worker.keyed.clone() } else { worker.opaque.clone() };
        let name = format!("{}-{}", if keyed { "keyed" } else { "opaque" }, rng.usize(0..self.intents));
        let differs = rng.u32(0..100) < 5;
        let leaves_after = (rng.u32(0..5) == 0).then(|| Duration::from_millis(rng.u64(0..3_000)));
        let (world, process) = (Arc::clone(&self.world), worker.process.clone());
        let its = process.clone();
        let plan = Plan::draw(rng, self.world.calm);
        let effect = if keyed { Effect::Keyed } else { Effect::Opaque };
        // The caller lives in the worker's process: it dies and stalls with it.
        process.spawn(Box::pin(async move {
            let call = call(world, its, guarded, name, differs, plan, effect);
            match leaves_after {
                Some(after) => drop(tokio::time::timeout(after, call).await),
                None => call.await,
            }
        }));
    }

    /// Ends when all work has ended and every outcome is recorded.
    pub(super) async fn settle(&self) {
        for worker in &self.workers {
            let left = worker.opaque.guard().drain(Duration::from_secs(300)).await;
            self.world.history.drained(left.is_clean());
        }
    }
}

async fn call(
    world: Arc<World>,
    process: Process,
    guarded: Guarded<Faulty<MemoryStore>>,
    name: String,
    differs: bool,
    plan: Plan,
    effect: Effect,
) {
    let (Ok(scope), Ok(key)) = (Scope::tenant("acme"), Key::new(name.clone())) else { return };
    let request: &[u8] = if differs { b"another request" } else { b"the request" };
    let fingerprint = world.recipe.bytes(request);
    let theirs = Arc::clone(&world);
    let work = move |attempt| plan.run(theirs, process, effect, attempt);
    let result = guarded.run(guarded.intent(&scope, &key), fingerprint, work).await;
    world.history.given(Given { key: name, differs, result });
}

fn worker(world: &Arc<World>, rng: &mut fastrand::Rng) -> Worker {
    let process = Process::default();
    let (calm, faults) = (world.calm, Mutex::new(rng.fork()));
    let script = move |call| if calm { Fault::None } else { fault(call, &faults) };
    let store = Faulty::new(world.store.clone(), script);
    let guard = Guard::with(store, Limits::default(), Metrics::new(), process.clone());
    let mut policy = Policy::default();
    policy.lease = LEASE;
    policy.in_flight = if rng.bool() { InFlight::Reject } else { InFlight::Wait(Duration::from_secs(5)) };
    let operation = |effect| {
        let mut policy = policy;
        policy.effect = effect;
        let operation = guard.operation("pay").expect("a good name");
        operation.policy(policy).expect("a good policy")
    };
    Worker { opaque: operation(Effect::Opaque), keyed: operation(Effect::Keyed), process, stalled: false }
}

/// A network between the worker and the store, drawn from the worker's own generator.
fn fault(call: Call, rng: &Mutex<fastrand::Rng>) -> Fault {
    let mut rng = rng.lock().unwrap_or_else(PoisonError::into_inner);
    match rng.u32(0..200) {
        0..4 => Fault::Refused,
        4..10 => Fault::AnswerLost,
        10..16 => Fault::RequestLost,
        16..32 => Fault::Slow(Duration::from_millis(rng.u64(0..800))),
        32 if call != Call::Get => Fault::Hangs,
        33 if call != Call::Get => Fault::AnswerHangs,
        _ => Fault::None,
    }
}
