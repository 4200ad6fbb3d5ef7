//! `cargo xtask test`: all deterministic tests, from a machine with Rust and nothing else prepared.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use testkit::services::Service;

use crate::beside::Beside;
use crate::phase::{self, Phase};
use crate::selection::Selection;
use crate::slow::{REASON_FROM_SECONDS, Sources};
use crate::suite::{NotReady, Suite, stop_started};
use crate::tally::{Tally, skips, tail};
use crate::{binaries, cargo};

/// Tests listed at the end of a run.
const SLOWEST: usize = 20;

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
    /// Run the tests this often; everything is built once. All runs have to pass.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Keep this many processes busy beside the tests: what needs a quiet machine fails.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    beside: u32,
}

/// Packages with tests that ask for servers. A run of others starts none.
const PACKAGES_WITH_SERVICES: &[&str] = &["payments", "proof", "semel-cli"];

/// An example that is run to its end and has to succeed.
struct Example {
    package: &'static str,
    binary: &'static str,
    arguments: &'static [&'static str],
}

const EXAMPLES: &[Example] = &[
    Example { package: "payments", binary: "payments", arguments: &[] },
    Example { package: "payments", binary: "payments", arguments: &["orders"] },
];

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let begin = Instant::now();
    phase::stop_when_interrupted(|| drop(stop_started()))?;
    let mut run = Run::default();
    let passed = run.all(arguments);
    let stopped = stop_started();
    run.summary(begin, passed && stopped.is_ok());
    stopped?;
    // The summary has said what failed; there is nothing to add to it.
    if passed { Ok(()) } else { Err(String::new()) }
}

#[derive(Default)]
struct Run {
    tally: Tally,
    failed: Vec<String>,
    skipped: String,
    /// How long the tests took, run by run.
    runs: Vec<Duration>,
}

impl Run {
    fn all(&mut self, arguments: &Arguments) -> bool {
        let suite = match Suite::prepare(&arguments.packages, &chosen(arguments)) {
            Ok(suite) => suite,
            Err(NotReady::Phase(phase)) => return self.check(&phase),
            Err(NotReady::Named(name, message)) => {
                self.failed.push(format!("{name}: {message}"));
                return false;
            }
        };
        let beside = match Beside::start(arguments.beside as usize) {
            Ok(beside) => beside,
            Err(message) => {
                self.failed.push(message);
                return false;
            }
        };
        let mut passed = true;
        for _ in 0..arguments.repeat {
            let begin = Instant::now();
            let ok = self.tests(&suite, arguments);
            passed &= ok;
            self.runs.push(begin.elapsed());
            if arguments.repeat > 1 {
                phase::report(&format!("run-{}", self.runs.len()), ok, begin.elapsed());
            }
        }
        drop(beside);
        self.skipped = fs::read_to_string(&suite.skip_log).unwrap_or_default();
        passed
    }

    /// All tests are run, whatever fails.
    fn tests(&mut self, suite: &Suite, arguments: &Arguments) -> bool {
        let mut passed = true;
        for phase in binaries::run(&suite.binaries, |command| suite.environment(command)) {
            let name = phase.name.trim_start_matches("tests-");
            self.tally.add(name, &phase.output());
            passed &= self.check(&phase);
        }
        passed &= self.doc_tests(suite, &arguments.packages);
        passed && self.examples(arguments)
    }

    /// Only libraries have them, and cargo refuses to look elsewhere.
    fn doc_tests(&mut self, suite: &Suite, named: &[String]) -> bool {
        let libraries = match cargo::libraries(named) {
            Ok(libraries) => libraries,
            Err(message) => {
                self.failed.push(format!("doc-tests: {message}"));
                return false;
            }
        };
        if libraries.is_empty() && !named.is_empty() {
            return true;
        }
        let packages = cargo::packages(&libraries);
        let mut doc_tests = cargo::command(&["test", "--doc", "--no-fail-fast"], &packages, &[]);
        suite.environment(&mut doc_tests);
        let doc_tests = phase::run("doc-tests", doc_tests);
        self.tally.add("", &doc_tests.output());
        self.check(&doc_tests)
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
            self.check(&phase::run(&format!("example-{}", example.binary), command))
        })
    }

    fn check(&mut self, phase: &Phase) -> bool {
        if !phase.ok {
            eprintln!("{}", tail(&phase.output()));
            self.failed.push(format!("{} ({}), log: {}", phase.name, phase.note, phase.log.display()));
        }
        phase.ok
    }

    /// The last line has a fixed form, for those who read it by machine.
    fn summary(&self, begin: Instant, ok: bool) {
        let (services, without_server) = skips(&self.skipped);
        println!("\nthe slowest tests:");
        let root = phase::target().parent().map(Path::to_owned).unwrap_or_default();
        let sources = Sources::read(&root);
        for (seconds, name) in self.tally.slowest(SLOWEST) {
            let reason = match sources.reason(&name) {
                Some(reason) => format!(": {reason}"),
                None if seconds < REASON_FROM_SECONDS => String::new(),
                None => ": no reason beside it (`Slow: …` in the comment above the test)".to_owned(),
            };
            println!("{seconds:>8.1} s  {name}{reason}");
        }
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
        let tests: Vec<String> =
            self.runs.iter().map(|took| format!("{:.0} s", took.as_secs_f64())).collect();
        let word = if ok { "all passed" } else { "FAILED" };
        println!(
            "{word} in {:.0} s, the tests in {}; {} more are for `cargo xtask prove`",
            begin.elapsed().as_secs_f64(),
            tests.join(" + "),
            self.tally.for_prove
        );
        // To libtest a test that went without its server has passed. To us it has not.
        let passed = self.tally.passed.saturating_sub(without_server);
        println!("{passed} passed, {} failed, {without_server} skipped", self.tally.failed);
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
        assert_eq!(chosen(&parse(&[])), Service::ALL);
        assert_eq!(chosen(&parse(&["-p", "xtask"])), []);
        assert_eq!(chosen(&parse(&["-p", "xtask", "-p", "proof"])), Service::ALL);
        assert_eq!(chosen(&parse(&["--no-services"])), []);
        assert_eq!(chosen(&parse(&["--only", "kafka,redis"])), [Service::Redis, Service::Kafka]);
        assert_eq!(chosen(&parse(&["--without", "kafka"])).len(), Service::ALL.len() - 1);
    }

    #[test]
    fn contradictions_and_unknown_names_are_usage_errors() {
        for words in [
            &["--no-services", "--only", "redis"][..],
            &["--without", "oracle"],
            &["--repeat", "0"],
            &["--beside", "many"],
        ] {
            let words = std::iter::once(&"test").chain(words);
            assert_eq!(Line::try_parse_from(words).unwrap_err().exit_code(), 2);
        }
    }
}
