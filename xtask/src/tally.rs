//! Counts tests from what cargo prints, and finds the output of those that failed.

use std::collections::{BTreeMap, BTreeSet};

/// Lines shown of what a failing binary said.
const FAILURE_LINES_MAX: usize = 150;

/// Sums over all test binaries of a run.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Left to `cargo xtask prove`.
    pub(crate) for_prove: usize,
    /// The names of the tests that failed.
    pub(crate) failures: Vec<String>,
    /// Each test with the seconds it took.
    pub(crate) times: Vec<(f64, String)>,
}

impl Tally {
    /// Adds what a test binary printed, or one run of `cargo test`, which has no name.
    pub(crate) fn add(&mut self, binary: &str, output: &str) {
        for line in output.lines() {
            if let Some(counts) = line.strip_prefix("test result: ") {
                self.passed += number_before(counts, " passed");
                self.failed += number_before(counts, " failed");
            } else if let Some((name, result)) =
                line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
            {
                let name = if binary.is_empty() { name.to_owned() } else { format!("{binary} {name}") };
                self.for_prove += usize::from(result.starts_with("ignored, prove: "));
                if result.starts_with("FAILED") {
                    self.failures.push(name.clone());
                }
                self.times.extend(seconds(result).map(|seconds| (seconds, name)));
            }
        }
    }

    /// The slowest tests, the slowest first.
    pub(crate) fn slowest(&self, most: usize) -> Vec<(f64, String)> {
        let mut times = self.times.clone();
        times.sort_by(|one, other| other.0.total_cmp(&one.0));
        times.truncate(most);
        times
    }
}

/// `ok <1.234s>`: how long a test took.
fn seconds(result: &str) -> Option<f64> {
    result.split_once('<')?.1.strip_suffix("s>")?.parse().ok()
}

fn number_before(counts: &str, word: &str) -> usize {
    let Some((before, _)) = counts.split_once(word) else { return 0 };
    before.rsplit([' ', '.', ';']).next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The part of an output a person wants to see first: what failing tests printed, or the
/// compiler's errors, or else the end.
pub(crate) fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let mut shown = Vec::new();
    let mut inside = false;
    let mut backtrace = false;
    for line in &lines {
        // libtest prints the failures of a binary between these two lines.
        inside = (inside || *line == "failures:") && !line.starts_with("test result:");
        // Twenty lines of frames each would push the other failures out; the log has them.
        backtrace = (backtrace || *line == "stack backtrace:") && !line.starts_with("note: ");
        if inside && !backtrace {
            shown.push(*line);
        }
    }
    if shown.is_empty() {
        let from = lines.iter().position(|line| line.starts_with("error")).unwrap_or(0);
        let from = from.max(lines.len().saturating_sub(FAILURE_LINES_MAX));
        shown.extend_from_slice(&lines[from..]);
    }
    if shown.len() > FAILURE_LINES_MAX {
        shown.truncate(FAILURE_LINES_MAX);
        shown.push("… (the rest is in the log)");
    }
    shown.join("\n")
}

/// The skip log: per service the number of tests that went without it, and the number of tests.
pub(crate) fn skips(log: &str) -> (BTreeMap<String, usize>, usize) {
    let lines: BTreeSet<(&str, &str)> = log.lines().filter_map(|line| line.split_once(' ')).collect();
    let mut services = BTreeMap::new();
    for (service, _) in &lines {
        *services.entry((*service).to_owned()).or_insert(0) += 1;
    }
    // A test that needs two services skips at the first one it misses, so tests are not counted twice.
    let tests: BTreeSet<&str> = lines.iter().map(|(_, test)| *test).collect();
    (services, tests.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 3 tests
test a::one ... ok
test a::two ... FAILED
test a::three ... ignored, prove: load

failures:

---- a::two stdout ----
thread 'a::two' panicked: 1 != 2
stack backtrace:
   0: a_frame
note: Some details are omitted

failures:
    a::two

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 12 tests
test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
error: 1 target failed:
";

    #[test]
    fn results_of_all_binaries_are_summed() {
        let mut tally = Tally::default();
        tally.add("", OUTPUT);
        tally.add("", "test result: ok. 100 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out");
        assert_eq!((tally.passed, tally.failed, tally.for_prove), (113, 1, 1));
        assert_eq!(tally.failures, ["a::two"]);
    }

    #[test]
    fn the_slowest_tests_are_found() {
        let mut tally = Tally::default();
        tally.add(
            "proof-stores",
            "test a ... ok <0.010s>\ntest b ... FAILED <12.500s>\ntest c ... ignored, prove: kills\n",
        );
        tally.add("semel-unit", "test d ... ok <1.000s>");
        assert_eq!(tally.failures, ["proof-stores b"]);
        let slowest = tally.slowest(2);
        assert_eq!(slowest, [(12.5, "proof-stores b".to_owned()), (1.0, "semel-unit d".to_owned())]);
    }

    #[test]
    fn the_failing_test_is_shown_and_the_rest_is_not() {
        let shown = tail(OUTPUT);
        assert!(shown.contains("1 != 2"), "{shown}");
        assert!(!shown.contains("running 12") && !shown.contains("a_frame"), "{shown}");
    }

    #[test]
    fn a_compiler_error_is_shown_from_its_beginning() {
        let output = format!("   Compiling x\nerror[E0425]: not found\n{}", "  |\n".repeat(5));
        assert!(tail(&output).starts_with("error[E0425]"));
        let long = "line\n".repeat(1000);
        assert_eq!(tail(&long).lines().count(), FAILURE_LINES_MAX);
    }

    #[test]
    fn skips_are_counted_by_test_and_by_service() {
        let (services, tests) = skips("kafka a\nkafka b\nredis a\nkafka a\n");
        assert_eq!(services, BTreeMap::from([("kafka".to_owned(), 2), ("redis".to_owned(), 1)]));
        assert_eq!(tests, 2);
        assert_eq!(skips(""), (BTreeMap::new(), 0));
    }
}
