//! `cargo xtask mutants`: how good the quick tests are. cargo-mutants changes the code that decides, one place at a
//! time, and the tests have to notice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::phase;
use crate::{cargo, toolchain};

/// Change the code that decides, one place at a time, and see whether the quick tests notice.
///
/// Installs cargo-mutants. Works on a copy of the last commit below target/mutants/, so the checkout stays as it is. What
/// was tried is kept in target/xtask/mutants.json: the next call goes on from there, as long as the commit is the
/// same. Prints the score of each folder and every mutant that survived; exits with 1 when one did that is not listed
/// with a reason in .cargo/mutants.toml.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only these folders: intent, guard, relay, consumer, client. Separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "FOLDERS")]
    only: Vec<String>,
    /// Stop after so long; what has begun ends. Without it, until all were tried.
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Draws which come first. Without it, in order.
    #[arg(long)]
    seed: Option<u64>,
    /// Forget what was tried before.
    #[arg(long)]
    again: bool,
}

/// The code that decides, and what it is called here. The rest of the command line is in .cargo/mutants.toml.
const FOLDERS: &[(&str, &[&str])] = &[
    ("intent", &["crates/semel/src/intent/**/*.rs"]),
    ("guard", &["crates/semel/src/guard/**/*.rs"]),
    (
        "relay",
        &[
            "crates/semel/src/relay/wave.rs",
            "crates/semel/src/relay/blame.rs",
            "crates/semel/src/relay/parts.rs",
            "crates/semel/src/relay/exactly_once.rs",
            "crates/semel/src/relay/poll/aside.rs",
        ],
    ),
    (
        "consumer",
        &[
            "crates/semel/src/inbox/consumer/desk.rs",
            "crates/semel/src/inbox/consumer/bisect.rs",
            "crates/semel/src/inbox/consumer/trouble.rs",
        ],
    ),
    (
        "client",
        &[
            "crates/semel/src/http/client/decide.rs",
            "crates/semel/src/http/client/seen.rs",
            "crates/semel/src/http/client/policy.rs",
        ],
    ),
];

/// Mutants tried by one call of cargo-mutants. Small enough to stop in time, large enough not to start over all the time.
const SHARD: usize = 24;
/// Where time is short.
const SHARD_TIMED: usize = 4;

/// The version that is installed.
const VERSION: &str = "27.1.0";

/// What was tried.
#[derive(Default, Debug, Serialize, Deserialize)]
struct Kept {
    commit: String,
    /// By the mutant's name: caught, missed, timeout or unviable.
    mutants: BTreeMap<String, String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    phase::stop_when_interrupted(|| ())?;
    toolchain::ensure()?;
    let (names, kept) = attempts(arguments)?;
    report(&names, &kept)
}

/// A sample for so long, drawn by the seed. How many were tried, how many of them were caught, and which survived.
pub(crate) fn sample(seed: u64, minutes: u64) -> Result<(usize, usize, Vec<String>), String> {
    let arguments = Arguments { only: Vec::new(), minutes: Some(minutes), seed: Some(seed), again: false };
    let (names, kept) = attempts(&arguments)?;
    let Score { tried, caught, .. } = score(names.iter().map(|(_, name)| name.as_str()), &kept);
    Ok((tried, caught, survivors(&names, &kept)))
}

type Names = Vec<(&'static str, String)>;

fn attempts(arguments: &Arguments) -> Result<(Names, Kept), String> {
    let known: Vec<&str> = FOLDERS.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = arguments.only.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("{unknown:?} is not one of {}", known.join(", ")));
    }
    let program = install()?;
    let tree = copy()?;
    let mut kept = if arguments.again { Kept::default() } else { load(&tree.commit) };
    kept.commit = tree.commit.clone();
    let begin = Instant::now();
    let until = arguments.minutes.map(|minutes| begin + Duration::from_secs(minutes * 60));
    let mut names: Names = Vec::new();
    for (folder, globs) in FOLDERS {
        if arguments.only.is_empty() || arguments.only.iter().any(|name| name == folder) {
            names.extend(list(&program, &tree, globs)?.into_iter().map(|name| (*folder, name)));
        }
    }
    let mut left: Vec<&(&str, String)> =
        names.iter().filter(|(_, name)| !kept.mutants.contains_key(name)).collect();
    if let Some(seed) = arguments.seed {
        crate::prove::shuffle(&mut left, seed);
    }
    eprintln!("{} mutants, {} were tried before", names.len(), names.len() - left.len());
    let size = if until.is_some() { SHARD_TIMED } else { SHARD };
    for shard in left.chunks(size) {
        if until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        let wanted: BTreeSet<&str> = shard.iter().map(|(_, name)| name.as_str()).collect();
        kept.mutants.extend(attempt(&program, &tree, &wanted)?);
        save(&kept)?;
        let done = names.iter().filter(|(_, name)| kept.mutants.contains_key(name)).count();
        eprintln!("{done} of {} tried, {:.0} s", names.len(), begin.elapsed().as_secs_f64());
    }
    Ok((names, kept))
}

