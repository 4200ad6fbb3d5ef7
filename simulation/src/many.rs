//! Many histories on all cores, and the first that breaks a law.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::play;
use crate::stage::Figures;
use crate::world::World;

/// Histories that held.
#[derive(Clone, Debug)]
pub struct Held {
    /// How many.
    pub histories: u64,
    /// What happened in them.
    pub figures: Figures,
    /// How long it took, in real time.
    pub took: Duration,
    /// On how many cores.
    pub cores: u64,
}

impl Held {
    /// Histories per second and core.
    pub fn rate(&self) -> f64 {
        self.histories as f64 / self.took.as_secs_f64() / self.cores as f64
    }
}

/// Plays the histories of these seeds. `Err` is the lowest seed seen to break a law.
pub fn many<W: World>(
    seeds: Range<u64>,
    planted: Option<&'static str>,
    progress: impl Fn(u64) + Sync,
) -> Result<Held, u64> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, broken, begin) = (AtomicU64::new(seeds.start), AtomicU64::new(u64::MAX), Instant::now());
    let total = Mutex::new(Figures::default());
    let worker = || {
        let mut figures = Figures::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || broken.load(Ordering::Relaxed) != u64::MAX {
                break;
            }
            let played = play::history::<W>(seed, planted);
            figures.add(&played.figures);
            if played.verdict.is_err() {
                broken.fetch_min(seed, Ordering::Relaxed);
            }
            progress(seed - seeds.start + 1);
        }
        total.lock().unwrap_or_else(PoisonError::into_inner).add(&figures);
    };
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(worker))));
    let figures = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    match broken.into_inner() {
        u64::MAX => Ok(Held {
            histories: seeds.end - seeds.start,
            figures,
            took: begin.elapsed(),
            cores: cores as u64,
        }),
        seed => Err(seed),
    }
}
