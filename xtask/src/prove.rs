//! `cargo xtask prove`: random kills, load with faults, large runs, soak. What is not deterministic or takes minutes.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use testkit::services::Service;

use crate::binaries::Binary;
use crate::old::{self, Old};
use crate::phase;
use crate::suite::{NotReady, Suite, stop_started};
use crate::tally::tail;
use crate::{cargo, mutants};

/// Run what is random or takes long: random kills, load with faults, fresh seeds of the simulation.
///
/// First fresh seeds of every simulated world, then the tests marked `#[ignore = "prove: …"]` in an order drawn by the
/// seed, again and again until the time is over, then (given half an hour or more) five minutes of mutants. Each prints
/// its figures; they are added up and kept with the seeds in target/xtask/prove.json. Exits with 1 when something was
/// lost, doubled or stalled, and prints how to run that again.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// How long. What has begun by then finishes.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// Only what has this in its name, such as `relay_chaos`, `simulation` or a test.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Draws the order and the seeds of the tests.
    #[arg(long)]
    seed: Option<u64>,
    /// Every test gets this seed, once: replays what a failure printed. With --only.
    #[arg(long, value_name = "SEED", requires = "only", conflicts_with = "seed")]
    test_seed: Option<u64>,
    /// List what there is, and run nothing.
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    old: Old,
}

/// The share of the time that goes to the simulation.
const SIMULATION_SHARE: f64 = 0.2;

/// How long mutants are tried, and from how many minutes on: building them takes minutes before the first one. A
/// survivor is shown, but is no violation: see `cargo xtask mutants`.
const MUTANTS_MINUTES: u64 = 5;
const MUTANTS_FROM_MINUTES: u64 = 30;

/// Tests that run at the same time.
const AT_ONCE: usize = 2;

/// Histories of a world before the next one has its turn.
const HISTORIES: u64 = 5_000;

/// Lines of a test that failed that are shown. Its log has the rest.
const SHOWN_LINES_MAX: usize = 60;

const WORLDS: [&str; 4] = ["guard", "client", "relay", "consumer"];

/// What one test or world came to over all its runs.
#[derive(Default, Debug)]
struct Line {
    runs: u32,
    seconds: f64,
    figures: BTreeMap<String, u64>,
    failed: Vec<Value>,
}

#[derive(Default)]
struct Results(Mutex<BTreeMap<String, Line>>);

impl Results {
    fn add(&self, name: &str, took: Duration, output: &str, failed: Option<Value>) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.entry(name.to_owned()).or_default();
        line.runs += 1;
        line.seconds += took.as_secs_f64();
        for (figure, count) in output.lines().flat_map(figures) {
            *line.figures.entry(figure).or_default() += count;
        }
        line.failed.extend(failed);
    }
}

/// `figures: 12 kills, 3400 messages`, as tests and worlds print it.
fn figures(line: &str) -> Vec<(String, u64)> {
    let Some((_, list)) = line.split_once("figures: ") else { return Vec::new() };
    let entry = |entry: &str| {
        let (count, name) = entry.trim().split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    list.split(',').filter_map(entry).collect()
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    phase::stop_when_interrupted(|| drop(stop_started()))?;
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let worlds: Vec<&str> =
        WORLDS.into_iter().filter(|world| wanted(&format!("simulation {world}"))).collect();
    let simulation_alone = arguments.only.as_deref().is_some_and(|only| only.starts_with("simulation"));
    let chosen = if arguments.list || simulation_alone { Vec::new() } else { Service::ALL.to_vec() };
    let named: Vec<String> = if simulation_alone { vec!["simulation".to_owned()] } else { Vec::new() };
    let old = if arguments.list || simulation_alone { None } else { arguments.old.binary()? };
    let suite = Suite::prepare(&named, &chosen).map_err(|error| match error {
        NotReady::Phase(phase) => {
            eprintln!("{}", tail(&phase.output()));
            format!("{} ({}), log: {}", phase.name, phase.note, phase.log.display())
        }
        NotReady::Named(name, message) => format!("{name}: {message}"),
    });
    let proved = suite.and_then(|suite| {
        let mut tests: Vec<(&Binary, String)> = Vec::new();
        for binary in &suite.binaries {
            let ignored = ignored(binary, &suite)?.into_iter();
            tests.extend(
                ignored.filter(|test| wanted(&format!("{} {test}", binary.name))).map(|test| (binary, test)),
            );
        }
        if tests.is_empty() && worlds.is_empty() {
            return Err("no test has that in its name; --list shows all of them".to_owned());
        }
        if arguments.list {
            worlds.iter().for_each(|world| println!("simulation {world}"));
            tests.iter().for_each(|(binary, test)| println!("{} {test}", binary.name));
            return Ok(());
        }
        prove(arguments, &suite, old.as_deref(), &worlds, tests)
    });
    let stopped = stop_started();
    proved.and(stopped)
}

fn prove(
    arguments: &Arguments,
    suite: &Suite,
    old: Option<&Path>,
    worlds: &[&str],
    mut tests: Vec<(&Binary, String)>,
) -> Result<(), String> {
    let seed = arguments.seed.unwrap_or_else(|| mixed(now()));
    println!("seed {seed} (--seed {seed} draws the same order)");
    if !worlds.is_empty() {
        cargo::run(&["build", "--quiet", "--release", "--package", "simulation", "--bin", "chaos"], &[])?;
    }
    let begin = Instant::now();
    let time = Duration::from_secs(arguments.minutes * 60);
    let results = Results::default();
    let for_worlds = if tests.is_empty() { time } else { time.mul_f64(SIMULATION_SHARE) };
    simulate(worlds, seed, begin + for_worlds, &results);
    shuffle(&mut tests, seed);
    let all = tests.len();
    let queue = Mutex::new((VecDeque::from(tests), seed));
    let queue = || queue.lock().unwrap_or_else(PoisonError::into_inner);
    let worker = || {
        while begin.elapsed() < time {
            let Some((binary, test)) = queue().0.pop_front() else { break };
            let seed = {
                let mut queue = queue();
                queue.1 = mixed(queue.1);
                arguments.test_seed.unwrap_or(queue.1)
            };
            one(suite, old, binary, &test, seed, &results);
            // Again when all have run; not before it ended, so that no test runs beside itself.
            if arguments.test_seed.is_none() {
                queue().0.push_back((binary, test));
            }
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(worker))));
    let mutants = match &arguments.only {
        None if arguments.minutes >= MUTANTS_FROM_MINUTES => Some(mutants::sample(seed, MUTANTS_MINUTES)?),
        _ => None,
    };
    if let Some((tried, caught, survived)) = &mutants {
        println!("\nmutants: {caught} of {tried} caught");
        survived.iter().for_each(|name| println!("survived: {name}"));
    }
    report(arguments, seed, begin.elapsed(), all, results, mutants)
}

