//! `cargo xtask api`: the listing of the library's public API, which changes only on purpose.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::tally::tail;
use crate::tidy::root;
use crate::{cargo, phase, tools};

/// Compare the public API of the library with its listing, `crates/semel/public-api.txt`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Write the listing instead. Its difference belongs to the review of a change.
    #[arg(long)]
    write: bool,
}

const LISTING: &str = "crates/semel/public-api.txt";

/// The version of cargo-public-api that is installed. Each reads one format of rustdoc's JSON: this one 57, of Rust
/// 1.95. A newer Rust may need a newer one.
const PUBLIC_API_VERSION: &str = "0.52.0";

/// Differences that are shown.
const SHOWN_MAX: usize = 40;

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    phase::stop_when_interrupted(|| ())?;
    if !arguments.write {
        return check();
    }
    let path = root().join(LISTING);
    fs::write(&path, public_api()?).map_err(|error| format!("{}: {error}", path.display()))
}

/// Fails if the public API is not what the listing says.
pub(crate) fn check() -> Result<(), String> {
    let path = root().join(LISTING);
    let listed = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let differences = differences(&listed, &public_api()?);
    if differences.is_empty() {
        return Ok(());
    }
    let shown: Vec<&str> = differences.iter().take(SHOWN_MAX).map(String::as_str).collect();
    Err(format!(
        "the public API is not what {LISTING} says ({} lines differ):\n{}\nif that is on purpose: cargo xtask api \
         --write",
        differences.len(),
        shown.join("\n")
    ))
}

/// Every public path with its signature, with all features.
fn public_api() -> Result<String, String> {
    let tool = tools::install("public-api", PUBLIC_API_VERSION)?;
    let json = described()?;
    let all = list(&tool, &json, "-ss")?;
    // Without what a derive implements.
    let written = list(&tool, &json, "-sss")?;
    Ok(without_derived_items(&all, &written))
}

/// What rustdoc knows of the library, as JSON.
fn described() -> Result<PathBuf, String> {
    let rustdoc = unstable_rustdoc().map_err(|error| format!("a script for rustdoc: {error}"))?;
    let line = ["rustdoc", "--package", "semel", "--lib", "--all-features"];
    let json = ["--", "-Zunstable-options", "--output-format=json", "--cap-lints=allow"];
    let mut command = cargo::command(&line, &[], &json);
    command.env("RUSTDOC", rustdoc);
    let phase = phase::run("public-api", command);
    if !phase.ok {
        return Err(format!("{}\nlog: {}", tail(&phase.output()), phase.log.display()));
    }
    Ok(phase::target().join("doc/semel.json"))
}

/// JSON is not stable yet. The variable that allows it is set for rustdoc alone: build scripts look at it, and with it
/// set for cargo all dependencies would be built again.
fn unstable_rustdoc() -> std::io::Result<PathBuf> {
    fs::create_dir_all(phase::logs())?;
    let path = phase::logs().join("unstable-rustdoc");
    fs::write(&path, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn list(tool: &Path, json: &Path, simplified: &str) -> Result<String, String> {
    let output = Command::new(tool).args(["public-api", simplified, "--rustdoc-json"]).arg(json).output();
    let output = output.map_err(|error| format!("{}: {error}", tool.display()))?;
    if !output.status.success() {
        return Err(format!(
            "cargo-public-api {PUBLIC_API_VERSION} does not read what this rustdoc writes; see PUBLIC_API_VERSION in \
             xtask/src/api.rs\n{}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// That a type implements a trait stays, derived or not; the methods of a derived one add nothing.
fn without_derived_items(all: &str, written: &str) -> String {
    let written: HashSet<&str> = written.lines().collect();
    let means_something = |line: &str| line.starts_with("impl") && !line.contains("::StructuralPartialEq ");
    all.lines()
        .filter(|line| written.contains(line) || means_something(line))
        .flat_map(|line| [line, "\n"])
        .collect()
}

fn differences(listed: &str, there: &str) -> Vec<String> {
    let (old, new): (HashSet<&str>, HashSet<&str>) = (listed.lines().collect(), there.lines().collect());
    let gone = listed.lines().filter(|line| !new.contains(line)).map(|line| format!("- {line}"));
    let added = there.lines().filter(|line| !old.contains(line)).map(|line| format!("+ {line}"));
    gone.chain(added).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_and_what_is_gone_is_shown() {
        assert_eq!(differences("a\nb\n", "b\nc\n"), ["- a", "+ c"]);
        assert!(differences("a\n", "a\n").is_empty());
    }

    #[test]
    fn of_a_derived_trait_only_the_fact_is_listed() {
        let all = "pub struct x::A\nimpl core::clone::Clone for x::A\npub fn x::A::clone(&self) -> x::A\n\
                   impl core::marker::StructuralPartialEq for x::A\n";
        let listed = "pub struct x::A\nimpl core::clone::Clone for x::A\n";
        assert_eq!(without_derived_items(all, "pub struct x::A\n"), listed);
    }
}