/// Installs cargo-mutants below the target folder, once.
fn install() -> Result<PathBuf, String> {
    let root = phase::target().join("tools");
    let program = root.join("bin/cargo-mutants");
    let works = Command::new(&program).args(["mutants", "--version"]).output();
    if works.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(VERSION)) {
        return Ok(program);
    }
    eprintln!("installing cargo-mutants {VERSION}: a few minutes, once");
    let root = root.display().to_string();
    let line = ["install", "--quiet", "--locked", "--version", VERSION, "--root", &root, "cargo-mutants"];
    cargo::run(&line, &[])?;
    Ok(program)
}

struct Tree {
    folder: PathBuf,
    commit: String,
}

/// A copy of the last commit, for cargo-mutants to change.
fn copy() -> Result<Tree, String> {
    let root = phase::target().parent().map(Path::to_owned).unwrap_or_default();
    let folder = phase::target().join("mutants/tree");
    let git = |words: &[&str], place: &Path| {
        let output = Command::new("git").arg("-C").arg(place).args(words).output();
        let output = output.map_err(|error| format!("git: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output
            .status
            .success()
            .then_some(said)
            .ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let commit = git(&["rev-parse", "HEAD"], &root)?;
    if !folder.join(".git").exists() {
        fs::create_dir_all(phase::target().join("mutants")).map_err(|error| error.to_string())?;
        let (from, to) = (root.display().to_string(), folder.display().to_string());
        git(&["clone", "--quiet", "--shared", &from, &to], &root)?;
    }
    git(&["fetch", "--quiet", "origin"], &folder)?;
    // A mutant that was left behind by an interrupted run goes with it.
    git(&["checkout", "--quiet", "--force", "--detach", &commit], &folder)?;
    Ok(Tree { folder, commit })
}

fn cargo_mutants(program: &Path, tree: &Tree) -> Command {
    let mut command = Command::new(program);
    command
        .args(["mutants", "--package", "semel"])
        .current_dir(&tree.folder)
        .env("CARGO_TARGET_DIR", phase::target().join("mutants/target"));
    // What is shared with other runs of the tests would be looked at again for every mutant.
    command.env("SEMEL_HISTORIES", "200").env_remove("CARGO_MANIFEST_DIR");
    command
}

fn list(program: &Path, tree: &Tree, globs: &[&str]) -> Result<Vec<String>, String> {
    let mut command = cargo_mutants(program, tree);
    command.args(["--list", "--json"]);
    for glob in globs {
        command.args(["--file", glob]);
    }
    let output = command.output().map_err(|error| format!("cargo-mutants: {error}"))?;
    let listed: Vec<Value> = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let names: Vec<String> =
        listed.iter().filter_map(|mutant| mutant["name"].as_str().map(str::to_owned)).collect();
    // A folder that moved would otherwise be perfect for ever.
    if names.is_empty() { Err(format!("nothing to change in {}", globs.join(", "))) } else { Ok(names) }
}

/// Tries these, and says of each what came of it.
fn attempt(program: &Path, tree: &Tree, wanted: &BTreeSet<&str>) -> Result<BTreeMap<String, String>, String> {
    let out = phase::target().join("mutants/out");
    let _ = fs::remove_dir_all(&out);
    let mut command = cargo_mutants(program, tree);
    command.args([
        "--in-place",
        "--baseline",
        "skip",
        "--timeout",
        "120",
        "--build-timeout",
        "600",
        "--no-shuffle",
    ]);
    command.arg("--output").arg(&out);
    for name in wanted {
        command.args(["--re", &format!("^{}$", escaped(name))]);
    }
    // Mutants that delete a field pass every expression; with the files named, at most those of these files come along.
    let files: BTreeSet<&str> = wanted.iter().filter_map(|name| name.split(':').next()).collect();
    for file in files {
        command.args(["--file", file]);
    }
    let phase = phase::quietly("mutants", command);
    let file = out.join("mutants.out/outcomes.json");
    let text = fs::read_to_string(&file)
        .map_err(|error| format!("{}: {error}; log: {}", file.display(), phase.log.display()))?;
    outcomes(&text)
}

/// What `outcomes.json` says of each mutant.
fn outcomes(text: &str) -> Result<BTreeMap<String, String>, String> {
    let outcomes: Value = serde_json::from_str(text).map_err(|error| format!("outcomes.json: {error}"))?;
    let one = |outcome: &Value| {
        let name = outcome["scenario"]["Mutant"]["name"].as_str()?;
        let word = match outcome["summary"].as_str()? {
            "CaughtMutant" => "caught",
            "MissedMutant" => "missed",
            // A test that hangs has noticed.
            "Timeout" => "timeout",
            _ => "unviable",
        };
        Some((name.to_owned(), word.to_owned()))
    };
    Ok(outcomes["outcomes"].as_array().into_iter().flatten().filter_map(one).collect())
}

fn escaped(name: &str) -> String {
    let mut escaped = String::new();
    for c in name.chars() {
        // An escaped letter, or `\<`, would mean something else.
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

fn file() -> PathBuf {
    phase::logs().join("mutants.json")
}

fn load(commit: &str) -> Kept {
    let kept = fs::read_to_string(file()).ok().and_then(|text| serde_json::from_str::<Kept>(&text).ok());
    kept.filter(|kept| kept.commit == commit).unwrap_or_default()
}

fn save(kept: &Kept) -> Result<(), String> {
    let text = serde_json::to_string_pretty(kept).map_err(|error| error.to_string())?;
    let written = fs::create_dir_all(phase::logs()).and_then(|()| fs::write(file(), text + "\n"));
    written.map_err(|error| format!("{}: {error}", file().display()))
}

/// Of one folder.
#[derive(Default, PartialEq, Eq, Debug)]
struct Score {
    tried: usize,
    caught: usize,
    unviable: usize,
}

fn score<'n>(names: impl Iterator<Item = &'n str>, kept: &Kept) -> Score {
    let mut score = Score::default();
    for word in names.filter_map(|name| kept.mutants.get(name)) {
        match word.as_str() {
            "unviable" => score.unviable += 1,
            "missed" => score.tried += 1,
            _ => {
                score.tried += 1;
                score.caught += 1;
            }
        }
    }
    score
}

fn survivors(names: &[(&str, String)], kept: &Kept) -> Vec<String> {
    let missed = |name: &&String| kept.mutants.get(*name).is_some_and(|word| word == "missed");
    names.iter().map(|(_, name)| name).filter(missed).cloned().collect()
}

fn report(names: &[(&str, String)], kept: &Kept) -> Result<(), String> {
    println!("{:<10} {:>8} {:>7} {:>7} {:>9}  score", "folder", "mutants", "tried", "caught", "unviable");
    for (folder, _) in FOLDERS {
        let of_folder = || names.iter().filter(|(name, _)| name == folder).map(|(_, name)| name.as_str());
        let Score { tried, caught, unviable } = score(of_folder(), kept);
        if of_folder().next().is_none() {
            continue;
        }
        let share = if tried == 0 {
            "–".to_owned()
        } else {
            format!("{:.1} %", 100.0 * caught as f64 / tried as f64)
        };
        println!("{folder:<10} {:>8} {tried:>7} {caught:>7} {unviable:>9}  {share}", of_folder().count());
    }
    let survived = survivors(names, kept);
    for name in &survived {
        println!("survived: {name}");
    }
    println!("commit {}, kept in {}", kept.commit, file().display());
    if survived.is_empty() { Ok(()) } else { Err(String::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read_and_scored() {
        let text = r#"{"outcomes": [
            {"scenario": "Baseline", "summary": "Success"},
            {"scenario": {"Mutant": {"name": "a"}}, "summary": "CaughtMutant"},
            {"scenario": {"Mutant": {"name": "b"}}, "summary": "MissedMutant"},
            {"scenario": {"Mutant": {"name": "c"}}, "summary": "Timeout"},
            {"scenario": {"Mutant": {"name": "d"}}, "summary": "Unviable"}
        ]}"#;
        let kept = Kept { commit: String::new(), mutants: outcomes(text).unwrap() };
        let names = ["a", "b", "c", "d", "never tried"];
        assert_eq!(score(names.into_iter(), &kept), Score { tried: 3, caught: 2, unviable: 1 });
        assert!(report(&[("guard", "b".to_owned())], &kept).is_err());
        assert!(report(&[("guard", "a".to_owned())], &kept).is_ok());
    }

    #[test]
    fn a_name_is_matched_as_it_is() {
        assert_eq!(escaped("a.rs:1:2: replace > with >="), r"a\.rs:1:2: replace > with >=");
        assert_eq!(escaped("f -> Option<[u8]>"), r"f \-> Option<\[u8\]>");
    }
}
