//! The processes, each with its own guard on the shared store, and the calls made to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::guard::{Guard, Guarded, Limits, Policy, Spawn};
use semel::intent::fingerprint::Recipe;
use semel::intent::state::State;
use semel::observe::Metrics;
use semel::recover::{ReconcileLimits, Reconciler, SweepLimits, Sweeper};
use semel::store::{Finish, Record, Store};
use semel::{Effect, Found, InFlight, Intent, Key, KeyFormat, Outcome, Scope, StoreDown, Verdict};

use super::ledger::{Given, Ledger};
use super::network::{Network, Shared};
use super::plan::{LookupPlan, Settings, WhenInFlight, Work};
use super::work::{Worker, large};
use crate::process::Process;
use crate::stage::Stage;

/// How far the clocks that make time-ordered keys may be off.
pub(super) const SKEW_MS: u64 = 500;
/// How often, and how many times, a caller that was answered "accepted" asks for the status.
const STATUS_EVERY: Duration = Duration::from_millis(500);
const STATUS_ASKS: u32 = 10;

/// One process.
pub(super) struct Node {
    pub(super) process: Process,
    opaque: Guarded<Network>,
    keyed: Guarded<Network>,
    network: Network,
}

impl Node {
    /// It cannot reach the store for a while.
    pub(super) fn cut(&self, ms: u64, hangs: bool) {
        self.network.cut(ms, hangs);
    }

    pub(super) fn guard(&self) -> Guard<Network> {
        self.opaque.guard().clone()
    }
}

/// The processes.
pub(super) struct Fleet {
    settings: Settings,
    shared: Arc<Shared>,
    ledger: Ledger,
    stage: Stage,
    recipe: Recipe,
    lookups: Arc<AtomicU32>,
    pub(super) nodes: Vec<Node>,
    /// The key of each number, made when it is first used.
    keys: Vec<Option<Key>>,
}

/// What a caller asks for.
pub(super) struct Ask {
    pub(super) process: usize,
    pub(super) key: usize,
    pub(super) other_request: bool,
    pub(super) work: Work,
    pub(super) leaves: Option<Duration>,
}

impl Fleet {
    pub(super) fn new(settings: &Settings, shared: &Arc<Shared>, ledger: &Ledger, stage: &Stage) -> Self {
        let mut fleet = Self {
            settings: settings.clone(),
            shared: Arc::clone(shared),
            ledger: ledger.clone(),
            stage: stage.clone(),
            recipe: Recipe::default(),
            lookups: Arc::default(),
            nodes: Vec::new(),
            keys: vec![None; settings.keys],
        };
        for process in 0..settings.processes {
            let node = fleet.start(process);
            fleet.nodes.push(node);
        }
        fleet
    }

    /// Kills a process and starts it again.
    pub(super) fn crash(&mut self, at: usize) {
        self.stage.trace(format_args!("process {at} is killed and started again"));
        self.stage.count("crashes", 1);
        self.nodes[at].process.kill();
        self.nodes[at] = self.start(at);
    }

    /// Drains a process, ends it and starts it again.
    pub(super) fn restart(&mut self, at: usize) {
        self.stage.trace(format_args!("process {at} is drained and started again"));
        self.stage.count("restarts", 1);
        let next = self.start(at);
        let node = std::mem::replace(&mut self.nodes[at], next);
        let (stage, ledger) = (self.stage.clone(), self.ledger.clone());
        tokio::spawn(async move {
            let drained = node.guard().drain(Duration::from_secs(20)).await;
            stage.trace(format_args!("process {at}, drained, ends: {drained:?}"));
            if drained.is_clean() {
                ledger.pages().drained.push(node.process.clone());
            }
            // Its callers get their answers before it ends.
            tokio::time::sleep(Duration::from_millis(100)).await;
            node.process.kill();
        });
    }

    /// One more process, in which nothing goes wrong.
    pub(super) fn add(&mut self) -> usize {
        let process = self.nodes.len();
        let node = self.start(process);
        self.nodes.push(node);
        process
    }

    fn start(&self, number: usize) -> Node {
        let process = Process::default();
        let network = Network::new(&self.shared, number);
        let guard = Guard::with(network.clone(), Limits::default(), Metrics::new(), process.clone());
        let (opaque, keyed) = (self.operation(&guard, Effect::Opaque), self.operation(&guard, Effect::Keyed));
        if let Some(every_ms) = self.settings.reconcile_every_ms {
            let mut limits = ReconcileLimits::default();
            limits.every = Duration::from_millis(every_ms);
            (limits.pause_min, limits.pause_max) = (limits.every, 2 * limits.every);
            let watched = [&opaque, &keyed].map(|operation| self.looked_up(operation.clone()));
            let reconciler = Reconciler::new().watch(&watched[0]).watch(&watched[1]).limits(limits);
            process.spawn(Box::pin(reconciler.run()));
        }
        if let Some(every_ms) = self.settings.sweep_every_ms {
            let mut limits = SweepLimits::default();
            limits.every = Duration::from_millis(every_ms);
            process.spawn(Box::pin(Sweeper::new(&guard).limits(limits).run()));
        }
        let reconciler_only = self.stage.has("the lookup is known to the reconciler only");
        let [opaque, keyed] = [opaque, keyed]
            .map(|operation| if reconciler_only { operation } else { self.looked_up(operation) });
        Node { process, opaque, keyed, network }
    }