/// Fresh seeds of every world by turns, until the time is over.
fn simulate(worlds: &[&str], seed: u64, until: Instant, results: &Results) {
    let mut seed = seed;
    for world in worlds.iter().cycle() {
        if Instant::now() >= until {
            break;
        }
        seed = mixed(seed);
        let from = (seed >> 24).to_string();
        let histories = HISTORIES.to_string();
        let mut command = cargo::command(
            &["run", "--quiet", "--release", "--package", "simulation", "--bin", "chaos", "--"],
            &[],
            &["--world", world, "--seeds", &histories, "--from", &from],
        );
        command.env("RUST_BACKTRACE", "1");
        let (begin, name) = (Instant::now(), format!("simulation {world}"));
        let phase = phase::quietly(&format!("prove-simulation-{world}"), command);
        let output = phase.output();
        let failed = (!phase.ok).then(|| {
            eprintln!("{output}");
            json!({ "again": format!("cargo xtask chaos --world {world} --seeds {histories} --from {from}") })
        });
        results.add(&name, begin.elapsed(), &output, failed);
        phase::report(&name, phase.ok, begin.elapsed());
    }
}

/// One test, once.
fn one(suite: &Suite, old: Option<&Path>, binary: &Binary, test: &str, seed: u64, results: &Results) {
    let name = format!("{} {test}", binary.name);
    let mut command = binary.command();
    command
        .args(["--ignored", "--exact", test, "--nocapture"])
        .env("SEMEL_SEED", seed.to_string())
        .env("SEMEL_PROVE", "1");
    suite.environment(&mut command);
    old::environment(&mut command, old);
    let begin = Instant::now();
    let phase = phase::quietly(&format!("prove-{}-{seed}", name.replace([' ', ':'], "-")), command);
    let output = phase.output();
    // A filter that finds nothing passes too.
    let ran = output.contains("1 passed");
    let failed = (!phase.ok || !ran).then(|| {
        // Nothing is captured here, so the panic and what led to it stand before the list of failures.
        eprintln!("{}\nlog: {}", last_lines(&output), phase.log.display());
        let again = format!("cargo xtask prove --only {test} --test-seed {seed}");
        json!({ "seed": seed, "again": again, "log": phase.log.display().to_string() })
    });
    let ok = failed.is_none();
    if ok {
        // Only the logs of failures are read; a long run would leave thousands.
        let _ = fs::remove_file(&phase.log);
    }
    results.add(&name, begin.elapsed(), &output, failed);
    phase::report(&name, ok, begin.elapsed());
}

/// The end of a test's output.
fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES_MAX)..].join("\n")
}

/// The tests of a binary that `cargo xtask test` leaves to us.
fn ignored(binary: &Binary, suite: &Suite) -> Result<Vec<String>, String> {
    let mut command = binary.command();
    command.args(["--list", "--format", "json", "-Zunstable-options"]).env("RUSTC_BOOTSTRAP", "1");
    suite.environment(&mut command);
    let output = command.output().map_err(|error| format!("{}: {error}", binary.name))?;
    Ok(marked(&String::from_utf8_lossy(&output.stdout)))
}

