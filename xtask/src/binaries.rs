//! The test binaries of a build: which there are, and how they are run side by side.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;

use crate::phase::{self, Phase};

/// Binaries that run at the same time. Most tests wait for a server or for another process most of the time.
const AT_ONCE: usize = 3;

/// Tests of one binary that run at the same time.
const THREADS: &str = "4";

/// The longest first, so that none of them is left over at the end. What is not named is quick.
const LONGEST_FIRST: &[&str] = &["proof-rails", "proof-stores", "semel-cli-it", "semel-cli-gateway"];

/// A test binary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Binary {
    /// Package and target, such as `proof-stores`.
    pub(crate) name: String,
    path: PathBuf,
    /// The folder of its package: cargo runs tests there.
    folder: PathBuf,
}

impl Binary {
    /// Runs it as cargo would.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder);
        command
    }
}

/// The test binaries named in the output of `cargo build --message-format=json`.
pub(crate) fn of_build(messages: &str) -> Vec<Binary> {
    let mut binaries: Vec<Binary> = messages.lines().filter_map(binary).collect();
    let rank = |binary: &Binary| LONGEST_FIRST.iter().position(|name| *name == binary.name);
    binaries.sort_by_key(|binary| (rank(binary).unwrap_or(LONGEST_FIRST.len()), binary.name.clone()));
    binaries
}

fn binary(line: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let path = PathBuf::from(message["executable"].as_str().filter(|_| is_test)?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = folder.file_name()?.to_str()?;
    let target = message["target"]["name"].as_str()?;
    let kind = message["target"]["kind"][0].as_str()?;
    // A library and its binary may share a name.
    let name = match kind {
        "test" => format!("{package}-{target}"),
        "bin" => format!("{package}-bin-{target}"),
        _ => format!("{package}-unit"),
    };
    Some(Binary { name, path, folder })
}

/// Runs all of them, several at a time, each with a log of its own. `prepare` sets the environment.
pub(crate) fn run(binaries: &[Binary], prepare: impl Fn(&mut Command) + Sync) -> Vec<Phase> {
    let waiting: Mutex<VecDeque<&Binary>> = Mutex::new(binaries.iter().collect());
    let ran = Mutex::new(Vec::new());
    let worker = || {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(binary) = next else { break };
            let mut command = binary.command();
            command.args(["--test-threads", THREADS]);
            // The time of each test: stable test binaries have the option, but want an opt-in, because it may change.
            command.args(["-Zunstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
            prepare(&mut command);
            let begin = Instant::now();
            let phase = phase::quietly(&format!("tests-{}", binary.name), command);
            phase::report(&phase.name, phase.ok, begin.elapsed());
            ran.lock().unwrap_or_else(PoisonError::into_inner).push(phase);
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(worker))));
    ran.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binaries_are_found_and_the_longest_come_first() {
        let artifact = |package: &str, kind: &str, target: &str, test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": format!("/w/{package}/Cargo.toml"),
                "target": {"kind": [kind], "name": target}, "profile": {"test": test},
                "executable": format!("/t/{target}"),
            })
            .to_string()
        };
        let messages = [
            artifact("semel", "lib", "semel", true),
            artifact("proof", "bin", "proof-worker", false),
            artifact("xtask", "bin", "xtask", true),
            artifact("proof", "test", "stores", true),
            "warning: not JSON".to_owned(),
        ];
        let found = of_build(&messages.join("\n"));
        let names: Vec<&str> = found.iter().map(|binary| binary.name.as_str()).collect();
        assert_eq!(names, ["proof-stores", "semel-unit", "xtask-bin-xtask"]);
        assert_eq!(found[0].folder, Path::new("/w/proof"));
    }
}
