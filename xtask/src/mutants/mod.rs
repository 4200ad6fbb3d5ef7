//! `cargo xtask mutants`: how good the quick tests are. cargo-mutants changes the code that decides, one place at a
//! time, and the tests have to notice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;

use crate::{phase, toolchain, tools};

mod folders;
mod results;

use folders::{FOLDERS, Folder, Stage};
use results::{Kept, MutantResult, Score, Tried};

/// Change the code that decides, one place at a time, and see whether the quick tests notice.
///
/// Installs cargo-mutants. Works on copies of the last commit below target/mutants/, so the checkout stays as it is.
/// First the tests run without a mutant: they have to pass. What was tried is kept in target/xtask/mutants.json, and the
/// next call goes on from there: a mutant that was caught is not tried again until its file changes, one that survived is
/// tried again after every commit. The results of files that are through go to xtask/mutants.json, which is checked in.
/// Prints the score of each folder and every mutant that survived; exits with 1 when one did that is not listed with a
/// reason in .cargo/mutants.toml.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only these folders: fingerprint, intent, guard, relay, consumer, client. Separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "FOLDERS")]
    only: Vec<String>,
    /// Stop after so long; what has begun ends. Without it, until all were tried.
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Draws which come first, of all folders. Without it, in order.
    #[arg(long)]
    seed: Option<u64>,
    /// Try so many at a time, each in a copy of its own (about 1 GB).
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    jobs: u8,
    /// Forget what was tried before.
    #[arg(long)]
    again: bool,
}

/// Mutants tried by one call of cargo-mutants. Small enough to stop in time, large enough not to start over all the time.
const SHARD: usize = 24;
/// Where time is short.
const SHARD_TIMED: usize = 4;

/// How long the tests of a mutant may take, against those without one: then they hang.
const TIMEOUT_FACTOR: u64 = 5;
const TIMEOUT_LEAST: u64 = 40;

/// The version that is installed.
const VERSION: &str = "27.1.0";

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    phase::stop_when_interrupted(|| ())?;
    toolchain::ensure()?;
    let (names, kept) = attempts(arguments)?;
    results::check_in(&names, &kept)?;
    results::report(&names, &kept)
}

/// A sample for so long, drawn by the seed. How many were tried, how many of them were caught, and which survived.
pub(crate) fn sample(seed: u64, minutes: u64) -> Result<(usize, usize, Vec<String>), String> {
    let arguments =
        Arguments { only: Vec::new(), minutes: Some(minutes), seed: Some(seed), jobs: 2, again: false };
    let (names, kept) = attempts(&arguments)?;
    let Score { tried, caught, .. } = results::score(names.iter().map(|(_, name)| name.as_str()), &kept);
    Ok((tried, caught, results::survivors(&names, &kept)))
}