    fn operation(&self, guard: &Guard<Network>, effect: Effect) -> Guarded<Network> {
        let settings = &self.settings;
        let mut policy = Policy::default();
        policy.effect = effect;
        policy.retention = settings.retention();
        policy.lease = Duration::from_millis(settings.lease_ms);
        policy.in_flight = match settings.in_flight {
            WhenInFlight::Reject | WhenInFlight::Accept { .. } => InFlight::Reject,
            WhenInFlight::Wait { ms } => InFlight::Wait(Duration::from_millis(ms)),
        };
        if settings.open || self.stage.has("an outage is taken for permission") {
            policy.store_down = StoreDown::Open;
        }
        if settings.time_ordered {
            policy.key_format = KeyFormat::TimeOrdered { skew_ms: SKEW_MS };
        }
        policy.timeout = settings.timeout_ms.map(Duration::from_millis);
        policy.safe_for = settings.safe_for_ms.filter(|_| effect == Effect::Keyed).map(Duration::from_millis);
        let operation = guard.operation(if effect == Effect::Opaque { "pay" } else { "send" });
        operation.expect("a good name").policy(policy).expect("a good policy")
    }

    fn looked_up(&self, operation: Guarded<Network>) -> Guarded<Network> {
        let Some(lookup) = self.settings.lookup else { return operation };
        let (shared, ledger) = (Arc::clone(&self.shared), self.ledger.clone());
        let (stage, lookups) = (self.stage.clone(), Arc::clone(&self.lookups));
        let is_large = lookup.large;
        let settle = if self.stage.has("settle delay is ignored") { 0 } else { lookup.settle_ms };
        let look = move |record: Record| {
            let key = shared.key_of(&record.intent.id());
            let (ledger, stage) = (ledger.clone(), stage.clone());
            let unknown = lookups.fetch_add(1, Ordering::Relaxed) < lookup.unknown_first;
            async move {
                let found = look_up(lookup, key, unknown, &ledger, &stage).await;
                match found {
                    Found::Applied(outcome) if is_large => {
                        let body =
                            outcome.body_bytes().map(|body| String::from_utf8_lossy(body).into_owned());
                        Found::Applied(Outcome::new(200, large(&body.unwrap_or_default())))
                    }
                    found => found,
                }
            }
        };
        operation.lookup(look, Duration::from_millis(settle))
    }

    fn guarded(&self, node: &Node, key: usize) -> Guarded<Network> {
        match self.settings.effect(key) {
            Effect::Opaque => node.opaque.clone(),
            _ => node.keyed.clone(),
        }
    }

    /// The intent of a key, as all processes name it.
    fn intent(&mut self, node: usize, key: usize) -> Intent {
        let made = match &self.keys[key] {
            Some(made) => made.clone(),
            None => {
                let made = self.make_key(key);
                self.keys[key] = Some(made.clone());
                made
            }
        };
        let guarded = self.guarded(&self.nodes[node], key);
        let scope = Scope::tenant("acme").expect("a good tenant");
        let intent = guarded.intent(&scope, &made);
        self.shared.knows(intent.id(), key);
        intent
    }

    fn make_key(&self, key: usize) -> Key {
        let name = if self.settings.time_ordered {
            let wall = self.stage.wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            let ms = wall.as_millis() as u64;
            format!("{:08x}-{:04x}-7000-8000-{key:012x}", ms >> 16, ms & 0xffff)
        } else {
            format!("key-{key}")
        };
        Key::new(name).expect("a good key")
    }

    /// Somebody calls a process. The caller lives in it: it dies and stalls with it.
    pub(super) fn call(&mut self, ask: Ask) {
        let intent = self.intent(ask.process, ask.key);
        let node = &self.nodes[ask.process];
        let (process, network) = (node.process.clone(), node.network.clone());
        let call = self.ledger.call_begins(ask.key, ask.other_request, &process, ask.work.takes());
        self.stage.trace(format_args!(
            "call {call}: key {} at process {}{}",
            ask.key,
            ask.process,
            if ask.other_request { ", another request" } else { "" }
        ));
        self.stage.count("calls", 1);
        let request: &[u8] = if ask.other_request { b"another request" } else { b"the request" };
        let caller = Caller {
            call,
            guarded: self.guarded(node, ask.key),
            intent,
            fingerprint: self.recipe.bytes(request),
            ledger: self.ledger.clone(),
            stage: self.stage.clone(),
            settings: self.settings.clone(),
            process: process.clone(),
            network,
        };
        process.spawn(Box::pin(caller.asks(ask)));
    }

    /// What duplicates get in processes that start from now on.
    pub(super) fn in_flight(&mut self, in_flight: WhenInFlight) {
        self.settings.in_flight = in_flight;
    }
}

