//! `semel sweep`, `semel migrate`, `semel completions`, help.

use serde_json::json;

use crate::semel::semel;
use crate::world::{World, block_on, guarded, intent};

/// A store with this many outcomes whose retention is over, and one that is kept.
fn expired(count: usize) -> World {
    let world = World::empty();
    block_on(async {
        let store = world.store_long_ago().await;
        for n in 0..count {
            let intent = intent("", "mail.send", &format!("k-{n}"));
            let work = |_| async { Ok::<_, semel::Failure>(1) };
            guarded(&store, &intent).once(intent.scope(), intent.key(), &(), work).await.unwrap();
        }
        let kept = intent("", "mail.send", "kept");
        let guarded = guarded(&store, &kept).retention(semel::Retention::Forever).unwrap();
        guarded.once(kept.scope(), kept.key(), &(), |_| async { Ok::<_, semel::Failure>(1) }).await.unwrap();
        store.close().await;
    });
    world
}

#[test]
fn sweep_forgets_what_expired_and_prints_how_many() {
    let world = expired(25);
    assert_eq!(world.semel(&["sweep", "--limit", "5", "--batch", "2"]).out(), "5\n");
    assert_eq!(world.semel(&["sweep", "--batch", "7", "--json"]).json(), json!({ "swept": 20 }));
    assert_eq!(world.semel(&["sweep"]).out(), "0\n");
    assert_eq!(world.semel(&["ls"]).out().lines().count(), 2);
}

#[test]
fn sweep_leaves_open_intents_however_old() {
    let world = World::new();
    assert_eq!(world.semel(&["sweep"]).out(), "0\n");
    assert_eq!(world.semel(&["ls", "--state", "uncertain,in_progress"]).out().lines().count(), 4);
}

#[test]
fn migrate_makes_the_tables_and_print_touches_nothing() {
    let world = World::empty();
    let sql = world.semel(&["migrate", "--print"]).out();
    assert!(sql.contains("CREATE TABLE intent ("), "{sql}");
    assert!(!world.path().exists());
    assert_eq!(world.semel(&["migrate"]).out(), "created, version 2\n");
    assert_eq!(world.semel(&["migrate"]).out(), "nothing to do, version 2\n");
    assert_eq!(world.semel(&["migrate", "--json"]).json(), json!({ "before": 2, "now": 2 }));
    world.semel(&["ls", "--json"]).out();

    // The printed SQL creates the same tables with plain SQLite.
    let by_hand = World::empty();
    rusqlite::Connection::open(by_hand.path()).unwrap().execute_batch(&sql).unwrap();
    assert_eq!(by_hand.semel(&["migrate"]).out(), "nothing to do, version 2\n");
}

#[test]
fn migrate_makes_an_outbox_once_and_print_touches_nothing() {
    let world = World::empty();
    let url = world.url();
    let sql = semel(&["migrate", "--outbox", &url, "--print"]).out();
    assert!(sql.contains("CREATE TABLE semel_outbox ("), "{sql}");
    assert!(!world.path().exists());
    assert_eq!(semel(&["migrate", "--outbox", &url]).out(), "outbox: created, version 1\n");
    assert_eq!(semel(&["migrate", "--outbox", &url]).out(), "outbox: nothing to do, version 1\n");
    assert_eq!(semel(&["migrate", "--outbox", &url, "--json"]).json(), json!({ "before": 1, "now": 1 }));

    let by_hand = World::empty();
    rusqlite::Connection::open(by_hand.path()).unwrap().execute_batch(&sql).unwrap();
    assert_eq!(semel(&["migrate", "--outbox", &by_hand.url()]).out(), "outbox: nothing to do, version 1\n");

    rusqlite::Connection::open(by_hand.path()).unwrap().execute_batch("DROP TABLE semel_outbox").unwrap();
    let line = semel(&["migrate", "--outbox", &by_hand.url()]).failed(2);
    assert!(line.contains("is incomplete"), "{line}");
    let line = semel(&["migrate", "--outbox", "redis://127.0.0.1"]).failed(2);
    assert!(line.starts_with("no outbox is known for \"redis\"; use sqlite:PATH"), "{line}");
}

#[test]
fn completions_for_the_common_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let script = semel(&["completions", shell]).out();
        assert!(script.contains("semel") && script.contains("resolve"), "{shell}");
        for word in ["relay", "rebase", "parked", "exactly-once", "unpublished"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    semel(&["completions", "cmd.exe"]).failed(2);
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in ["ls", "show", "resolve", "release", "sweep", "migrate", "gateway", "relay", "outbox"] {
        let help = semel(&[command, "--help"]).out();
        assert!(help.contains(&format!("  semel {command}")), "{help}");
        assert!(!help.contains("demo-worker"));
    }
    for command in ["ls", "show", "parked", "retry", "skip", "rebase"] {
        let help = semel(&["outbox", command, "--help"]).out();
        assert!(help.contains(&format!("  semel outbox {command}")), "{help}");
    }
    assert!(!semel(&["--help"]).out().contains("demo-worker"));
    assert_eq!(semel(&[]).code, 2);
}

#[test]
fn a_dry_run_shows_the_plan_and_changes_nothing() {
    let world = World::empty();
    let plan = world.semel(&["migrate", "--dry-run"]).out();
    assert!(
        plan.starts_with("-- would create version 2\n") && plan.contains("CREATE TABLE intent"),
        "{plan}"
    );
    assert!(!world.path().exists());
    assert_eq!(world.semel(&["migrate"]).out(), "created, version 2\n");
    for args in
        [&["migrate", "--dry-run"][..], &["migrate", "--dry-run", "--contract"], &["migrate", "--contract"]]
    {
        assert_eq!(world.semel(args).out(), "nothing to do, version 2\n");
    }
    let json = world.semel(&["migrate", "--dry-run", "--json"]).out();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json, serde_json::json!({ "before": 2, "after": 2, "steps": [] }));
}
