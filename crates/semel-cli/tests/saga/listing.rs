//! `semel saga ls` and `show`, and the tables they need.

use serde_json::json;

use crate::semel_binary::semel;
use crate::shop::{Participants, Shop};

#[test]
fn the_tables_are_made_once_and_print_touches_nothing() {
    let shop = Shop::new();
    let url = shop.url();
    for contract in [&[][..], &["--contract"], &["--dry-run"], &["--dry-run", "--contract"]] {
        let line = [&["migrate", "--saga", url.as_str()], contract].concat();
        assert_eq!(semel(&line).out(), "saga: nothing to do, version 1\n");
    }
    let new = format!("{url}.new");
    let planned = semel(&["migrate", "--saga", &new, "--dry-run"]).out();
    assert!(
        planned.contains("saga: would create version 1") && planned.contains("CREATE TABLE semel_saga"),
        "{planned}"
    );
    let sql = semel(&["migrate", "--saga", &new, "--print"]).out();
    assert!(sql.contains("CREATE TABLE semel_saga_entry"), "{sql}");
    assert_eq!(semel(&["migrate", "--saga", &new, "--json"]).json(), json!({ "before": 0, "now": 1 }));
    assert!(semel(&["migrate", "--saga", "redis://h"]).failed(2).contains("no sagas is known"));
    assert!(semel(&["migrate", "--saga", &new, "--inbox", &new]).failed(2).contains("cannot be used with"));
}

#[test]
fn sagas_are_listed_filtered_and_paged() {
    let shop = Shop::new();
    assert_eq!(shop.saga("ls", &["--json"]).json(), json!({ "sagas": [], "next": null }));
    let none = shop.saga("ls", &[]);
    assert_eq!((none.code, none.stderr.as_str()), (0, "no sagas match\n"));
    let (first, second) = (shop.start("checkout", "order-1"), shop.start("loan", "order-2"));
    let table = shop.saga("ls", &[]).out();
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].split_whitespace().eq(["NUMBER", "NAME", "SCOPE", "KEY", "STATUS", "STEP", "AGE", "DUE"])
    );
    assert!(lines[1].contains("loan") && lines[1].contains("waiting"), "{table}");
    assert!(lines[2].contains("parked (unknown_result)") && lines[2].contains("charge#0"), "{table}");
    assert!(!table.contains("order-1"), "keys are hidden: {table}");
    assert!(shop.saga("ls", &["--show-keys"]).out().contains("order-1"));

    let page = shop.saga("ls", &["--json", "--limit", "1"]).json();
    assert_eq!((&page["sagas"][0]["number"], &page["next"]), (&json!(second), &json!(second)));
    let page = shop.saga("ls", &["--json", "--limit", "1", "--before", &second.to_string()]).json();
    assert_eq!((&page["sagas"][0]["number"], &page["next"]), (&json!(first), &json!(null)));
    let cut = shop.saga("ls", &["--limit", "1"]);
    assert!(cut.code == 0 && cut.stderr.contains(&format!("--before {second}")), "{cut:?}");

    let parked = shop.saga("ls", &["--json", "--status", "parked,undoing"]).json();
    let saga = &parked["sagas"][0];
    assert_eq!(parked["sagas"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&saga["status"], &saga["reason"], &saga["cause"]),
        (&json!("parked"), &json!("unknown_result"), &json!(null))
    );
    assert_eq!(
        (&saga["tenant"], &saga["step"], &saga["name"]),
        (&json!("acme"), &json!("charge#0"), &json!("checkout"))
    );
    assert!(saga["epoch"].is_u64() && saga.get("key").is_none(), "{saga}");
    assert_eq!(shop.saga("ls", &["--json", "--name", "gift"]).json()["sagas"], json!([]));
}

#[test]
fn a_saga_is_shown_with_its_journal_and_what_can_be_done() {
    let shop = Shop::new();
    let number = shop.start("checkout", "order-1").to_string();
    let shown = shop.saga("show", &[&number]).out();
    for part in [
        "checkout version 1",
        "parked (unknown_result)",
        "input      \"book\"",
        "reserve#0",
        "pivot",
        "connection reset",
        "It is not known whether charge#0, the pivot, happened: connection reset.",
        " charge#0 --applied JSON --by NAME --why TEXT --epoch ",
        " charge#0 --not-applied --by NAME",
        "semel saga abandon",
    ] {
        assert!(shown.contains(part), "{part}:\n{shown}");
    }
    assert!(!shown.contains("semel saga compensate") && !shown.contains("semel saga retry"), "{shown}");
    let by_key = ["--name", "checkout", "--tenant", "acme", "--key", "order-1", "--show-keys"];
    let shown = shop.saga("show", &by_key).out();
    assert!(shown.contains("key        order-1\n"), "{shown}");
    let json = shop.saga("show", &[&number, "--json"]).json();
    assert_eq!((&json["input"], &json["outcome"]), (&json!("book"), &json!(null)));
    assert_eq!(json["open"][0]["step"], "charge#0");
    assert_eq!(json["open"][0]["state"], "unknown");
    let kinds: Vec<_> =
        json["entries"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["begin", "done", "begin", "unknown"]);
    assert_eq!((&json["entries"][0]["input"], &json["entries"][1]["body"]), (&json!("book"), &json!(7)));
    assert!(
        json["entries"][0]["safe_until"].is_string() && json["entries"][2]["safe_until"].is_null(),
        "{json}"
    );
}

#[test]
fn what_show_proposes_works_as_it_is_written() {
    let shop = Shop::new();
    let number = shop.start("checkout", "order-1");
    let json = shop.saga("show", &[&number.to_string(), "--json"]).json();
    let resolve = json["next"]["commands"][0].as_str().unwrap();
    assert!(resolve.contains("--applied"), "{resolve}");
    assert_eq!(shop.run_proposed(resolve, "\"ch_81\"").code, 0);
    shop.work(number, Participants::Break, "completed");
    let shown = shop.saga("show", &[&number.to_string()]).out();
    assert!(shown.contains("outcome    \"ch_81\"") && shown.contains("It is done."), "{shown}");
}
