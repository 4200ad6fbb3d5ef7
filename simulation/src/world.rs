//! What a world is.

use std::fmt::{self, Debug};
use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::stage::Stage;

/// The real code over simulated ends, and the laws it must keep.
pub trait World {
    /// Its name on the command line.
    const NAME: &'static str;

    /// The bugs that can be planted in it, by name. Each must be caught.
    const BUGS: &'static [&'static str];

    /// Everything a seed decides: settings, actions, faults. Data, so that it can be printed, kept and made smaller.
    type Plan: Clone + Debug + Serialize + DeserializeOwned;

    /// Draws a plan. Nothing else may decide what happens: neither a clock nor a random hash order.
    fn draw(rng: &mut fastrand::Rng) -> Self::Plan;

    /// Plays the plan and judges it.
    fn play(plan: &Self::Plan, stage: &Stage) -> impl Future<Output = Result<(), Violation>>;

    /// Smaller plans, the boldest cuts first: fewer faults, fewer actors, plainer settings.
    fn smaller(plan: &Self::Plan) -> Vec<Self::Plan>;

    /// What a history must contain over many seeds, or it shows nothing: a figure and the least it comes to in a
    /// thousand histories.
    const MUST_HAPPEN: &'static [(&'static str, u64)];
}

/// A law that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the law. A smaller plan counts only if it breaks the same one.
    pub law: &'static str,
    /// What happened.
    pub what: String,
}

impl Violation {
    /// The law `law` was broken by `what`.
    pub fn new(law: &'static str, what: impl Into<String>) -> Self {
        Self { law, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.law, self.what)
    }
}