/// Those that are marked `#[ignore = "prove: …"]`. Others may be ignored because another test starts them.
fn marked(listed: &str) -> Vec<String> {
    let one = |line: &str| {
        let test: Value = serde_json::from_str(line).ok()?;
        let marked = test["ignore_message"].as_str()?.starts_with("prove: ");
        marked.then(|| test["name"].as_str().map(str::to_owned)).flatten()
    };
    listed.lines().filter_map(one).collect()
}

fn report(
    arguments: &Arguments,
    seed: u64,
    took: Duration,
    tests: usize,
    results: Results,
    mutants: Option<(usize, usize, Vec<String>)>,
) -> Result<(), String> {
    let lines = results.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut total: BTreeMap<&str, u64> = BTreeMap::new();
    println!("\n{:>5} {:>9}  what", "runs", "seconds");
    for (name, line) in &lines {
        let figures: Vec<String> =
            line.figures.iter().map(|(name, count)| format!("{count} {name}")).collect();
        println!("{:>5} {:>9.1}  {name}: {}", line.runs, line.seconds, figures.join(", "));
        for (figure, count) in &line.figures {
            *total.entry(figure).or_default() += count;
        }
    }
    let violations: usize = lines.values().map(|line| line.failed.len()).sum();
    let reached = lines.keys().filter(|name| !name.starts_with("simulation ")).count();
    let kept = json!({
        "commit": commit(), "seed": seed, "minutes": arguments.minutes, "only": arguments.only,
        "seconds": took.as_secs_f64().round(), "violations": violations, "tests": tests, "tests_reached": reached,
        "figures": total,
        "mutants": mutants.map(|(tried, caught, survived)| json!({ "tried": tried, "caught": caught, "survived": survived })),
        "parts": lines.iter().map(|(name, line)| json!({
            "name": name, "runs": line.runs, "seconds": line.seconds, "figures": line.figures, "failed": line.failed,
        })).collect::<Vec<_>>(),
    });
    let file: PathBuf = phase::logs().join("prove.json");
    let text = serde_json::to_string_pretty(&kept).map_err(|error| error.to_string())?;
    fs::write(&file, text + "\n").map_err(|error| format!("{}: {error}", file.display()))?;
    let totals: Vec<String> = total.iter().map(|(name, count)| format!("{count} {name}")).collect();
    println!("\nin all: {}", totals.join(", "));
    println!(
        "{reached} of {tests} tests reached in {:.0} s (--minutes reaches more); kept in {}",
        took.as_secs_f64(),
        file.display()
    );
    for failed in lines.values().flat_map(|line| &line.failed) {
        println!("again: {}", failed["again"].as_str().unwrap_or_default());
    }
    println!("{violations} violations");
    if reached == 0 && tests > 0 {
        return Err("no test was reached in that time; give it more --minutes".to_owned());
    }
    if violations == 0 { Ok(()) } else { Err(String::new()) }
}

fn commit() -> String {
    let output = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

/// SplitMix64.
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

pub(crate) fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut seed = seed;
    for at in (1..items.len()).rev() {
        seed = mixed(seed);
        items.swap(at, (seed % (at as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_what_is_printed() {
        let read = figures("guard: figures: 12 kills, 3400 messages");
        assert_eq!(read, [("kills".to_owned(), 12), ("messages".to_owned(), 3400)]);
        assert_eq!(figures("test a ... ok"), []);
        assert_eq!(figures("figures: many kills"), []);
    }

    #[test]
    fn only_what_is_marked_is_run() {
        let listed = r#"
            {"type": "test", "event": "discovered", "name": "a", "ignore": true, "ignore_message": "prove: load"}
            {"type": "test", "event": "discovered", "name": "b", "ignore": true, "ignore_message": "started by a"}
            {"type": "test", "event": "discovered", "name": "c", "ignore": false, "ignore_message": ""}"#;
        assert_eq!(marked(listed), ["a"]);
    }

    #[test]
    fn the_same_seed_draws_the_same_order() {
        let drawn = |seed| {
            let mut items: Vec<u32> = (0..20).collect();
            shuffle(&mut items, seed);
            items
        };
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
        let mut sorted = drawn(7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<u32>>());
    }

    #[test]
    fn every_failure_counts() {
        let results = Results::default();
        results.add("a", Duration::from_secs(1), "figures: 2 kills", None);
        results.add("a", Duration::from_secs(1), "figures: 3 kills", Some(json!({ "again": "x" })));
        let lines = results.0.into_inner().unwrap();
        assert_eq!((lines["a"].runs, lines["a"].figures["kills"], lines["a"].failed.len()), (2, 5, 1));
    }
}
