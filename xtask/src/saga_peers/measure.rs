//! One set-up of a peer, warmed up, loaded, and counted.

use std::time::{Duration, Instant};

use super::cpu;
use super::figures::Figures;

/// The steps of a saga.
pub(super) const STEPS: u64 = 3;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// Callers at a time, each with one saga after the other.
    pub(super) callers: u64,
    pub(super) warm: Duration,
    pub(super) time: Duration,
}

/// A peer in one set-up, ready to serve. Its processes end with it.
pub(super) trait Setup {
    /// Peer, version and database, as the table shows them.
    fn names(&self) -> [String; 3];
    /// The processes whose work counts, with everything below them.
    fn processes(&self) -> Vec<u32>;
    /// Runs sagas from this many callers for this long, and returns how many ended well. A saga that does not is an
    /// error.
    fn load(&mut self, callers: u64, time: Duration) -> Result<u64, String>;
    /// How many steps ran so far, as the steps themselves count.
    fn steps(&mut self) -> Result<u64, String>;
}

/// Measures it. The count is believed when the steps have run that often.
pub(super) fn measure(setup: &mut dyn Setup, plan: Plan) -> Result<Figures, String> {
    let [peer, version, database] = setup.names();
    let named = |error: String| format!("{peer}: {error}");
    eprintln!("{peer} {version} …");
    setup.load(plan.callers, plan.warm).map_err(named)?;
    let (steps, processes) = (setup.steps().map_err(named)?, setup.processes());
    let (work, begin) = (cpu::seconds(&processes).map_err(named)?, Instant::now());
    let sagas = setup.load(plan.callers, plan.time).map_err(named)?;
    let (time, work) = (begin.elapsed(), cpu::seconds(&processes).map_err(named)? - work);
    let ran = setup.steps().map_err(named)?.saturating_sub(steps);
    if let Some(wrong) = wrong(sagas, ran) {
        return Err(named(wrong));
    }
    Ok(Figures { peer, version, database, sagas, time, cpu_seconds: work })
}

/// Why these counts cannot both be true. A step that is repeated is no contradiction: none of these peers promises a
/// step once.
fn wrong(sagas: u64, steps: u64) -> Option<String> {
    if sagas == 0 {
        return Some("no saga ended in the time; run it again without --quick".to_owned());
    }
    let missing = steps < STEPS * sagas;
    missing
        .then(|| format!("{sagas} sagas of {STEPS} steps are said to have ended, but only {steps} steps ran"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says that this many sagas ended, and runs this many steps.
    struct Says {
        sagas: u64,
        steps: u64,
        ran: u64,
    }

    impl Setup for Says {
        fn names(&self) -> [String; 3] {
            ["Peer", "1", "none"].map(str::to_owned)
        }

        fn processes(&self) -> Vec<u32> {
            vec![std::process::id()]
        }

        fn load(&mut self, _: u64, _: Duration) -> Result<u64, String> {
            self.ran += self.steps;
            Ok(self.sagas)
        }

        fn steps(&mut self) -> Result<u64, String> {
            Ok(self.ran)
        }
    }

    #[test]
    fn a_count_without_its_steps_is_not_believed() {
        let plan = Plan { callers: 1, warm: Duration::ZERO, time: Duration::ZERO };
        let measured = |sagas, steps| measure(&mut Says { sagas, steps, ran: 0 }, plan);
        assert_eq!(measured(10, 30).unwrap().sagas, 10);
        // One was repeated.
        assert_eq!(measured(10, 31).unwrap().sagas, 10);
        let error = measured(10, 29).unwrap_err();
        assert_eq!(error, "Peer: 10 sagas of 3 steps are said to have ended, but only 29 steps ran");
        assert!(measured(0, 0).unwrap_err().contains("no saga ended"));
    }
}