/// One caller.
struct Caller {
    call: usize,
    guarded: Guarded<Network>,
    intent: Intent,
    fingerprint: semel::intent::fingerprint::Fingerprint,
    ledger: Ledger,
    stage: Stage,
    settings: Settings,
    process: Process,
    network: Network,
}

impl Caller {
    async fn asks(self, ask: Ask) {
        let accepted = match self.settings.in_flight {
            WhenInFlight::Accept { after_ms } => Some(Duration::from_millis(after_ms)),
            _ => None,
        };
        let leaves = match (ask.leaves, accepted) {
            (Some(leaves), Some(accepted)) => Some(leaves.min(accepted)),
            (leaves, accepted) => leaves.or(accepted),
        };
        let running = self.run(&ask);
        let result = match leaves {
            Some(after) => tokio::time::timeout(after, running).await.ok(),
            None => Some(running.await),
        };
        if result.is_none() && self.stage.has("a caller that leaves frees its claim") {
            self.frees_the_claim().await;
        }
        let given = result.map(Given::new);
        if given == Some(Given::Uncertain) {
            self.count_guard_expired().await;
        }
        self.check_stored(given.as_ref()).await;
        let status = given.is_none() && ask.leaves.is_none() && accepted.is_some();
        self.ledger.call_ends(self.call, given);
        if status {
            self.asks_for_the_status().await;
        }
    }

    async fn run(&self, ask: &Ask) -> Result<semel::Answer, semel::GuardError> {
        let worker = Worker {
            ledger: self.ledger.clone(),
            stage: self.stage.clone(),
            process: self.process.clone(),
            key: ask.key,
            effect: self.settings.effect(ask.key),
        };
        let (work, ledger, network, id) =
            (ask.work, self.ledger.clone(), self.network.clone(), self.intent.id());
        let open = self.settings.open;
        let work = move |attempt: semel::Attempt| {
            if attempt.epoch.is_none() && !(open && network.is_unanswered(&id)) {
                ledger.pages().open_for_nothing.push(worker.key);
            }
            worker.run(work, attempt)
        };
        self.guarded.run(self.intent.clone(), self.fingerprint, work).await
    }

    async fn count_guard_expired(&self) {
        let store = &self.network.shared.store;
        let (Ok(record), Ok(now)) = (store.get(self.intent.id()).await, store.now().await) else { return };
        if record.is_some_and(|record| record.head.is_guard_expired(now, 0)) {
            self.stage.count("guards expired", 1);
        }
    }

    /// "Stored" is true at the moment it is said.
    async fn check_stored(&self, given: Option<&Given>) {
        let Some(Given::Answer { verdict, stored: true, replayed: false, body, .. }) = given else { return };
        let finished = match verdict {
            Verdict::Completed => State::Completed,
            Verdict::FailedFinal => State::FailedFinal,
            Verdict::FailedRetryable | Verdict::Uncertain => return,
        };
        let Ok(record) = self.network.shared.store.get(self.intent.id()).await else { return };
        let state = record.as_ref().map(|record| record.head.state);
        if state != Some(finished) {
            let key = self.network.shared.key_of(&self.intent.id()).unwrap_or_default();
            let what =
                format!("call {}: {body:?} of key {key} is stored, but the record is {state:?}", self.call);
            let began = self.ledger.pages().calls[self.call].began;
            self.ledger.pages().not_stored.push((key, began, self.stage.elapsed(), what));
        }
    }

    async fn frees_the_claim(&self) {
        let store = &self.network.shared.store;
        if let Ok(Some(record)) = store.get(self.intent.id()).await {
            let release = Finish::release(self.settings.retention());
            let _ = store.finish(record.ticket(false), release).await;
        }
    }

    /// As a caller that was answered "accepted".
    async fn asks_for_the_status(&self) {
        for _ in 0..STATUS_ASKS {
            tokio::time::sleep(STATUS_EVERY).await;
            if let Ok(Some(record)) = self.network.get_cached(self.intent.id()).await
                && record.head.state.is_finished()
            {
                self.stage.count("statuses", 1);
                return;
            }
        }
    }
}

async fn look_up(
    lookup: LookupPlan,
    key: Option<usize>,
    unknown: bool,
    ledger: &Ledger,
    stage: &Stage,
) -> Found {
    let Some(key) = key else { return Found::Unknown };
    let first = ledger.effect_of(key);
    if lookup.takes_ms > 0 {
        tokio::time::sleep(Duration::from_millis(lookup.takes_ms)).await;
    }
    let found = if lookup.reads_first { first } else { ledger.effect_of(key) };
    stage.count("lookups", 1);
    stage.trace(match (&found, unknown) {
        (_, true) => format!("key {key}: the lookup finds out nothing"),
        (Some(body), false) => format!("key {key}: the lookup finds {body}"),
        (None, false) => format!("key {key}: the lookup finds no effect"),
    });
    match (found, unknown) {
        (_, true) => Found::Unknown,
        (Some(body), false) => Found::Applied(Outcome::new(200, body)),
        (None, false) => Found::NotApplied,
    }
}
