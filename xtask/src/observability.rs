//! Checks the alerts and the dashboard in `observability/`: by Prometheus's own tool, against the metrics that exist, and
//! against the runbook.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use testkit::services::promtool;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../observability")
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The name of each alert, with the text of its rule.
fn alerts(rules: &str) -> Vec<(&str, &str)> {
    let rules = rules.split("- alert: ").skip(1);
    rules.map(|rule| rule.split_once('\n').expect("a name, then its rule")).collect()
}

/// The names of metrics in an expression.
fn metrics(rule: &str) -> BTreeSet<&str> {
    let expression = rule.split("labels:").next().unwrap_or_default();
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("semel_") || word.starts_with("idempotency_")).collect()
}

/// The second has what looks a day back.
const TESTS: [&str; 2] = ["alerts_test.yml", "alerts_daily_test.yml"];

fn run(tool: &Path, arguments: &[&str], at: &Path) -> Output {
    Command::new(tool).args(arguments).current_dir(at).output().expect("promtool runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Slow: Prometheus opens a database of its own for each of the alerts.
#[test]
fn every_alert_fires_and_is_silent_as_it_should() {
    let tool = promtool().expect("promtool");
    for arguments in [&["check", "rules", "alerts.yml"][..], &["test", "rules", TESTS[0], TESTS[1]]] {
        let output = run(&tool, arguments, &folder());
        assert!(output.status.success(), "{}", said(&output));
    }
    let rules = read("observability/alerts.yml");
    let tests = TESTS.map(|name| read(&format!("observability/{name}"))).concat();
    for (name, _) in alerts(&rules) {
        assert!(tests.contains(&format!("name: {name} fires ")), "no test in which {name} fires");
        assert!(tests.contains(&format!("name: {name} is silent ")), "no test in which {name} is silent");
    }
}

/// The tests can fail: with rules that always fire, and with rules that never do, one of the two of each alert does.
/// Slow: Prometheus opens a database of its own for each of the alerts, twice.
#[test]
fn a_rule_that_always_fires_or_never_does_is_caught() {
    let tool = promtool().expect("promtool");
    let rules = read("observability/alerts.yml");
    for (planted, expected) in [("vector(1)", "is silent"), ("vector(1) < 0", "fires")] {
        let at = testkit::scratch::directory();
        let mut lines = String::new();
        let mut within = false;
        for line in rules.lines() {
            // An expression goes on until the next key.
            within = within && line.starts_with("          ");
            if line.trim_start().starts_with("expr: ") {
                lines += &format!("        expr: {planted}\n");
                within = true;
            } else if !within {
                lines += &format!("{line}\n");
            }
        }
        fs::write(at.path().join("alerts.yml"), lines).expect("written");
        for name in TESTS {
            fs::copy(folder().join(name), at.path().join(name)).expect("copied");
        }
        let output = run(&tool, &["test", "rules", TESTS[0], TESTS[1]], at.path());
        assert!(!output.status.success(), "{planted} passes");
        let said = said(&output);
        let missed: Vec<&str> =
            alerts(&rules).iter().map(|(name, _)| *name).filter(|name| !said.contains(*name)).collect();
        assert!(missed.is_empty(), "{planted} was not caught where each {expected}: {missed:?}\n{said}");
    }
}

/// The names of all series that semel's processes export.
fn series() -> BTreeSet<String> {
    let contracts = ["semel/contracts/metrics.guard", "semel/contracts/metrics.relay"]
        .into_iter()
        .chain(["semel/contracts/metrics.consumer", "semel/contracts/metrics.saga"])
        .chain(["semel-cli/contracts/metrics.gateway"])
        .map(|name| read(&format!("crates/{name}.txt")));
    let name = |line: &str| line.split(['{', ' ']).next().map(str::to_owned);
    contracts.flat_map(|listing| listing.lines().filter_map(name).collect::<Vec<_>>()).collect()
}

#[test]
fn alerts_are_about_metrics_that_exist() {
    let series = series();
    for (name, rule) in alerts(&read("observability/alerts.yml")) {
        let used = metrics(rule);
        assert!(!used.is_empty(), "{name} is about no metric");
        for metric in used {
            assert!(series.contains(metric), "{name}: there is no metric {metric}");
        }
    }
}

/// What Grafana's linter asks for, and expressions that Prometheus can read.
#[test]
fn every_panel_is_about_metrics_that_exist_and_follows_the_variables() {
    let dashboard: Value = serde_json::from_str(&read("observability/dashboard.json")).expect("JSON");
    let variables: Vec<&str> = dashboard["templating"]["list"]
        .as_array()
        .expect("variables")
        .iter()
        .filter_map(|variable| variable["name"].as_str())
        .collect();
    assert_eq!(variables, ["datasource", "job", "instance"]);
    let (series, mut ids, mut shown, mut rules) =
        (series(), BTreeSet::new(), 0, "groups:\n  - name: panels\n    rules:\n".to_owned());
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: its id is taken");
        if panel["type"] == "row" {
            continue;
        }
        shown += 1;
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in panel["targets"].as_array().expect("targets") {
            let expression = target["expr"].as_str().expect("an expression");
            let used = metrics(expression);
            assert!(!used.is_empty(), "{title} is about no metric");
            assert!(used.iter().all(|metric| series.contains(*metric)), "{title}: not all of {used:?} exist");
            assert!(expression.contains("job=~\"$job\",instance=~\"$instance\""), "{title}: {expression}");
            let fixed = expression.contains("rate(") && !expression.contains("$__rate_interval");
            assert!(!fixed, "{title}: a rate over a fixed time");
            let plain = expression.replace("$__rate_interval", "5m").replace('\'', "\"");
            rules += &format!("      - record: panel:{}\n        expr: '{plain}'\n", rules.len());
        }
    }
    assert!(shown > 20, "only {shown} panels");
    let at = testkit::scratch::directory();
    fs::write(at.path().join("panels.yml"), rules).expect("written");
    let output = run(&promtool().expect("promtool"), &["check", "rules", "panels.yml"], at.path());
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn every_alert_has_an_entry_in_the_runbook() {
    let operations = read("docs/operations.md");
    for (name, rule) in alerts(&read("observability/alerts.yml")) {
        let link = format!("runbook: docs/operations.md#{}", name.to_lowercase());
        assert!(rule.contains(&link), "{name} has no {link}");
        for key in ["summary: ", "severity: "] {
            assert!(rule.contains(key), "{name} has no {key}");
        }
        let entry = operations.split(&format!("\n### {name}\n")).nth(1);
        let entry = entry.and_then(|rest| rest.split("\n### ").next()).unwrap_or_default();
        for part in ["**Means**", "**Look**", "**Do**"] {
            assert!(entry.contains(part), "docs/operations.md says nothing about {name}: {part}");
        }
    }
}
