//! Errors: one line that says what to do, and the exit code.

use std::fs;

use crate::semel::semel;
use crate::world::{World, block_on, claims, completed, intent, uncertain};

const OPERATE: [&[&str]; 5] = [
    &["ls"],
    &["show", "0123456789abcdef"],
    &["resolve", "0123456789abcdef", "--not-applied", "--by", "a", "--why", "b"],
    &["release", "0123456789abcdef", "--by", "a", "--why", "b"],
    &["sweep"],
];

#[test]
fn a_missing_file_is_not_made_by_looking_at_it() {
    let world = World::empty();
    for args in OPERATE {
        let line = world.semel(args).failed(2);
        assert!(
            line.ends_with("does not exist; check the path, or create it with `semel migrate`"),
            "{line}"
        );
    }
    assert_eq!(fs::read_dir(world.path().parent().unwrap()).unwrap().count(), 0);
}

#[test]
fn an_empty_file_stays_empty() {
    let world = World::empty();
    fs::write(world.path(), "").unwrap();
    let line = world.semel(&["ls"]).failed(2);
    assert!(line.ends_with("is empty; check the path, or create its tables with `semel migrate`"), "{line}");
    assert_eq!(fs::metadata(world.path()).unwrap().len(), 0);
}

#[test]
fn urls_that_name_no_store() {
    for (url, says) in [
        (
            "semel.db",
            "\"semel.db\" is not a store URL; use sqlite:PATH, postgres://…, mysql://…, redis://…, redis+cluster://… or memory:",
        ),
        (
            "mongodb://h/db",
            "there is no store for the scheme \"mongodb\"; use sqlite:PATH, postgres://…, mysql://…, redis://…, redis+cluster://… or memory:",
        ),
        ("sqlite:", "sqlite: needs a path, such as sqlite:semel.db"),
        (
            "memory:",
            "memory: exists only inside its own process; name a store that lasts, such as sqlite:semel.db",
        ),
    ] {
        for args in OPERATE {
            assert_eq!(semel(&[args, &["--store", url]].concat()).failed(2), says);
        }
        assert_eq!(semel(&["migrate", "--store", url]).failed(2), says);
        assert_eq!(semel(&["migrate", "--print", "--store", url]).failed(2), says);
    }
    let line = semel(&["migrate", "--store", "sqlite:/no/such/directory/semel.db"]).failed(2);
    assert!(line.contains("create that directory first"), "{line}");
    let line = semel(&["ls", "--store", "sqlite:/"]).failed(2);
    assert!(line.contains("is a directory; name a file in it"), "{line}");
}

#[test]
fn unknown_intents() {
    let world = World::new();
    let line = world.semel(&["show", &"0".repeat(64)]).failed(1);
    assert!(line.ends_with("in this store; it may have expired; `semel ls` lists all"), "{line}");
    let line = world.semel(&["show", "00000000"]).failed(1);
    assert!(line.starts_with("no intent 00000000… in this store;"), "{line}");
    let line = world.semel(&["show", "--tenant", "acme", "--operation", "mail.send", "--key", "k"]).failed(1);
    assert!(
        line.ends_with("check tenant, operation and key; it may also have expired: `semel ls` lists all"),
        "{line}"
    );
}

#[test]
fn ids_that_are_none() {
    let world = World::new();
    for bad in ["1234567", "order-1001", &"0".repeat(65)] {
        let line = world.semel(&["show", bad]).failed(2);
        assert!(line.ends_with("give its 64 hex digits or at least the first 8"), "{line}");
    }
    world.semel(&["show"]).failed(2);
    world.semel(&["show", "--key", "k"]).failed(2);
    world.semel(&["show", "--operation", "o"]).failed(2);
    world.semel(&["show", "0123456789", "--key", "k", "--operation", "o"]).failed(2);
    world.semel(&["show", "--operation", "o", "--key", ""]).failed(2);
}

