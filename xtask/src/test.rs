//! `cargo xtask test`: everything, from a machine with Rust and nothing else prepared.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, exit};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Args;
use testkit::services::{SKIP_LOG_ENV, Service, WITHOUT_ENV};

use crate::phase::{self, Phase};
use crate::selection::Selection;
use crate::services;
use crate::tally::{Tally, skips, tail};
use crate::toolchain;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    selection: Selection,
    /// Only these packages; may be repeated. Without it, the whole workspace.
    #[arg(short, long = "package", value_name = "PACKAGE")]
    packages: Vec<String>,
    /// Start no servers; tests that need one which does not run skip and are counted.
    #[arg(long, conflicts_with = "only")]
    no_services: bool,
}

/// Packages with tests that ask for servers. A run of others starts none.
const PACKAGES_WITH_SERVICES: &[&str] = &["payments", "proof", "semel-cli"];

/// An example that is run to its end and has to succeed.
struct Example {
    package: &'static str,
    binary: &'static str,
    arguments: &'static [&'static str],
}

const EXAMPLES: &[Example] = &[Example { package: "payments", binary: "payments", arguments: &[] }];

/// What this run has started and has to stop, also when it is interrupted.
static STARTED: Mutex<Vec<Service>> = Mutex::new(Vec::new());

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let begin = Instant::now();
    stop_when_interrupted()?;
    let done = Run::new(arguments).and_then(|mut run| {
        let passed = run.phases(arguments);
        let stopped = stop_started();
        run.summary(begin, passed && stopped.is_ok());
        stopped?;
        // The summary has said what failed; there is nothing to add to it.
        if passed { Ok(()) } else { Err(String::new()) }
    });
    if done.is_err() {
        let _ = stop_started();
    }
    done
}

/// Ctrl-C and TERM end the phase that runs and stop what was started.
fn stop_when_interrupted() -> Result<(), String> {
    ctrlc::set_handler(|| {
        eprintln!("\ninterrupted: stopping what was started");
        phase::interrupt();
        let _ = stop_started();
        exit(130);
    })
    .map_err(|error| error.to_string())
}

fn stop_started() -> Result<(), String> {
    // Held until all is stopped: whoever of the main thread and the handler comes second must not
    // end the process while the first one is still at it.
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    match std::mem::take(&mut *started) {
        services if services.is_empty() => Ok(()),
        services => services::down(&services),
    }
}

struct Run {
    tally: Tally,
    failed: Vec<String>,
    without: Vec<Service>,
    skip_log: PathBuf,
}

impl Run {
    fn new(arguments: &Arguments) -> Result<Self, String> {
        let logs = phase::logs();
        fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
        let skip_log = logs.join("skipped.log");
        fs::write(&skip_log, "").map_err(|error| format!("{}: {error}", skip_log.display()))?;
        let chosen = chosen(arguments);
        let without = Service::ALL.into_iter().filter(|service| !chosen.contains(service)).collect();
        Ok(Self { tally: Tally::default(), failed: Vec::new(), without, skip_log })
    }

    /// Runs the phases in order. A failure ends the run, except that all tests are run.
    fn phases(&mut self, arguments: &Arguments) -> bool {
        if let Err(message) = toolchain::ensure() {
            return self.fail("toolchain", &message);
        }
        let packages = packages(arguments);
        let format = cargo(&["fmt", "--all", "--check"], &[], &[]);
        if !self.check(phase::run("format", format)) {
            return false;
        }
        let lint = cargo(&["clippy"], &packages, &["--all-targets", "--", "-D", "warnings"]);
        if !self.check(phase::run("clippy", lint)) {
            return false;
        }
        // Servers start while the tests compile: neither waits for the other.
        let chosen = chosen(arguments);
        let (built, up) = std::thread::scope(|scope| {
            let up = scope.spawn(|| start(&chosen));
            // Like `cargo test --no-run`, and the binaries of the examples as well.
            let build = cargo(&["build"], &packages, &["--bins", "--tests", "--examples"]);
            (phase::run("build", build), up.join())
        });
        if !self.check(built) {
            return false;
        }
        let missing = up.unwrap_or_else(|_| chosen.clone());
        for service in &missing {
            let log = testkit::services::status(*service).log;
            let hint = format!("cannot be had; --without {service} skips its tests; log: {}", log.display());
            self.fail(service.name(), &hint);
        }
        if !missing.is_empty() {
            return false;
        }
        let tests = cargo(&["test", "--no-fail-fast"], &packages, &["--tests"]);
        let tests = self.test("tests", tests, arguments.packages.is_empty());
        let doc_tests = cargo(&["test", "--doc", "--no-fail-fast"], &packages, &[]);
        let doc_tests = self.test("doc-tests", doc_tests, false);
        if !(tests && doc_tests) {
            return false;
        }
        self.examples(arguments) && self.documentation(&packages)
    }

    /// Runs the binaries the tests were built with. `cargo run --package` would choose other
    /// features and compile most of the workspace once more.
    fn examples(&mut self, arguments: &Arguments) -> bool {
        let wanted = |example: &&Example| {
            arguments.packages.is_empty() || arguments.packages.iter().any(|name| name == example.package)
        };
        let own = std::env::current_exe().unwrap_or_default();
        EXAMPLES.iter().filter(wanted).all(|example| {
            let mut command = Command::new(own.with_file_name(example.binary));
            command.args(example.arguments);
            self.check(phase::run(&format!("example-{}", example.binary), command))
        })
    }

