//! The world of the client: the real client and [`DurableClient`](semel::http::client::durable::DurableClient) against
//! the real layer on the real guard, over a network and a service that fail.
//!
//! | module | what |
//! |---|---|
//! | `plan`, `draw` | what a seed decides |
//! | `network` | the transport between both sides: loses, delays, doubles, breaks off, and proxies that answer |
//! | `server`, `service` | the layer in a process that is restarted, and the service that charges |
//! | `machine` | the clients' machine: wall clock, disk with the journal, processes |
//! | `application` | who calls the clients, and goes on while in doubt |
//! | `ledger`, `judge` | what the simulated ends wrote down, and the laws |

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel::guard::Spawn;
use semel::http::client::durable::JournalState;

use crate::process::Process;
use crate::stage::Stage;
use crate::world::{Violation, World};

mod application;
mod body;
mod draw;
mod judge;
mod ledger;
mod machine;
mod network;
mod plan;
mod scene;
mod server;
mod service;

pub use plan::{Call, Delivery, Ends, Event, InFlight, Intent, On5xx, Plan, Run, Settings, What};
use scene::Scene;

/// The world of the client.
#[derive(Debug)]
pub struct ClientWorld;

impl World for ClientWorld {
    const NAME: &'static str = "client";

    const BUGS: &'static [&'static str] = &[
        "new-key-for-each-attempt",
        "key-lost-on-retries",
        "journal-on-a-scratch-disk",
        "server-forgets-early",
        "never-resumed",
        "tenant-from-a-token",
        "service-retried-behind-the-layer",
        "store-forgets-at-a-restart",
        "service-charges-then-answers-500",
        "service-marks-what-did-not-happen",
        "proxy-strips-headers",
        "clock-that-waits",
    ];

    const MUST_HAPPEN: &'static [(&'static str, u64)] = &[
        ("effects", 1_000),
        ("answered", 1_000),
        ("recorded answers", 500),
        ("replays", 200),
        ("resumed", 200),
        ("expired", 10),
        ("uncertain", 100),
        ("in progress", 50),
        ("202 of the layer", 50),
        ("mismatches", 20),
        ("done, answer lost", 20),
        ("not sent", 10),
        ("refused", 10),
        ("rounds in doubt", 50),
        ("answers from the journal", 10),
        ("answers lost", 300),
        ("answers broken off", 100),
        ("requests lost", 300),
        ("requests doubled", 100),
        ("connections refused", 200),
        ("answers of proxies", 100),
        ("hang-ups", 50),
        ("callers that leave", 50),
        ("client crashes", 100),
        ("client stalls", 30),
        ("server crashes", 50),
        ("server drains", 50),
        ("clock jumps ahead", 50),
        ("clock set back", 50),
        ("commits on a bad disk", 50),
        ("lookups", 10),
    ];

    type Plan = Plan;

    fn draw(rng: &mut fastrand::Rng) -> Plan {
        draw::draw(rng)
    }

    async fn play(plan: &Plan, stage: &Stage) -> Result<(), Violation> {
        let scene = Arc::new(Scene::new(plan, stage));
        let verdict = play(&scene).await;
        scene.end();
        verdict
    }

    fn smaller(plan: &Plan) -> Vec<Plan> {
        plan.smaller()
    }
}

/// Calls that have not returned, with the process each is in.
#[derive(Clone, Default)]
struct OpenCalls(Arc<Mutex<Vec<(usize, Process)>>>);

impl OpenCalls {
    fn begin(&self, intent: usize, process: &Process) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((intent, process.clone()));
    }

    fn end(&self, intent: usize, process: &Process) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|(of, theirs)| *of == intent && theirs.is(process)) {
            open.swap_remove(at);
        }
    }

    /// Those of living processes.
    fn left(&self) -> Vec<usize> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().filter(|(_, process)| !process.is_dead()).map(|(intent, _)| *intent).collect()
    }
}

