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
