//! One set-up of a peer, warmed up, loaded, and counted.

use std::time::{Duration, Instant};

use super::cpu;
use super::figures::Figures;

/// The steps of a saga.
pub(super) const STEPS: u64 = 3;

/// How much is measured.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Callers at a time, each with one saga after the other: a round for each number.
    pub(super) callers: Vec<u64>,
    pub(super) warm: Duration,
    /// Of a round.
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

/// Measures it, and returns its best round.
pub(super) fn measure(setup: &mut dyn Setup, plan: &Plan) -> Result<Figures, String> {
    let [peer, version, _] = setup.names();
    eprintln!("{peer} {version} …");
    let rounds = rounds(setup, plan).map_err(|error| format!("{peer}: {error}"))?;
    let best = rounds
        .into_iter()
        .max_by(|one, other| one.sagas_per_cpu_second().total_cmp(&other.sagas_per_cpu_second()));
    best.ok_or_else(|| format!("{peer}: no round"))
}

fn rounds(setup: &mut dyn Setup, plan: &Plan) -> Result<Vec<Figures>, String> {
    let most = plan.callers.iter().copied().max().unwrap_or(1);
    setup.load(most, plan.warm)?;
    plan.callers.iter().map(|callers| round(setup, *callers, plan.time)).collect()
}

/// The count is believed when the steps have run that often.
fn round(setup: &mut dyn Setup, callers: u64, time: Duration) -> Result<Figures, String> {
    let (steps, processes) = (setup.steps()?, setup.processes());
    let (work, begin) = (cpu::seconds(&processes)?, Instant::now());
    let sagas = setup.load(callers, time)?;
    let (time, cpu_seconds) = (begin.elapsed(), cpu::seconds(&processes)? - work);
    let ran = setup.steps()?.saturating_sub(steps);
    if let Some(wrong) = wrong(sagas, ran) {
        return Err(wrong);
    }
    let [peer, version, database] = setup.names();
    let figures = Figures { peer, version, database, callers, sagas, time, cpu_seconds };
    eprintln!(
        "  {callers} callers: {:.0} sagas/s, {:.2} ms",
        figures.sagas_per_second(),
        figures.cpu_ms_per_saga()
    );
    Ok(figures)
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
        let plan = Plan { callers: vec![1, 2], warm: Duration::ZERO, time: Duration::ZERO };
        let measured = |sagas, steps| measure(&mut Says { sagas, steps, ran: 0 }, &plan);
        assert_eq!(measured(10, 30).unwrap().sagas, 10);
        // One was repeated.
        assert_eq!(measured(10, 31).unwrap().sagas, 10);
        let error = measured(10, 29).unwrap_err();
        assert_eq!(error, "Peer: 10 sagas of 3 steps are said to have ended, but only 29 steps ran");
        assert!(measured(0, 0).unwrap_err().contains("no saga ended"));
    }
}
