//! `cargo xtask lint`: what can be seen without running anything.

use std::process::Command;
use std::time::Instant;

use clap::Args;

use crate::phase::{self, Phase};
use crate::tally::tail;
use crate::{api, cargo, features, tidy, toolchain, tools};

/// Check tidiness (long files, imports that go the wrong way, names and words, `rust-version`, features for tests in a
/// production build), format, clippy and documentation; warnings are errors.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Also the slower gates: the library with every feature alone and with none, its public API against the listing,
    /// licences and sources of all dependencies (cargo-public-api and cargo-deny are installed once), and a dry run of
    /// publishing the library.
    #[arg(long)]
    all: bool,
    /// Only these packages; may be repeated. Without it, the whole workspace.
    #[arg(short, long = "package", value_name = "PACKAGE")]
    packages: Vec<String>,
}

/// The version of cargo-deny that is installed.
const DENY_VERSION: &str = "0.20.2";

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    phase::stop_when_interrupted(|| ())?;
    toolchain::ensure()?;
    let packages = cargo::packages(&arguments.packages);
    let begin = Instant::now();
    let tidy = tidy::check();
    phase::report("tidy", tidy.is_ok(), begin.elapsed());
    tidy?;
    check(phase::run("format", cargo::command(&["fmt", "--all", "--check"], &[], &[])))?;
    let clippy = cargo::command(&["clippy"], &packages, &["--all-targets", "--", "-D", "warnings"]);
    check(phase::run("clippy", clippy))?;
    // The README's first command builds the binary without a feature, which nothing else here does.
    if arguments.packages.is_empty() {
        let line = ["clippy", "--package", "semel-cli", "--", "-D", "warnings"];
        check(phase::run("default-build", cargo::command(&line, &[], &[])))?;
    }
    let mut documentation = cargo::command(&["doc", "--no-deps"], &packages, &[]);
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    check(phase::run("documentation", documentation))?;
    if arguments.all {
        for features in features::ALONE {
            let line = ["check", "--package", "semel", "--no-default-features", "--features", features];
            let mut command = cargo::command(&line, &[], &[]);
            command.env("RUSTFLAGS", "-D warnings").env("CARGO_TARGET_DIR", phase::target().join("features"));
            let name = if features.is_empty() { "none" } else { features };
            check(phase::run(&format!("feature-{name}"), command))?;
        }
        api::check()?;
        let mut deny = Command::new(tools::install("deny", DENY_VERSION)?);
        // Without advisories: their database is no package of a registry.
        deny.args(["deny", "--all-features", "--offline", "check", "bans", "licenses", "sources"]);
        check(phase::run("deny", deny))?;
        let publish =
            ["publish", "--dry-run", "--allow-dirty", "--package", "semel-macros", "--package", "semel"];
        check(phase::run("publish", cargo::command(&publish, &[], &[])))?;
    }
    Ok(())
}

fn check(phase: Phase) -> Result<(), String> {
    if phase.ok {
        return Ok(());
    }
    eprintln!("{}", tail(&phase.output()));
    Err(format!("{} ({}), log: {}", phase.name, phase.note, phase.log.display()))
}
