//! The work of a simulated call: it takes its time, has its effect or not, and ends in every way there is.

use std::sync::Arc;
use std::time::Duration;

use semel::{Attempt, Effect, Ended, Execution, Outcome};

use super::process::Process;
use super::worker::World;

/// What one call will do, drawn beforehand so that the seed alone decides.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) before: Duration,
    pub(super) after: Duration,
    pub(super) end: End,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Completed,
    FailedFinal,
    NotApplied,
    /// The call broke; whether the effect happened is drawn too.
    Broken {
        applied: bool,
    },
    Panic {
        applied: bool,
    },
}

impl Plan {
    pub(super) fn draw(rng: &mut fastrand::Rng, calm: bool) -> Self {
        let pause = |rng: &mut fastrand::Rng| match rng.u32(0..10) {
            // Mostly short, sometimes far beyond the lease of two seconds.
            0 if !calm => Duration::from_millis(rng.u64(0..6_000)),
            _ => Duration::from_millis(rng.u64(0..400)),
        };
        let (before, after) = (pause(rng), pause(rng));
        let end = match rng.u32(0..100) {
            0..8 => End::FailedFinal,
            8..20 => End::NotApplied,
            20..28 if !calm => End::Broken { applied: rng.bool() },
            28..34 if !calm => End::Panic { applied: rng.bool() },
            _ => End::Completed,
        };
        Self { before, after, end }
    }

    pub(super) async fn run(
        self,
        world: Arc<World>,
        process: Process,
        effect: Effect,
        attempt: Attempt,
    ) -> Execution {
        let key = attempt.intent.key().as_str().to_owned();
        world.history.runs(&key, &process);
        tokio::time::sleep(self.before).await;
        let downstream = attempt.child("charge").as_str().to_owned();
        let ask = |refuses| world.history.ask(&key, effect, &downstream, refuses);
        let answer = match self.end {
            End::Completed | End::Broken { applied: true } | End::Panic { applied: true } => Some(ask(false)),
            End::FailedFinal => Some(ask(true)),
            End::NotApplied | End::Broken { applied: false } | End::Panic { applied: false } => None,
        };
        tokio::time::sleep(self.after).await;
        world.history.ends(&key, &process);
        let (ended, body) = match (self.end, answer) {
            (End::Broken { .. }, _) => (Ended::Unknown, "connection reset".to_owned()),
            // Unwinds as a panic does, without a line on stderr for each of thousands.
            (End::Panic { .. }, _) => std::panic::resume_unwind(Box::new("on purpose")),
            (_, Some(Ok(body))) => (Ended::Completed, body),
            (_, Some(Err(refusal))) => (Ended::FailedFinal, refusal),
            (_, None) => (Ended::NotApplied, "nothing happened".to_owned()),
        };
        Execution { ended, outcome: Outcome::new(200, body) }
    }
}
