//! The world of the consumer: the real consumer and the real inbox modes, over a simulated broker, handler, database and
//! store of dead letters.
//!
//! | module | what it simulates or decides |
//! |---|---|
//! | `plan` | what a seed decides: settings, keys, faults |
//! | `draw` | how it is drawn |
//! | `smaller` | how it is made smaller |
//! | `broker` | a log with partitions, or a queue with leases |
//! | `handler` | the effect and its mark: one commit, or a mode over a store |
//! | `letters` | the store of dead letters |
//! | `process` | consumer processes that crash, stall and stop |
//! | `ledger` | what the simulated ends wrote down |
//! | `laws` | the laws and their bounds |
//! | `run` | plays a plan |

mod broker;
mod draw;
mod handler;
mod laws;
mod ledger;
mod letters;
mod plan;
mod process;
mod run;
mod smaller;

pub use plan::{Behaviour, BrokerKind, Down, Fault, KeyPlan, Mode, Plan, Settings};

use crate::stage::Stage;
use crate::world::{Violation, World};

/// The world of the consumer.
#[derive(Debug)]
pub struct ConsumerWorld;

impl World for ConsumerWorld {
    const NAME: &'static str = "consumer";
    const BUGS: &'static [&'static str] = &[
        "acknowledges on receipt",
        "commits past a gap",
        "gives no keys",
        "gives back at the end",
        "calls an outage the message's fault",
        "says later of everything",
        "swallows failures",
        "marks in a second commit",
        "forgets marks early",
        "forgets dead letters",
        "blames by number only",
        "does not read past failing keys",
        "lets failing keys hold everything",
        "tries failing keys among the others",
    ];
    const MUST_HAPPEN: &'static [(&'static str, u64)] = &[
        ("messages", 20_000),
        ("messages published twice", 100),
        ("effects", 20_000),
        ("redeliveries", 500),
        ("failures", 1_000),
        ("panics", 50),
        ("calls that hang", 10),
        ("calls broken off", 100),
        ("calls while the handler is down", 500),
        ("commits in doubt", 20),
        ("dead letters", 500),
        ("dead letters refused", 20),
        ("dead letters retried", 20),
        ("dead letters handled", 10),
        ("messages lost to others", 100),
        ("rebalances", 50),
        ("crashes", 50),
        ("stalls", 50),
        ("stops", 1_000),
        ("source errors", 50),
        ("settles lost", 20),
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
