//! The world of the guard: the real guard, reconciler, sweeper and memory store; simulated are the processes, the
//! network to the store, the store's clock, the effect, the lookup and a person who decides.
//!
//! | module | what |
//! |---|---|
//! | `plan` | what a seed decides, as data |
//! | `draw` | how a plan is drawn and made smaller |
//! | `fleet` | the processes and the calls made to them |
//! | `work` | what the work of a call does |
//! | `network` | what goes wrong between a process and the store |
//! | `clock` | the store's clock, which jumps |
//! | `ledger` | what the simulated ends wrote down |
//! | `person` | decisions about uncertain intents |
//! | `safety` | what must never happen |
//! | `liveness` | what must have happened by when |
//! | `bugs` | planted bugs |

use std::sync::Arc;
use std::time::Duration;

use semel::store::memory::MemoryStore;

use crate::stage::Stage;
use crate::world::{Violation, World};

mod bugs;
mod clock;
mod draw;
mod fleet;
mod hidden;
mod ledger;
mod liveness;
mod network;
mod person;
mod plan;
mod safety;
mod work;

use clock::StoreClock;
use fleet::{Ask, Fleet};
use ledger::Ledger;
use network::Shared;
pub use plan::{
    Act, Does, Effects, End, Fault, LookupPlan, Plan, Request, Settings, StoreFault, WhenInFlight, Work,
};

/// The world of the guard.
#[derive(Debug)]
pub struct GuardWorld;

impl World for GuardWorld {
    const NAME: &'static str = "guard";
    const BUGS: &'static [&'static str] = bugs::NAMES;
    const MUST_HAPPEN: &'static [(&'static str, u64)] = &[
        ("effects", 2_000),
        ("replays", 2_000),
        ("downstream duplicates", 100),
        ("crashes", 200),
        ("restarts", 200),
        ("stalls", 200),
        ("clock jumps", 100),
        ("outages", 100),
        ("cuts", 200),
        ("lookups", 100),
        ("decided by lookup", 100),
        ("decided by a person", 50),
        ("reconciled histories", 100),
        ("claims lost", 20),
        ("finishes fenced off", 50),
        ("works dropped", 100),
        ("unguarded runs", 100),
        ("mismatches", 200),
        ("keys refused", 50),
        ("records swept", 200),
        ("statuses", 50),
        ("outcomes too large", 200),
        ("uncertain at the end", 100),
        ("guards expired", 100),
        ("requests refused", 1_000),
        ("requests lost", 100),
        ("answers lost", 100),
        ("requests late", 200),
        ("answers late", 200),
        ("claims hidden", 100),
        ("requests hanging", 1_000),
        ("answers hanging", 200),
    ];
    type Plan = Plan;

    fn draw(rng: &mut fastrand::Rng) -> Plan {
        draw::draw(rng)
    }

    async fn play(plan: &Plan, stage: &Stage) -> Result<(), Violation> {
        let clock = StoreClock::new(stage);
        let time = clock.clone();
        let store = MemoryStore::with_clock(move || time.now());
        let store = store.deciding_with(bugs::decider(|bug| stage.has(bug)));
        let ledger = Ledger::new(stage, plan.remembers());
        let shared = Shared::new(plan, store, ledger.clone(), stage);
        let mut fleet = Fleet::new(&plan.settings, &shared, &ledger, stage);
        for act in &plan.acts {
            let at = Duration::from_millis(act.at_ms);
            tokio::time::sleep(at.saturating_sub(stage.elapsed())).await;
            happens(act.does, plan, &mut fleet, &shared, &clock, stage).await;
        }
        tokio::time::sleep(Duration::from_millis(plan.rough_ms)).await;
        stage.trace("from here on nothing goes wrong");
        shared.heal();
        fleet.nodes.iter().for_each(|node| node.process.resume());
        let alive = liveness::judge(plan, &mut fleet, &shared, stage).await;
        // What must never happen is worse than what takes too long: it is said first.
        safety::judge(plan, &shared, &clock).await?;
        alive
    }

    fn smaller(plan: &Plan) -> Vec<Plan> {
        draw::smaller(plan)
    }
}

async fn happens(
    does: Does,
    plan: &Plan,
    fleet: &mut Fleet,
    shared: &Arc<Shared>,
    clock: &StoreClock,
    stage: &Stage,
) {
    let processes = plan.settings.processes;
    match does {
        Does::Call { process, key, other_request, work, leaves_ms } => fleet.call(Ask {
            process: process % processes,
            key: key % plan.settings.keys,
            other_request,
            work,
            leaves: leaves_ms.map(Duration::from_millis),
        }),
        Does::Crash { process } => fleet.crash(process % processes),
        Does::Restart { process } => fleet.restart(process % processes),
        Does::Stall { process, ms } => {
            let at = process % processes;
            stage.trace(format_args!("process {at} stands still for {ms} ms"));
            stage.count("stalls", 1);
            let process = fleet.nodes[at].process.clone();
            process.stall();
            let stage = stage.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                process.resume();
                stage.trace(format_args!("process {at} goes on"));
            });
        }
        Does::Jump { ms } => {
            stage.trace(format_args!("the store's clock jumps by {ms} ms"));
            stage.count("clock jumps", 1);
            clock.jump(ms);
        }
        Does::Down { ms, hangs } => {
            let how = if hangs { "requests hang" } else { "requests are refused" };
            stage.trace(format_args!("the store is down for {ms} ms: {how}"));
            stage.count("outages", 1);
            shared.goes_down(ms, hangs);
        }
        Does::Cut { process, ms, hangs } => {
            let at = process % processes;
            let how = if hangs { "requests hang" } else { "requests are refused" };
            stage.trace(format_args!("process {at} is cut off from the store for {ms} ms: {how}"));
            stage.count("cuts", 1);
            fleet.nodes[at].cut(ms, hangs);
        }
        Does::Decide { pick } => person::decide(shared, &plan.settings, clock, pick).await,
    }
}
