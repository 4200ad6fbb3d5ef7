//! `semel demo --saga` passes, and it finds planted bugs.

use std::path::Path;

use serde_json::Value;

use crate::semel_binary::{command, ran, semel};

const SMALL: [&str; 5] = ["demo", "--saga", "--json", "--orders", "40"];

/// Slow: lookups wait until a call can no longer arrive, and killed workers until others notice.
#[test]
fn each_order_is_complete_or_undone_although_workers_are_killed() {
    let place = tempfile::tempdir().unwrap();
    let mut demo = command(&[&SMALL[..], &["--seed", SEED]].concat());
    demo.env("TMPDIR", place.path());
    let ran = ran(demo);
    assert_eq!(ran.code, 0, "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let number = |path: &str| report.pointer(path).unwrap().as_u64().unwrap();
    assert_eq!(
        (number("/orders"), number("/with/workers_killed"), number("/without/workers_killed")),
        (40, 2, 2)
    );
    // The seed says which orders are refused.
    let (complete, undone) = (number("/with/complete"), number("/with/undone"));
    assert_eq!(
        (complete + undone, number("/completed"), number("/undone")),
        (40, complete, undone),
        "{report}"
    );
    assert!(complete > 20 && undone > 3, "{report}");
    assert_eq!((number("/with/repeated"), number("/with/half_done")), (0, 0));
    assert_eq!((number("/with/created"), number("/with/cancelled")), (40, undone));
    for what in ["charged", "notified", "published"] {
        assert_eq!(number(&format!("/with/{what}")), complete, "{what}: {report}");
    }
    assert_eq!(number("/with/held") - number("/with/released"), complete, "{report}");
    // Of some charges only the ledger says what came of them.
    let resolved = report["resolved"].as_array().unwrap();
    assert!(!resolved.is_empty() && resolved.iter().all(|saga| saga["step"] == "charge#0"), "{report}");
    assert_eq!(report["wrong"], Value::Array(Vec::new()));
    // A service that retries each step loses its way under the same faults.
    assert!(number("/without/repeated") + number("/without/half_done") > 0, "{report}");

    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "files are left behind");
    assert_eq!(processes_at(place.path()), Vec::<String>::new());
}

/// Slow: three runs, as above.
#[test]
fn a_planted_bug_is_found() {
    for (bug, says) in [("twice", "more than once"), ("lost", "HalfDone"), ("blind", "more than once")] {
        let ran = semel(&[&SMALL[..], &["--seed", SEED, "--break", bug]].concat());
        assert_eq!(ran.code, 1, "{bug}: {ran:?}");
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        let wrong = report["wrong"].as_array().unwrap();
        assert!(wrong.iter().any(|why| why.as_str().unwrap().contains(says)), "{bug}: {report}");
        let last = ran.stderr.lines().last().unwrap();
        assert!(last.starts_with("semel: not all or undone: order-0000"), "{last}");
    }
}

#[test]
fn what_does_not_go_with_sagas_is_refused() {
    for (flags, says) in [
        (&["--saga", "--stay"][..], "cannot be used with"),
        (&["--saga", "--intents", "20"], "cannot be used with"),
        (&["--orders", "20"], "--saga"),
        (&["--saga", "--store", "postgres://127.0.0.1:1/x"], "leave --store out"),
        (&["--saga", "--orders", "9"], "10..="),
    ] {
        let ran = semel(&[&["demo"], flags].concat());
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains(says), "{ran:?}");
    }
}

/// A seed with which a charge is in doubt and cannot be looked up.
const SEED: &str = "8";

/// Processes whose command line contains this path.
fn processes_at(place: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&*place.to_string_lossy()))
        .collect()
}
