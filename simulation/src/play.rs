//! One history.

use crate::stage::{Figures, Stage};
use crate::world::{Violation, World};

/// What one history came to.
#[derive(Clone, Debug)]
pub struct Played {
    /// Whether every law held.
    pub verdict: Result<(), Violation>,
    /// What happened, counted.
    pub figures: Figures,
    /// A hash over every step: two histories are the same if it is.
    pub hash: u64,
    /// The steps.
    pub trace: Vec<String>,
}

/// The plan that `seed` draws.
pub fn plan<W: World>(seed: u64) -> W::Plan {
    W::draw(&mut fastrand::Rng::with_seed(seed))
}

/// Plays a plan on this thread, in virtual time.
///
/// # Panics
/// When the runtime cannot be built.
pub fn play<W: World>(seed: u64, plan: &W::Plan, planted: Option<&'static str>) -> Played {
    // Jitter in the code under test comes from this thread's generator: part of the seed, or nothing replays.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O needs nothing that could be missing");
    let (verdict, stage) = runtime.block_on(async {
        let stage = Stage::new(planted);
        (W::play(plan, &stage).await, stage)
    });
    drop(runtime);
    let (figures, hash, trace) = stage.end();
    Played { verdict, figures, hash, trace }
}

/// Draws and plays the history of `seed`.
pub fn history<W: World>(seed: u64, planted: Option<&'static str>) -> Played {
    play::<W>(seed, &plan::<W>(seed), planted)
}
