//! Cargo's subcommands that are not part of it: installed below the target folder, once.

use std::path::PathBuf;
use std::process::Command;

use crate::{cargo, phase};

/// The program of `cargo-NAME`, installed if it is not there in this version.
pub(crate) fn install(name: &str, version: &str) -> Result<PathBuf, String> {
    let root = phase::target().join("tools");
    let program = root.join(format!("bin/cargo-{name}"));
    let works = Command::new(&program).args([name, "--version"]).output();
    if works.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(version)) {
        return Ok(program);
    }
    eprintln!("installing cargo-{name} {version}: a few minutes, once");
    let (root, package) = (root.display().to_string(), format!("cargo-{name}"));
    cargo::run(&["install", "--quiet", "--locked", "--version", version, "--root", &root, &package], &[])?;
    Ok(program)
}
