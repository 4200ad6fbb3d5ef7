//! The world of the consumer.

use serde::{Deserialize, Serialize};

use crate::stage::Stage;
use crate::world::{Violation, World};

/// The world of the consumer.
#[derive(Debug)]
pub struct ConsumerWorld;

/// What a seed decides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {}

impl World for ConsumerWorld {
    const NAME: &'static str = "consumer";
    const BUGS: &'static [&'static str] = &[];
    const MUST_HAPPEN: &'static [(&'static str, u64)] = &[];
    type Plan = Plan;

    fn draw(_: &mut fastrand::Rng) -> Plan {
        Plan {}
    }

    async fn play(_: &Plan, _: &Stage) -> Result<(), Violation> {
        Ok(())
    }

    fn smaller(_: &Plan) -> Vec<Plan> {
        Vec::new()
    }
}
