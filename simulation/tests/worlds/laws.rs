//! What is shown of every world.

use simulation::minimise::minimise;
use simulation::{World, many, play};

/// Histories of each world in the test run. The seeds are fixed: what passes here passes everywhere. New seeds are
/// drawn by `cargo xtask chaos` and `cargo xtask prove`.
const HISTORIES: u64 = 1_000;

/// Fewer where time is short: a mutant has seconds.
const HISTORIES_ENV: &str = "SEMEL_HISTORIES";

fn histories() -> u64 {
    std::env::var(HISTORIES_ENV).ok().and_then(|text| text.parse().ok()).unwrap_or(HISTORIES)
}

/// Seeds tried for a planted bug.
const PLANTED_SEEDS_MAX: u64 = 1_000;

pub(crate) fn hold<W: World>() {
    let held = match many::many::<W>(0..histories(), None, |_| ()) {
        Ok(held) => held,
        Err(seed) => {
            let (plan, played) = minimise::<W>(seed, play::plan::<W>(seed), None);
            let violation = played.verdict.expect_err("the history that was broken");
            panic!(
                "{violation}\nseed {seed}, minimised:\n{}\n{plan:#?}\nreplay: cargo xtask chaos --world {} --seed {seed}",
                played.trace.join("\n"),
                W::NAME,
            );
        }
    };
    println!("{} histories held, {:.0} per second and core: {}", held.histories, held.rate(), held.figures);
    // A simulation in which nothing happens shows nothing. Few histories need not have it all.
    for (figure, least) in W::MUST_HAPPEN.iter().filter(|_| held.histories >= HISTORIES) {
        assert!(held.figures.get(figure) >= *least, "{figure}: {}", held.figures);
    }
}

pub(crate) fn repeat<W: World>() {
    for seed in (0..20).chain([77, 12_345, u64::MAX]) {
        let (first, second) = (play::history::<W>(seed, None), play::history::<W>(seed, None));
        let differs = first.trace.iter().zip(&second.trace).find(|(one, other)| one != other);
        assert_eq!(first.hash, second.hash, "seed {seed}: {differs:?}");
    }
}

pub(crate) fn planted<W: World>() {
    for bug in W::BUGS {
        match many::many::<W>(0..PLANTED_SEEDS_MAX, Some(bug), |_| ()) {
            Err(seed) => println!("{bug}: caught by seed {seed}"),
            Ok(_) => panic!("{bug} is caught by none of {PLANTED_SEEDS_MAX} seeds"),
        }
    }
}
