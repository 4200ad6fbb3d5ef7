//! A sealed journal: what can be seen and decided without the key, and with it.

use serde_json::json;

use crate::semel_binary::semel;
use crate::shop::{Participants, Shop};

#[test]
fn without_the_key_what_is_sealed_is_named_and_nothing_is_recorded() {
    let shop = Shop::sealed();
    let number = shop.start("checkout", "order-1");
    let n = number.to_string();
    assert!(shop.saga("ls", &[]).out().contains("parked (unknown_result)"));
    let shown = shop.saga("show", &[&n]).out();
    assert!(shown.contains("its values; name the keys with --keys file:PATH or env:NAME"), "{shown}");
    assert!(shown.contains("charge#0") && !shown.contains("book") && !shown.contains("1250"), "{shown}");
    let before = shop.saga("show", &[&n, "--json"]).json();
    assert_eq!(before["input"], json!({ "sealed": "--keys opens it" }));
    let bodies = before["entries"].as_array().unwrap().iter().map(|entry| entry["body"].clone());
    assert!(bodies.filter(|body| !body.is_null()).all(|body| body == before["input"]), "{before}");

    for (command, args) in [
        ("resolve", &[n.as_str(), "charge", "--applied", "\"ch_81\""][..]),
        ("resolve", &[&n, "charge", "--not-applied"]),
        ("retry", &[&n]),
        ("abandon", &[&n, "--yes"]),
        ("cancel", &[&n]),
    ] {
        let line = shop.decide(command, args).failed(2);
        assert!(line.contains("is sealed") && line.contains("--keys"), "{command}: {line}");
    }
    let exported = shop.saga("export", &[&n]);
    assert!(exported.stdout.is_empty(), "{exported:?}");
    let line = exported.failed(2);
    assert!(line.contains("is sealed") && line.contains("--keys"), "{line}");
    let signal = shop.saga("signal", &[&n, "approval", "--id", "a"]).failed(2);
    assert!(signal.contains("is sealed"), "{signal}");
    assert!(shop.saga("retry", &["--reason", "unknown_result", "--plan"]).out().contains("would be retried"));
    let unchanged = shop.saga("show", &[&n, "--json"]).json();
    assert_eq!((&unchanged["entries"], &unchanged["epoch"]), (&before["entries"], &before["epoch"]));
}

#[test]
fn with_the_key_everything_is_shown_and_decisions_are_sealed() {
    let shop = Shop::sealed();
    let number = shop.start("checkout", "order-1");
    let (n, keys) = (number.to_string(), shop.keys());
    let shown = shop.saga("show", &[&n, "--keys", &keys]).out();
    assert!(shown.contains("book") && shown.contains("connection reset"), "{shown}");
    assert!(shop.saga("export", &[&n, "--keys", &keys]).out().contains("connection reset"));
    let args = [n.as_str(), "charge", "--applied", "\"ch_81\"", "--keys", &keys];
    assert!(shop.decide("resolve", &args).out().contains("recorded that charge#0 happened"));
    // Who and why are sealed with it.
    let without = shop.saga("show", &[&n]).out();
    assert!(!without.contains("ana") && !without.contains("ch_81"), "{without}");
    assert!(without.contains("by a person; sealed"), "{without}");
    let with = shop.saga("show", &[&n, "--keys", &keys]).out();
    assert!(with.contains("by ana: I looked") && with.contains("ch_81"), "{with}");
    shop.work(number, Participants::Answer, "completed");
    let ended = shop.saga("show", &[&n, "--json", "--keys", &keys]).json();
    assert_eq!(ended["outcome"], json!("ch_81"));

    let other = format!("{}.other", keys.trim_start_matches("file:"));
    std::fs::write(&other, format!("other {}\n", "1a".repeat(32))).unwrap();
    let line = semel(&["saga", "show", &shop.url(), &n, "--keys", &format!("file:{other}"), "--json"]);
    assert!(line.stdout.contains("--keys opens it"), "{line:?}");
    assert!(shop.saga("ls", &["--keys", "/etc/keys"]).failed(2).contains("file:PATH or env:NAME"));
}