#[test]
fn an_ambiguous_short_id_names_both() {
    let world = World::empty();
    // Two keys of a hundred thousand whose intents have the same first eight digits.
    let two = ["k-60645", "k-85529"].map(|key| intent("", "o", key));
    block_on(async {
        let store = world.store().await;
        for intent in &two {
            claims(&store, intent, 1).await;
        }
        store.close().await;
    });
    let [one, other] = two.map(|intent| intent.id().to_string());
    assert_eq!(one[..8], other[..8]);
    let says = format!("fe925ac0 is ambiguous: {other} and {one}; give more digits");
    for args in [&["show", "fe925ac0"][..], &["release", "FE925AC0", "--by", "a", "--why", "b"]] {
        assert_eq!(world.semel(args).failed(1), says);
    }
    assert_eq!(world.semel(&["show", &one[..12], "--json"]).json()["id"], one);
}

#[test]
fn arguments_that_make_no_sense() {
    let world = World::new();
    for (args, says) in [
        (
            &["ls", "--state", "lost"][..],
            "\"lost\" is not a state; use in_progress, completed, failed_final, failed_retryable, uncertain",
        ),
        (&["ls", "--older-than", "5"], "\"5\" is not a duration; write it like 30s, 5m, 2h, 7d or 1h30m"),
        (&["ls", "--limit", "0"], "0 is not in 1..=1000"),
        (&["ls", "--limit", "1001"], "1001 is not in 1..=1000"),
        (&["ls", "--all", "--limit", "5"], "cannot be used with"),
        (
            &["ls", "--after", "x"],
            "\"x\" is not a cursor of this store; use the one the previous page ended with",
        ),
        (&["ls", "--tenant", "a\tb"], "control character"),
        (&["sweep", "--batch", "0"], "0 is not in 1..=100000"),
        (&["list"], "unrecognized subcommand 'list'"),
        (&["demo", "--intents", "20", "--sends", "19"], "as many --sends as --intents"),
    ] {
        let line = world.semel(args).failed(2);
        assert!(line.contains(says), "{line}");
    }
    let id = uncertain().id().to_string();
    let resolve = |more: &[&str]| {
        let args = ["resolve", &id, "--applied", "--by", "a", "--why", "b"];
        world.semel(&[&args[..], more].concat()).failed(2)
    };
    assert!(resolve(&["--header", "no colon"]).contains("write it like 'content-type: text/plain'"));
    assert!(resolve(&["--body", "@/no/such/file"]).contains("give a file that can be read"));
    assert!(resolve(&["--code", "70000"]).contains("70000 is not in 0..=65535"));
    assert!(resolve(&["--retention", "0s"]).contains("would let every retry run again"));
    let big = world.file("big");
    fs::write(&big, vec![0; 5 << 20]).unwrap();
    assert!(resolve(&["--body", &format!("@{}", big.display())]).contains("the outcome is too large"));
}

#[test]
fn a_corrupt_file_and_somebody_elses_database() {
    let world = World::empty();
    fs::write(world.path(), "this is a text file, and long enough to have a header of sorts".repeat(99))
        .unwrap();
    let line = world.semel(&["ls"]).failed(1);
    assert!(line.contains("is not an SQLite database; name another path"), "{line}");

    let other = World::empty();
    rusqlite::Connection::open(other.path()).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let before = fs::read(other.path()).unwrap();
    for args in [&["ls"][..], &["migrate"]] {
        let line = other.semel(args).failed(2);
        assert!(line.contains("belongs to another application"), "{line}");
    }
    assert_eq!(fs::read(other.path()).unwrap(), before);
}

#[test]
fn a_locked_database_can_be_looked_at_but_not_decided() {
    let world = World::new();
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    let id = uncertain().id().to_string();
    world.semel(&["show", &id]).out();
    let line = world.semel(&["resolve", &id, "--not-applied", "--by", "a", "--why", "b"]).failed(1);
    assert!(line.contains("is locked by another process; retry, or stop that process"), "{line}");
    connection.execute_batch("ROLLBACK").unwrap();
    assert_eq!(world.semel(&["show", &id, "--json"]).json()["state"], "uncertain");
}

#[test]
fn an_outcome_that_is_not_there_has_no_body() {
    let world = World::new();
    let line = world.semel(&[
        "show",
        "--body",
        "--tenant",
        "acme",
        "--operation",
        "payment.create",
        "--key",
        "order-1002",
    ]);
    assert!(line.failed(1).starts_with("this intent has no outcome yet"));
    world.semel(&["show", "--body", "--json", &completed().id().to_string()]).failed(2);
}
