//! The world of the client.

use serde::{Deserialize, Serialize};

use crate::stage::Stage;
use crate::world::{Violation, World};

/// The world of the client.
#[derive(Debug)]
pub struct ClientWorld;

/// What a seed decides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {}

impl World for ClientWorld {
    const NAME: &'static str = "client";
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