/// A sealed decision would stop every worker of a journal that is not sealed.
#[test]
fn with_keys_nothing_is_recorded_in_a_journal_that_is_not_sealed() {
    let shop = Shop::new();
    let (waits, parked) = (shop.start("credit", "order-1"), shop.start("checkout", "order-2"));
    let (keys, waits, parked) = (shop.keys(), waits.to_string(), parked.to_string());
    let show = |n: &str| shop.saga("show", &[n, "--json"]).json();
    let before = [show(&waits), show(&parked)];
    for (command, args) in [
        ("approve", &[waits.as_str(), "manager"][..]),
        ("reject", &[&waits, "manager"]),
        ("cancel", &[&waits]),
        ("resolve", &[&parked, "charge", "--not-applied"]),
        ("retry", &[&parked]),
        ("abandon", &[&parked, "--yes"]),
    ] {
        let line = shop.decide(command, &[args, &["--keys", &keys]].concat()).failed(2);
        assert!(line.contains("is not sealed") && line.contains("without --keys"), "{command}: {line}");
    }
    let args = [waits.as_str(), "approval", "--id", "a", "--keys", &keys];
    assert!(shop.saga("signal", &args).failed(2).contains("is not sealed"));
    let many = ["--reason", "unknown_result", "--keys", &keys];
    let plan = shop.saga("retry", &[&many[..], &["--plan"]].concat()).out();
    assert!(plan.contains("would be refused: saga") && plan.contains("is not sealed"), "{plan}");
    let done = shop.decide("retry", &[&many[..], &["--yes"]].concat());
    assert!(done.stdout.contains("0 retried, 1 refused"), "{done:?}");
    for (n, before) in [&waits, &parked].into_iter().zip(&before) {
        let now = show(n);
        for of in ["signals", "entries", "epoch"] {
            assert_eq!(now[of], before[of], "{of}");
        }
    }
    // Without them it is recorded, and its workers read it.
    shop.decide("approve", &[&waits, "manager"]).out();
    shop.work(waits.parse().unwrap(), Participants::Answer, "completed");
}

/// Somebody changed one value in the database.
#[test]
fn one_saga_that_cannot_be_opened_does_not_hide_the_others() {
    let shop = Shop::sealed();
    let (bad, good) = (shop.start("checkout", "order-1"), shop.start("checkout", "order-2"));
    let keys = shop.keys();
    let file = shop.url().trim_start_matches("sqlite:").to_owned();
    let db = rusqlite::Connection::open(file).unwrap();
    let change = "UPDATE semel_saga_entry SET body = substr(body, 1, length(body) - 1) \
                  WHERE body IS NOT NULL AND saga = ";
    assert!(db.execute(&format!("{change}{bad}"), []).unwrap() > 0);
    drop(db);
    let listed = shop.saga("ls", &["--keys", &keys, "--json"]).json();
    let step = |n: u64| {
        let sagas = listed["sagas"].as_array().unwrap();
        sagas.iter().find(|saga| saga["number"] == json!(n)).unwrap()["step"].clone()
    };
    assert_eq!((step(bad), step(good)), (json!(null), json!("charge#0")));
    assert!(shop.saga("show", &[&bad.to_string(), "--keys", &keys]).failed(1).contains("seal is broken"));
    let many = ["--reason", "unknown_result", "--keys", &keys];
    let done = shop.decide("retry", &[&many[..], &["--yes"]].concat());
    assert!(done.stdout.contains("1 retried, 1 refused"), "{done:?}");
    assert!(done.stdout.contains(&format!("saga {bad} (checkout) refused")), "{done:?}");
    assert!(done.stdout.contains("seal is broken"), "{done:?}");
}