async fn play(scene: &Arc<Scene>) -> Result<(), Violation> {
    let settings = &scene.plan.settings;
    scene.server.start(scene);
    (0..settings.processes).for_each(|process| scene.start_client(process));
    let calls = OpenCalls::default();
    for step in steps(&scene.plan) {
        tokio::time::sleep(Duration::from_millis(step.at_ms()).saturating_sub(scene.stage.elapsed())).await;
        match step {
            Step::Call(intent, call) => begin_call(scene, &calls, intent, call),
            Step::Event(event) => happen(scene, event.what),
        }
    }
    let calm = Duration::from_millis(scene.plan.calm_at_ms);
    tokio::time::sleep(calm.saturating_sub(scene.stage.elapsed())).await;
    scene.stage.trace("nothing fails any more");
    scene.machine.wake_all();
    scene.machine.network_down(Duration::ZERO);
    scene.machine.disk(Duration::ZERO, Default::default());
    if !scene.server.is_running() {
        scene.server.start(scene);
    }
    (0..settings.processes).for_each(|process| scene.start_client(process));

    let bound = judge::bound(settings, scene.plan.intents.len());
    let until = scene.stage.elapsed() + bound;
    let unfinished = loop {
        let unfinished = scene.unfinished().await?;
        let open = unfinished.values().any(|state| *state == JournalState::Open) || !calls.left().is_empty();
        if !open || scene.stage.elapsed() >= until {
            break unfinished;
        }
        tokio::time::sleep(bound / 50).await;
    };
    let left = calls.left();
    scene.machine.stall_all();
    scene.read_recorded(&unfinished).await;
    scene.judge(&unfinished, &left)
}

/// One step of the plan.
enum Step {
    Call(usize, Call),
    Event(Event),
}

impl Step {
    fn at_ms(&self) -> u64 {
        match self {
            Self::Call(_, call) => call.at_ms,
            Self::Event(event) => event.at_ms,
        }
    }
}

/// Calls and events in the order of their times.
fn steps(plan: &Plan) -> Vec<Step> {
    let mut steps: Vec<Step> = plan.events.iter().cloned().map(Step::Event).collect();
    for (intent, planned) in plan.intents.iter().enumerate() {
        steps.extend(planned.calls.iter().cloned().map(|call| Step::Call(intent, call)));
    }
    steps.retain(|step| step.at_ms() < plan.calm_at_ms);
    steps.sort_by_key(Step::at_ms);
    steps
}

fn begin_call(scene: &Arc<Scene>, calls: &OpenCalls, intent: usize, call: Call) {
    let Some((number, client)) = scene.machine.client(call.process) else {
        return scene.stage.trace(format_args!("intent {intent}: no process runs, so there is no call"));
    };
    scene.stage.trace(format_args!("intent {intent}: process {number} is called: {call:?}"));
    let now = scene.stage.elapsed();
    scene.ledger.with(intent, |pages| pages.first_call = pages.first_call.or(Some(now)));
    calls.begin(intent, &client.process);
    let (calls, process, scene) = (calls.clone(), client.process.clone(), Arc::clone(scene));
    client.process.clone().spawn(Box::pin(async move {
        scene.call(intent, call, number, client).await;
        calls.end(intent, &process);
    }));
}

fn happen(scene: &Arc<Scene>, what: What) {
    let (ms, now) = (Duration::from_millis, scene.stage.elapsed());
    match what {
        What::KillClient { process, down_ms } => {
            let process = process % scene.plan.settings.processes;
            scene.kill_client(process);
            later(scene, down_ms, move |scene| scene.start_client(process));
        }
        What::StallClient { process, for_ms } => {
            let Some(stalled) = scene.stall_client(process % scene.plan.settings.processes) else { return };
            later(scene, for_ms, move |_| stalled.resume());
        }
        What::KillServer { down_ms } => {
            if scene.server.kill() {
                scene.stage.count("server crashes", 1);
                scene.stage.trace("the server is killed");
            }
            later(scene, down_ms, restart_server);
        }
        What::DrainServer { limit_ms } => {
            let scene = Arc::clone(scene);
            tokio::spawn(async move {
                scene.stage.trace("the server drains");
                scene.stage.count("server drains", 1);
                scene.server.drain(ms(limit_ms)).await;
                scene.server.kill();
                restart_server(&scene);
            });
        }
        What::ClockJumps { by_ms } => scene.clock_jumps(by_ms),
        What::ClockIsSetRight => scene.clock_is_set_right(),
        What::DiskSlow { for_ms, takes_ms } => {
            scene.machine.disk(now + ms(for_ms), machine::slow(ms(takes_ms)))
        }
        What::DiskFails { for_ms, in_doubt } => {
            scene.machine.disk(now + ms(for_ms), machine::failing(in_doubt))
        }
        What::NetworkDown { for_ms } => scene.machine.network_down(now + ms(for_ms)),
    }
}

fn restart_server(scene: &Arc<Scene>) {
    if !scene.server.is_running() {
        scene.server.start(scene);
    }
}

/// Afterwards, unless everything has come back by then.
fn later(scene: &Arc<Scene>, after_ms: u64, then: impl FnOnce(&Arc<Scene>) + Send + 'static) {
    let scene = Arc::clone(scene);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        if !scene.is_calm() {
            then(&scene);
        }
    });
}
