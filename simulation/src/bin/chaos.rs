//! `cargo xtask chaos`: any number of simulated histories, on all cores, replayable by seed.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use simulation::known::Known;
use simulation::minimise::minimise;
use simulation::world::World;
use simulation::worlds::NAMES;
use simulation::{many, play, with_world};

/// Run simulated histories of crashes, stalls and faults; each seed is one, the same every time.
#[derive(Debug, Parser)]
struct Arguments {
    /// The world: guard, client, relay, consumer or saga. Without it, all of them.
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(NAMES.iter().copied()))]
    world: Option<String>,
    /// How many histories of each world.
    #[arg(long, default_value_t = 20_000, conflicts_with = "seed")]
    seeds: u64,
    /// The first of them; random without it.
    #[arg(long, value_name = "SEED", conflicts_with = "seed")]
    from: Option<u64>,
    /// Just this one, step by step: replays what a failure printed.
    #[arg(long, requires = "world")]
    seed: Option<u64>,
    /// Plant this bug, to see it caught.
    #[arg(long, requires = "world")]
    plant: Option<String>,
    /// Print the minimised plan of a failing history as JSON, for tests/known/.
    #[arg(long)]
    json: bool,
}

/// 0: all laws held; 1: one was broken; 2: wrong usage.
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let names: Vec<&str> = match &arguments.world {
        Some(world) => vec![world.as_str()],
        None => NAMES.to_vec(),
    };
    let mut all = true;
    for name in names {
        match with_world!(name, run(&arguments)) {
            Some(Ok(held)) => all &= held,
            Some(Err(message)) => {
                eprintln!("error: {message}");
                return ExitCode::from(2);
            }
            None => unreachable!("the names were checked"),
        }
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run<W: World>(arguments: &Arguments) -> Result<bool, String> {
    let planted = match &arguments.plant {
        None => None,
        Some(name) => {
            let bug = W::BUGS.iter().find(|bug| *bug == name);
            Some(*bug.ok_or_else(|| format!("{name:?} is not one of {}", W::BUGS.join(", ")))?)
        }
    };
    if let Some(seed) = arguments.seed {
        let played = play::history::<W>(seed, planted);
        played.trace.iter().for_each(|line| println!("{line}"));
        println!("{}", played.figures);
        return Ok(match played.verdict {
            Ok(()) => {
                println!("{}, seed {seed}: every law held", W::NAME);
                true
            }
            Err(_) => broken::<W>(seed, planted, arguments.json),
        });
    }
    let from = arguments.from.unwrap_or_else(|| fastrand::u64(0..1 << 40));
    let begin = Instant::now();
    let progress = |done: u64| {
        if done.is_multiple_of(5_000) {
            eprintln!(
                "{}: {done} of {} histories, {:.0} s",
                W::NAME,
                arguments.seeds,
                begin.elapsed().as_secs_f64()
            );
        }
    };
    match many::many::<W>(from..from.saturating_add(arguments.seeds), planted, progress) {
        Ok(held) => {
            println!(
                "{}: held from seed {from}, {:.0} histories per second and core; figures: {} histories, {}",
                W::NAME,
                held.rate(),
                held.histories,
                held.figures
            );
            Ok(true)
        }
        Err(seed) => Ok(broken::<W>(seed, planted, arguments.json)),
    }
}

/// Says what was broken, by the smallest history that shows it.
fn broken<W: World>(seed: u64, planted: Option<&'static str>, json: bool) -> bool {
    let (plan, played) = minimise::<W>(seed, play::plan::<W>(seed), planted);
    let Err(violation) = played.verdict else { return true };
    println!("\nminimised:");
    played.trace.iter().for_each(|line| println!("{line}"));
    println!("{plan:#?}");
    if json {
        let known = Known { shows: violation.what.clone(), law: violation.law.to_owned(), seed, plan };
        println!("{}", serde_json::to_string_pretty(&known).unwrap_or_default());
    }
    println!("broken: {violation}");
    println!("replay: cargo xtask chaos --world {} --seed {seed}", W::NAME);
    false
}