type Names = Vec<(&'static str, String)>;

fn attempts(arguments: &Arguments) -> Result<(Names, Kept), String> {
    let known: Vec<&str> = FOLDERS.iter().map(|folder| folder.name).collect();
    if let Some(unknown) = arguments.only.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("{unknown:?} is not one of {}", known.join(", ")));
    }
    let program = tools::install("mutants", VERSION)?;
    let trees = (1..=arguments.jobs).map(copy).collect::<Result<Vec<Tree>, String>>()?;
    let tree = &trees[0];
    let mut names: Names = Vec::new();
    for folder in FOLDERS {
        if arguments.only.is_empty() || arguments.only.iter().any(|name| name == folder.name) {
            names.extend(list(&program, tree, folder)?.into_iter().map(|name| (folder.name, name)));
        }
    }
    let kept = if arguments.again {
        Kept { commit: tree.commit.clone(), ..Kept::default() }
    } else {
        results::load(&names, &tree.commit, |path| tree.file(path).ok())
    };
    let mut left: Names =
        names.iter().filter(|(_, name)| !kept.mutants.contains_key(name)).cloned().collect();
    if let Some(seed) = arguments.seed {
        crate::prove::shuffle(&mut left, seed);
    }
    eprintln!("{} mutants, {} were tried before", names.len(), names.len() - left.len());
    let timeouts = baseline(tree, &left)?;
    let begin = Instant::now();
    let until = arguments.minutes.map(|minutes| begin + Duration::from_secs(minutes * 60));
    let size = if until.is_some() { SHARD_TIMED } else { SHARD };
    let shards = Mutex::new(shards(left, size));
    let kept = Mutex::new(kept);
    let work = |tree: &Tree| -> Result<(), String> {
        while until.is_none_or(|until| Instant::now() < until) {
            let Some((folder, wanted)) = locked(&shards).pop_front() else { break };
            let outcomes = attempt(&program, tree, folder, wanted, timeouts[folder.name])?;
            let mut kept = locked(&kept);
            for (name, result) in outcomes {
                let file = tree.file(results::path(&name))?;
                kept.mutants.insert(name, Tried { file, result });
            }
            results::save(&kept)?;
            let done = names.iter().filter(|(_, name)| kept.mutants.contains_key(name)).count();
            eprintln!("{done} of {} tried, {:.0} s", names.len(), begin.elapsed().as_secs_f64());
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = trees.iter().map(|tree| scope.spawn(|| work(tree))).collect();
        let ended =
            workers.into_iter().map(|worker| worker.join().unwrap_or(Err("a worker died".to_owned())));
        ended.collect::<Result<Vec<()>, String>>()
    })?;
    Ok((names, kept.into_inner().unwrap_or_else(PoisonError::into_inner)))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Shards = VecDeque<(&'static Folder, Vec<String>)>;

/// In as many mutants as one call takes, of one folder each; the order of the first of each stays.
fn shards(names: Names, size: usize) -> Shards {
    let mut shards: Shards = VecDeque::new();
    for (name, mutant) in names {
        let open = shards.iter_mut().rev().find(|(folder, _)| folder.name == name);
        match open.filter(|(_, mutants)| mutants.len() < size) {
            Some((_, mutants)) => mutants.push(mutant),
            None => shards.extend(Folder::named(name).map(|folder| (folder, vec![mutant]))),
        }
    }
    shards
}

/// The tests without a mutant: a test that fails anyway would catch them all. How long a mutant may take, by folder.
fn baseline(tree: &Tree, left: &Names) -> Result<BTreeMap<&'static str, u64>, String> {
    let mut timeouts = BTreeMap::new();
    for folder in FOLDERS.iter().filter(|folder| left.iter().any(|(name, _)| *name == folder.name)) {
        let mut longest = Duration::ZERO;
        for stage in folder.stages {
            let cargo = |more: &[&str]| {
                let mut command = tree.command(Command::new("cargo"));
                command.arg("test").args(stage.packages().iter().flat_map(|name| ["--package", name]));
                command.args(stage.built()).args(more);
                phase::quietly(&format!("mutants-baseline-{}", folder.name), command)
            };
            let built = cargo(&["--no-run"]);
            let filters = stage.filters();
            let begin = Instant::now();
            let tested = if built.ok { cargo(&[&["--"], filters.as_slice()].concat()) } else { built };
            if !tested.ok {
                let (log, note) = (tested.log.display(), tested.note);
                return Err(format!(
                    "the tests of {} fail without a mutant ({note}), log: {log}",
                    folder.name
                ));
            }
            let stage = stage.binaries.join(", ");
            eprintln!("{} ({stage}): {:.1} s without a mutant", folder.name, begin.elapsed().as_secs_f64());
            longest = longest.max(begin.elapsed());
        }
        timeouts.insert(folder.name, TIMEOUT_LEAST + TIMEOUT_FACTOR * longest.as_secs());
    }
    Ok(timeouts)
}

struct Tree {
    number: u8,
    folder: PathBuf,
    commit: String,
}

impl Tree {
    fn command(&self, mut command: Command) -> Command {
        command
            .current_dir(self.folder.join("tree"))
            .env("CARGO_TARGET_DIR", self.folder.join("target"))
            // Seconds for a mutant, not minutes.
            .env("SEMEL_HISTORIES", "200")
            .env_remove("CARGO_MANIFEST_DIR");
        command
    }

    /// What a file is in this commit.
    fn file(&self, path: &str) -> Result<String, String> {
        git(&["rev-parse", &format!("HEAD:{path}")], &self.folder.join("tree"))
    }
}

