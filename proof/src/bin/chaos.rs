//! `cargo xtask chaos`: any number of simulated histories, on all cores, replayable by seed.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use proof::simulation::{self, Report};

const USAGE: &str = "usage: chaos (--seeds N [--from SEED] | --seed SEED)";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| -> Option<Result<u64, String>> {
        let at = args.iter().position(|arg| arg == name)?;
        let given = args.get(at + 1).map_or("", String::as_str);
        Some(given.parse().map_err(|_| format!("{name} needs a whole number, not {given:?}")))
    };
    let parsed = (|| match (value("--seed").transpose()?, value("--seeds").transpose()?) {
        (Some(seed), None) => Ok(seed..seed + 1),
        (None, Some(count)) => {
            let from = value("--from").transpose()?.unwrap_or_else(|| fastrand::u64(0..1 << 40));
            Ok(from..from + count)
        }
        _ => Err(USAGE.to_owned()),
    })();
    match parsed {
        Ok(seeds) => run(seeds),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run(seeds: std::ops::Range<u64>) -> ExitCode {
    let (next, stop, started) = (AtomicU64::new(seeds.start), AtomicBool::new(false), Instant::now());
    let (total, failed) = (Mutex::new(Report::default()), Mutex::new(None));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let worker = || {
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            match simulation::run(seed) {
                Ok(report) => total.lock().expect("no panic holds this").add(&report),
                Err(violation) => {
                    stop.store(true, Ordering::Relaxed);
                    failed.lock().expect("no panic holds this").get_or_insert(violation);
                }
            }
            let done = seed - seeds.start + 1;
            if done.is_multiple_of(5_000) {
                eprintln!(
                    "{done} of {} histories, {:.0} s",
                    seeds.end - seeds.start,
                    started.elapsed().as_secs_f64()
                );
            }
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(worker))));
    if let Some(violation) = failed.into_inner().expect("no panic holds this") {
        eprintln!("broken: {violation}\nreplay: cargo xtask chaos --seed {}", violation.seed);
        return ExitCode::FAILURE;
    }
    let total = total.into_inner().expect("no panic holds this");
    println!("{} histories from seed {} held: {total}", seeds.end - seeds.start, seeds.start);
    ExitCode::SUCCESS
}
