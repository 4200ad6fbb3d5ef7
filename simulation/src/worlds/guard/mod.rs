//! The world of the guard.

use serde::{Deserialize, Serialize};

use crate::stage::Stage;
use crate::world::{Violation, World};

/// The world of the guard.
#[derive(Debug)]
pub struct GuardWorld;

/// What a seed decides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {}

impl World for GuardWorld {
    const NAME: &'static str = "guard";
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
