//! An older `semel`, for tests that run two versions side by side.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::phase;
use crate::tidy::root;

/// What the tests read.
pub(crate) const OLD_BINARY_ENV: &str = "SEMEL_OLD_BINARY";

#[derive(Debug, Args)]
pub(crate) struct Old {
    /// The older version for tests of two versions side by side: a tag, branch or commit. Built into target/old/.
    #[arg(long, value_name = "REF", conflicts_with = "old_binary")]
    old: Option<String>,
    /// The same, as a binary that was built with all features.
    #[arg(long, value_name = "PATH")]
    old_binary: Option<PathBuf>,
}

impl Old {
    /// The older binary, if one was asked for.
    pub(crate) fn binary(&self) -> Result<Option<PathBuf>, String> {
        let given = self.old_binary.clone();
        let given = given.or_else(|| std::env::var_os(OLD_BINARY_ENV).map(PathBuf::from));
        match (&self.old, given) {
            (Some(reference), _) => build(reference).map(Some),
            // Tests run in another folder.
            (None, Some(path)) => {
                path.canonicalize().map(Some).map_err(|error| format!("{}: {error}", path.display()))
            }
            (None, None) => {
                let hint = tags().map_or_else(
                    || "there is no tag yet; --old REF takes any commit".to_owned(),
                    |tag| format!("--old {tag} builds the last release"),
                );
                println!(
                    "NO OLDER BINARY: tests of two versions run this one twice, which shows less; {hint}"
                );
                Ok(None)
            }
        }
    }
}

/// The last tag of a release.
fn tags() -> Option<String> {
    let output = git(&["describe", "--tags", "--abbrev=0", "--match", "v*"]).ok()?;
    Some(output).filter(|tag| !tag.is_empty())
}

/// Builds that version in a worktree of its own; what was built before is kept for its commit.
fn build(reference: &str) -> Result<PathBuf, String> {
    let commit = git(&["rev-parse", "--verify", "--short", &format!("{reference}^{{commit}}")])?;
    let folder = root().join("target/old").join(&commit);
    let (source, target) = (folder.join("source"), folder.join("target"));
    let binary = target.join("debug/semel");
    if binary.is_file() {
        return Ok(binary);
    }
    if !source.join("Cargo.toml").is_file() {
        git(&["worktree", "prune"])?;
        git(&["worktree", "add", "--detach", "--force", &source.display().to_string(), &commit])?;
    }
    let mut command = Command::new("cargo");
    command.args(["build", "--locked", "--package", "semel-cli", "--features", "full"]);
    command.current_dir(&source).env("CARGO_TARGET_DIR", &target);
    let built = phase::run(&format!("build-{commit}"), command);
    if built.ok {
        Ok(binary)
    } else {
        Err(format!("{reference} does not build; log: {}", built.log.display()))
    }
}

fn git(args: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(args).current_dir(root()).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(said(&output.stdout)) } else { Err(said(&output.stderr)) }
}

/// What a test of two versions is given.
pub(crate) fn environment(command: &mut Command, old: Option<&Path>) {
    match old {
        Some(path) => command.env(OLD_BINARY_ENV, path),
        None => command.env_remove(OLD_BINARY_ENV),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_that_is_not_there_is_an_error_and_not_left_out() {
        let old = Old { old: None, old_binary: Some("no/such/semel".into()) };
        assert!(old.binary().unwrap_err().starts_with("no/such/semel: "));
        let old = Old { old: Some("no-such-ref".into()), old_binary: None };
        assert!(!old.binary().unwrap_err().is_empty());
    }
}