fn git(words: &[&str], place: &Path) -> Result<String, String> {
    let output = Command::new("git").arg("-C").arg(place).args(words).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output
        .status
        .success()
        .then_some(said)
        .ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A copy of the last commit, for cargo-mutants to change.
fn copy(number: u8) -> Result<Tree, String> {
    let root = phase::target().parent().map(Path::to_owned).unwrap_or_default();
    let place = phase::target().join(format!("mutants/{number}"));
    let folder = place.join("tree");
    let commit = git(&["rev-parse", "HEAD"], &root)?;
    if !folder.join(".git").exists() {
        fs::create_dir_all(&place).map_err(|error| error.to_string())?;
        let (from, to) = (root.display().to_string(), folder.display().to_string());
        git(&["clone", "--quiet", "--shared", &from, &to], &root)?;
    }
    git(&["fetch", "--quiet", "origin"], &folder)?;
    // A mutant that was left behind by an interrupted run goes with it.
    git(&["checkout", "--quiet", "--force", "--detach", &commit], &folder)?;
    Ok(Tree { number, folder: place, commit })
}

fn cargo_mutants(program: &Path, tree: &Tree) -> Command {
    let mut command = tree.command(Command::new(program));
    command.args(["mutants", "--package", "semel"]);
    command
}

fn list(program: &Path, tree: &Tree, folder: &Folder) -> Result<Vec<String>, String> {
    let mut command = cargo_mutants(program, tree);
    command.args(["--list", "--json"]);
    for glob in folder.globs {
        command.args(["--file", glob]);
    }
    let output = command.output().map_err(|error| format!("cargo-mutants: {error}"))?;
    let listed: Vec<Value> = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let names: Vec<String> =
        listed.iter().filter_map(|mutant| mutant["name"].as_str().map(str::to_owned)).collect();
    // A folder that moved would otherwise be perfect for ever.
    if names.is_empty() {
        Err(format!("nothing to change in {}", folder.globs.join(", ")))
    } else {
        Ok(names)
    }
}

/// Tries these, stage by stage, and says of each what came of it.
fn attempt(
    program: &Path,
    tree: &Tree,
    folder: &Folder,
    mut wanted: Vec<String>,
    timeout: u64,
) -> Result<BTreeMap<String, MutantResult>, String> {
    let mut results = BTreeMap::new();
    for stage in folder.stages {
        let of_stage = attempt_stage(program, tree, stage, &wanted, timeout)?;
        // Others may have come along, which are not tried in every stage.
        results.extend(wanted.iter().filter_map(|name| Some((name.clone(), *of_stage.get(name)?))));
        wanted.retain(|name| of_stage.get(name).is_none_or(|result| *result == MutantResult::Missed));
        if wanted.is_empty() {
            break;
        }
    }
    Ok(results)
}

fn attempt_stage(
    program: &Path,
    tree: &Tree,
    stage: &Stage,
    wanted: &[String],
    timeout: u64,
) -> Result<BTreeMap<String, MutantResult>, String> {
    let out = tree.folder.join("out");
    let _ = fs::remove_dir_all(&out);
    let mut command = cargo_mutants(program, tree);
    command.args(["--in-place", "--baseline", "skip", "--build-timeout", "600", "--no-shuffle"]);
    command.args(["--timeout", &timeout.to_string()]);
    command.args(stage.packages().iter().flat_map(|name| ["--test-package", name]));
    command.args(stage.built().iter().map(|word| format!("--cargo-arg={word}")));
    command.arg("--output").arg(&out);
    for name in wanted {
        command.args(["--re", &format!("^{}$", escaped(name))]);
    }
    // Mutants that delete a field pass every expression; with the files named, at most those of these files come along.
    let files: BTreeSet<&str> = wanted.iter().map(|name| results::path(name)).collect();
    for file in files {
        command.args(["--file", file]);
    }
    command.args(["--", "--"]).args(stage.filters());
    let phase = phase::quietly(&format!("mutants-{}", tree.number), command);
    let file = out.join("mutants.out/outcomes.json");
    let text = fs::read_to_string(&file)
        .map_err(|error| format!("{}: {error}; log: {}", file.display(), phase.log.display()))?;
    results::outcomes(&text)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_of_one_folder() {
        let names = [("guard", "a"), ("relay", "b"), ("guard", "c"), ("guard", "d")];
        let names = names.into_iter().map(|(folder, name)| (folder, name.to_owned())).collect();
        let shards: Vec<_> =
            shards(names, 2).into_iter().map(|(folder, names)| (folder.name, names.concat())).collect();
        assert_eq!(shards, [("guard", "ac".into()), ("relay", "b".into()), ("guard", "d".into())]);
    }

    #[test]
    fn a_name_is_matched_as_it_is() {
        assert_eq!(escaped("a.rs:1:2: replace > with >="), r"a\.rs:1:2: replace > with >=");
        assert_eq!(escaped("f -> Option<[u8]>"), r"f \-> Option<\[u8\]>");
    }
}
