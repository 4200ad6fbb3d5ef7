//! The demo holds, and it notices when it does not.

use serde_json::Value;

use crate::semel::{command, ran, semel};
use crate::world::World;

const SMALL: [&str; 5] = ["demo", "--json", "--intents", "100", "--sends=300"];

#[test]
fn each_intent_happens_exactly_once_and_a_process_is_killed() {
    for seed in ["1", "2"] {
        let ran = semel(&[&SMALL[..], &["--seed", seed]].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        let number = |path: &str| report.pointer(path).unwrap().as_u64().unwrap();
        assert_eq!((number("/intents"), number("/sends")), (100, 300));
        assert_eq!(number("/without/effects"), 300);
        assert!(number("/without/intents_repeated") > 50);
        assert_eq!(number("/calls/processes_killed"), 1);
        assert_eq!(number("/before_settling/accounted"), 100);
        // The kill finds at least one call on its way there and one on its way back.
        assert!(number("/settled/applied") > 0 && number("/settled/run_again") > 0, "{report}");
        assert_eq!(number("/before_settling/intents_repeated"), 0);
        assert_eq!((number("/after_settling/effects"), number("/after_settling/held")), (100, 0));
        assert_eq!(number("/settled/applied"), number("/before_settling/held_in_ledger"));
        assert_eq!(number("/calls/ran") + number("/calls/replayed") + number("/calls/told_uncertain"), 300);
        assert_eq!(report["wrong"], Value::Array(Vec::new()));
    }
}

#[test]
fn a_planted_bug_is_noticed() {
    for (bug, says) in
        [("twice", "times"), ("lost", "never happened and is not held"), ("blind", "after settling")]
    {
        let ran = semel(&[&SMALL[..], &["--break", bug]].concat());
        assert_eq!(ran.code, 1, "{bug}: {ran:?}");
        let last = ran.stderr.lines().last().unwrap();
        assert!(last.starts_with("semel: not exactly once: ") && last.contains(says), "{last}");
    }
}

#[test]
fn nothing_is_left_behind_unless_it_is_kept() {
    let world = World::empty();
    let place = world.path().parent().unwrap().to_owned();
    let demo = |more: &[&str]| {
        let mut command =
            command(&[&["demo", "--intents", "20", "--sends", "60", "--tasks", "8"], more].concat());
        command.env("TMPDIR", &place);
        ran(command)
    };
    let table = demo(&["--seed", "7"]);
    assert_eq!(table.code, 0, "{table:?}");
    assert!(table.stdout.starts_with("20 intents sent 60 times from 8 tasks, seed 7\n"), "{}", table.stdout);
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);

    let kept = demo(&["--keep"]);
    let directory = std::fs::read_dir(&place).unwrap().next().unwrap().unwrap().path();
    assert!(kept.stderr.contains(&format!("kept: {}", directory.display())), "{}", kept.stderr);
    let url = format!("sqlite:{}", directory.join("semel.db").display());
    assert_eq!(semel(&["ls", "--state", "completed", "--store", &url]).out().lines().count(), 21);
}
