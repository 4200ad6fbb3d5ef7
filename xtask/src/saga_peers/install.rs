//! What a peer needs, below `target/peers/saga/`: programs of ours, and packages by their own package managers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{cargo, phase, tidy};

/// The lines of a log that are shown when an installation fails.
const LAST_LINES: usize = 15;

/// Our programs and the versions of the packages.
pub(super) fn sources(peer: &str) -> PathBuf {
    tidy::root().join("proof/peers/saga").join(peer)
}

/// Where the peer is installed and keeps its data.
pub(super) fn place(peer: &str) -> Result<PathBuf, String> {
    let place = phase::target().join("peers/saga").join(peer);
    fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    Ok(place)
}

/// A folder that is empty at first, on the disk of the checkout: in memory an fsync costs nothing. It goes with the value.
#[derive(Debug)]
pub(super) struct Data(pub(super) PathBuf);

impl Data {
    pub(super) fn new(place: &Path) -> Result<Self, String> {
        let data = place.join("data");
        let made = match fs::remove_dir_all(&data) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => fs::create_dir(&data),
        };
        made.map_err(|error| format!("{}: {error}", data.display()))?;
        Ok(Self(data))
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        // What stays is removed by the next run.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Copies our files to where the packages are. One that is there already keeps its time, for those who build from it.
pub(super) fn copy(from: &Path, files: &[&str], to: &Path) -> Result<(), String> {
    for file in files {
        let (from, to) = (from.join(file), to.join(file));
        let text = text(&from)?;
        if fs::read_to_string(&to).is_ok_and(|there| there == text) {
            continue;
        }
        fs::write(&to, text).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    Ok(())
}

/// Runs an installation unless the last one that succeeded here was of the same things.
pub(super) fn once(
    place: &Path,
    name: &str,
    of: &str,
    install: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let mark = place.join(format!("{name}.installed"));
    if fs::read_to_string(&mark).is_ok_and(|last| last == of) {
        return Ok(());
    }
    install()?;
    fs::write(&mark, of).map_err(|error| format!("{}: {error}", mark.display()))
}

/// Runs a command to its end, with a progress line and its output in a file.
pub(super) fn run(name: &str, command: Command) -> Result<String, String> {
    let phase = phase::run(&format!("saga-{name}"), command);
    let output = phase.output();
    if phase.ok {
        return Ok(output);
    }
    let lines: Vec<&str> = output.lines().collect();
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
    Err(format!("{name}: {}; {}:\n{last}", phase.note, phase.log.display()))
}

/// The packages of a `package.json`, exactly those versions. Scripts of packages do not run.
pub(super) fn npm(peer: &str) -> Result<PathBuf, String> {
    let (from, place) = (sources(peer), place(peer)?);
    copy(&from, &["package.json"], &place)?;
    once(&place, "npm", &text(&place.join("package.json"))?, || {
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]);
        npm.current_dir(&place);
        run(&format!("{peer}-npm"), npm).map(drop)
    })?;
    Ok(place)
}

/// Builds the program of a `Cargo.toml` with the crates that it pins, in a folder that all peers share.
pub(super) fn cargo(peer: &str, source: &str) -> Result<(), String> {
    let place = place(peer)?;
    copy(&sources(peer), &["Cargo.toml", source], &place)?;
    // Cargo sees by itself what has changed.
    let mut build = cargo::command(&["build", "--release", "--target-dir", "../cargo"], &[], &[]);
    build.current_dir(&place);
    run(&format!("{peer}-cargo"), build).map(drop)
}

/// A program that cargo has built here.
pub(super) fn cargo_program(place: &Path, name: &str) -> PathBuf {
    place.join("../cargo/release").join(name)
}

/// The version of a crate that it was built with.
pub(super) fn cargo_version(place: &Path, package: &str) -> Result<String, String> {
    let lock = place.join("Cargo.lock");
    let version = locked(&text(&lock)?, package).map(str::to_owned);
    version.ok_or_else(|| format!("{} does not name {package}", lock.display()))
}

fn locked<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let (_, rest) = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    rest.split('"').next()
}

/// The version of Node.js that runs the programs.
pub(super) fn node() -> Result<String, String> {
    let version = tool("node", "--version", "the TypeScript libraries need it")?;
    Ok(format!("Node.js {}", version.trim_start_matches('v')))
}

/// The version of a package that is installed here.
pub(super) fn npm_version(place: &Path, package: &str) -> Result<String, String> {
    let manifest = place.join("node_modules").join(package).join("package.json");
    let parsed: Result<Value, _> = serde_json::from_str(&text(&manifest)?);
    let version = parsed.ok().and_then(|parsed| parsed["version"].as_str().map(str::to_owned));
    version.ok_or_else(|| format!("{}: no version", manifest.display()))
}

pub(super) fn text(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// What a tool writes as its version, or a line that says what is missing.
pub(super) fn tool(name: &str, argument: &str, why: &str) -> Result<String, String> {
    match Command::new(name).arg(argument).output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => Err(format!("there is no `{name}`: {why}; install it, or choose other peers with --only")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_is_missing_is_named_with_what_to_do() {
        assert!(tool("cargo", "--version", "").is_ok_and(|version| version.starts_with("cargo ")));
        let error = tool("semel-no-such-tool", "--version", "the peer needs it").unwrap_err();
        assert_eq!(
            error,
            "there is no `semel-no-such-tool`: the peer needs it; install it, or choose other peers with --only"
        );
    }

    #[test]
    fn the_same_is_installed_once_and_a_failure_again() {
        let place = phase::target().join(format!("peers/unit-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let mut runs = 0;
        let mut install = |of: &str, ends: Result<(), String>| {
            let _ = once(&place, "unit", of, || {
                runs += 1;
                ends
            });
            runs
        };
        assert_eq!(install("1", Err("no".to_owned())), 1);
        assert_eq!(install("1", Ok(())), 2);
        assert_eq!(install("1", Ok(())), 2);
        assert_eq!(install("2", Ok(())), 3);
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn the_version_of_a_crate_is_the_locked_one() {
        let lock = "[[package]]\nname = \"restate-sdk-macros\"\nversion = \"1.0.0\"\n\n\
                    [[package]]\nname = \"restate-sdk\"\nversion = \"0.13.0\"\nsource = \"x\"\n";
        assert_eq!(locked(lock, "restate-sdk"), Some("0.13.0"));
        assert_eq!(locked(lock, "tokio"), None);
    }

    #[test]
    fn versions_are_exact_and_no_addresses_are_recorded() {
        for peer in ["restate", "dbos"] {
            let manifest: Value =
                serde_json::from_str(&text(&sources(peer).join("package.json")).unwrap()).unwrap();
            for (package, version) in manifest["dependencies"].as_object().unwrap() {
                let version = version.as_str().unwrap();
                assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{package} {version}");
            }
        }
        for (peer, package) in [("restate", "restate-sdk"), ("dbos", "dbos")] {
            let manifest = text(&sources(peer).join("Cargo.toml")).unwrap();
            let line = manifest.lines().find(|line| line.starts_with(&format!("{package} = ")));
            assert!(line.is_some_and(|line| line.contains("\"=")), "{line:?}");
        }
        for line in text(&sources("dbos").join("requirements.txt")).unwrap().lines() {
            assert!(line.contains("=="), "{line}");
        }
        for peer in ["restate", "dbos", "dtm"] {
            let names = fs::read_dir(sources(peer)).unwrap();
            let names: Vec<_> =
                names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            assert!(!names.iter().any(|name| name.contains("lock") || name == "go.sum"), "{names:?}");
        }
    }
}