    fn documentation(&mut self, packages: &[String]) -> bool {
        let mut command = cargo(&["doc", "--no-deps"], packages, &[]);
        command.env("RUSTDOCFLAGS", "-D warnings");
        self.check(phase::run("documentation", command))
    }

    /// A phase that counts tests.
    fn test(&mut self, name: &str, mut command: Command, whole: bool) -> bool {
        let without: Vec<_> = self.without.iter().map(|service| service.name()).collect();
        command.env(WITHOUT_ENV, without.join(",")).env(SKIP_LOG_ENV, &self.skip_log);
        if whole {
            // All programs are there: a test that starts some need not build them once more.
            command.env("SEMEL_AS_BUILT", "1");
        }
        let phase = phase::run(name, command);
        self.tally.add(&phase.output());
        self.check(phase)
    }

    fn check(&mut self, phase: Phase) -> bool {
        if phase.ok {
            return true;
        }
        eprintln!("{}", tail(&phase.output()));
        self.failed.push(format!("{} ({}), log: {}", phase.name, phase.note, phase.log.display()));
        false
    }

    fn fail(&mut self, name: &str, message: &str) -> bool {
        self.failed.push(format!("{name}: {message}"));
        false
    }

    /// The last line has a fixed form, for whoever reads it by machine.
    fn summary(&self, begin: Instant, ok: bool) {
        let log = fs::read_to_string(&self.skip_log).unwrap_or_default();
        let (services, tests) = skips(&log);
        println!();
        for failure in &self.failed {
            println!("failed: {failure}");
        }
        for test in &self.tally.failures {
            println!("failed test: {test}");
        }
        for (service, tests) in &services {
            println!("skipped: {service}, {tests} tests");
        }
        let word = if ok { "all passed" } else { "FAILED" };
        println!("{word} in {:.0} s; {} ignored", begin.elapsed().as_secs_f64(), self.tally.ignored);
        // To cargo a test that went without its server has passed. To us it has not.
        let passed = self.tally.passed.saturating_sub(tests);
        let skipped = self.tally.ignored + tests;
        println!("{passed} passed, {} failed, {skipped} skipped", self.tally.failed);
    }
}

fn chosen(arguments: &Arguments) -> Vec<Service> {
    let asks = |package: &String| PACKAGES_WITH_SERVICES.contains(&package.as_str());
    let needed = arguments.packages.is_empty() || arguments.packages.iter().any(asks);
    if arguments.no_services || !needed {
        return Vec::new();
    }
    arguments.selection.chosen()
}

/// Starts servers and remembers those that did not run before. Returns those that cannot be had.
fn start(chosen: &[Service]) -> Vec<Service> {
    let begin = Instant::now();
    let absent = chosen.iter().copied().filter(|service| testkit::services::find(*service).is_none());
    // Noted before they start: an interruption may come in the middle of it.
    STARTED.lock().unwrap_or_else(PoisonError::into_inner).extend(absent);
    let outcomes = services::up(chosen).into_iter();
    let missing: Vec<_> = outcomes.filter_map(|(service, done)| done.is_err().then_some(service)).collect();
    phase::report("services", missing.is_empty(), begin.elapsed());
    missing
}

fn packages(arguments: &Arguments) -> Vec<String> {
    let mut words = vec!["--all-features".to_owned()];
    if arguments.packages.is_empty() {
        words.push("--workspace".to_owned());
    }
    for package in &arguments.packages {
        words.extend(["--package".to_owned(), package.clone()]);
    }
    words
}

fn cargo(first: &[&str], packages: &[String], last: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(first).args(packages).args(last);
    // Cargo sets these for us, and a nested cargo would take them for its own and rebuild.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name.as_ref());
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(words: &[&str]) -> Arguments {
        Line::try_parse_from(std::iter::once(&"test").chain(words)).unwrap().arguments
    }

    #[test]
    fn only_packages_that_ask_for_servers_get_them() {
        assert_eq!(chosen(&parse(&[])).len(), 8);
        assert_eq!(chosen(&parse(&["-p", "xtask"])), []);
        assert_eq!(chosen(&parse(&["-p", "xtask", "-p", "proof"])).len(), 8);
        assert_eq!(chosen(&parse(&["--no-services"])), []);
        assert_eq!(chosen(&parse(&["--only", "kafka,redis"])), [Service::Redis, Service::Kafka]);
        assert_eq!(chosen(&parse(&["--without", "kafka"])).len(), 7);
    }

    #[test]
    fn contradictions_and_unknown_names_are_usage_errors() {
        for words in [&["--no-services", "--only", "redis"][..], &["--without", "oracle"]] {
            let words = std::iter::once(&"test").chain(words);
            assert_eq!(Line::try_parse_from(words).unwrap_err().exit_code(), 2);
        }
    }

    #[test]
    fn all_of_the_workspace_or_the_packages_named() {
        assert_eq!(packages(&parse(&[])), ["--all-features", "--workspace"]);
        assert_eq!(packages(&parse(&["-p", "a"])), ["--all-features", "--package", "a"]);
    }
}
