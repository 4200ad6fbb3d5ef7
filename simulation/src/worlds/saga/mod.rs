//! The world of sagas: the real engine, workers and all, over simulated participants and a journal whose line is cut.
//!
//! | module | what it simulates or decides |
//! |---|---|
//! | `plan` | what a seed decides: settings, sagas, faults |
//! | `draw` | how it is drawn |
//! | `smaller` | how it is made smaller |
//! | `network` | the participants, and what they wrote down |
//! | `steps` | the sagas' code and their steps |
//! | `line` | a process's line to the journal |
//! | `bugs` | planted bugs |
//! | `run` | plays a plan: processes, clients, faults |
//! | `laws` | the laws and their bounds |

mod bugs;
mod draw;
mod laws;
mod line;
mod network;
mod plan;
mod run;
mod smaller;
mod steps;

pub use plan::{Does, Fault, FaultKind, Pause, Plan, SagaPlan, Settings, StepPlan};

use crate::stage::Stage;
use crate::world::{Violation, World};

/// The world of sagas.
#[derive(Debug)]
pub struct SagaWorld;

impl World for SagaWorld {
    const NAME: &'static str = "saga";
    const BUGS: &'static [&'static str] = bugs::NAMES;
    const MUST_HAPPEN: &'static [(&'static str, u64)] = &[
        ("completed", 500),
        ("undone", 300),
        ("parked", 100),
        ("effects", 4_000),
        ("calls lost", 200),
        ("answers lost", 200),
        ("late arrivals", 200),
        ("lookups", 100),
        ("atomic steps", 500),
        ("kills", 200),
        ("stalls", 100),
        ("drains", 100),
        ("signals", 50),
        ("cancels", 100),
        ("sagas taken", 1_000),
        ("requests refused", 100),
        ("requests that hang", 50),
        ("changes late", 100),
        ("answers of the journal lost", 100),
    ];
    type Plan = Plan;

    fn draw(rng: &mut fastrand::Rng) -> Plan {
        draw::draw(rng)
    }

    async fn play(plan: &Plan, stage: &Stage) -> Result<(), Violation> {
        run::play(plan, stage).await
    }

    fn smaller(plan: &Plan) -> Vec<Plan> {
        smaller::smaller(plan)
    }
}
