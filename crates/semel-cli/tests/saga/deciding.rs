//! Decisions about one saga.

use serde_json::json;

use crate::shop::{Participants, Shop};

#[test]
fn a_resolved_saga_completes_when_a_worker_runs_again() {
    let shop = Shop::new();
    let number = shop.start("checkout", "order-1");
    let n = number.to_string();
    let said = shop.decide("resolve", &[&n, "charge", "--applied", "\"ch_81\""]).out();
    assert!(said.contains("charge#0 happened") && said.contains("goes on"), "{said}");
    assert_eq!(shop.status(number), "waiting");
    shop.work(number, Participants::Break, "completed");
    let shown = shop.saga("show", &[&n, "--json"]).json();
    assert_eq!(shown["outcome"], "ch_81");
    let decided =
        shown["entries"].as_array().unwrap().iter().find(|entry| entry["kind"] == "decided").unwrap();
    assert_eq!(
        (&decided["by"], &decided["why"], &decided["body"]),
        (&json!("ana"), &json!("I looked"), &json!("ch_81"))
    );
    let text = shop.saga("show", &[&n]).out();
    assert!(text.contains("it happened: \"ch_81\", by ana: I looked"), "{text}");

    // It is over: nothing is left to decide.
    for (command, args) in [("retry", &[][..]), ("compensate", &[]), ("abandon", &["--yes"])] {
        let line = shop.decide(command, &[&[n.as_str()], args].concat()).failed(1);
        assert!(line.contains("it is completed already"), "{command}: {line}");
    }
    assert!(shop.decide("cancel", &[&n]).failed(1).contains("it is completed already"));
    assert!(shop.decide("resolve", &[&n, "charge", "--applied"]).failed(1).contains("completed already"));
    assert!(shop.saga("signal", &[&n, "approval", "--id", "a"]).failed(1).contains("no signals any more"));
}

#[test]
fn a_step_that_did_not_happen_is_called_again() {
    let shop = Shop::new();
    let number = shop.start("checkout", "order-1");
    let n = number.to_string();
    let json = shop.decide("resolve", &[&n, "charge#0", "--not-applied", "--json"]).json();
    assert_eq!(
        (&json["number"], &json["result"], &json["status"]),
        (&json!(number), &json!("recorded"), &json!("waiting"))
    );
    shop.work(number, Participants::Answer, "completed");
    let text = shop.saga("show", &[&n]).out();
    assert!(text.contains("it did not happen, by ana: I looked") && text.contains("\"ch_1\""), "{text}");
}

#[test]
fn a_stale_epoch_decides_nothing() {
    let shop = Shop::new();
    let number = shop.start("checkout", "order-1");
    let n = number.to_string();
    let epoch = shop.saga("show", &[&n, "--json"]).json()["epoch"].as_u64().unwrap();
    let stale = (epoch - 1).to_string();
    for (command, args) in [
        ("retry", &[n.as_str()][..]),
        ("abandon", &[&n, "--yes"]),
        ("resolve", &[&n, "charge", "--not-applied"]),
    ] {
        let line = shop.decide(command, &[args, &["--epoch", &stale]].concat()).failed(1);
        assert!(
            line.contains(&format!("changed since epoch {stale}")) && line.contains("semel saga show"),
            "{line}"
        );
    }
    assert_eq!(shop.status(number), "parked");
    let epoch = epoch.to_string();
    assert_eq!(shop.decide("retry", &[&n, "--epoch", &epoch]).code, 0);
    assert!(shop.decide("retry", &[&n, "--epoch", &epoch]).failed(1).contains("it is waiting now"));
    let line = shop.decide("retry", &[&n]).failed(1);
    assert!(line.contains("it is waiting, and only a parked saga can be retried"), "{line}");
}

#[test]
fn a_saga_is_undone_by_a_person_and_its_stuck_undo_is_recorded() {
    let shop = Shop::new();
    let number = shop.start("gift", "order-1");
    let n = number.to_string();
    let proposed = shop.saga("show", &[&n]).out();
    assert!(proposed.contains("semel saga compensate"), "{proposed}");
    assert!(shop.decide("compensate", &[&n]).out().contains("is undone"));
    // What is not known has to be found out first.
    shop.work(number, Participants::Break, "parked");
    assert_eq!(shop.decide("resolve", &[&n, "tell", "--not-applied"]).code, 0);
    shop.work(number, Participants::Break, "parked");
    let shown = shop.saga("show", &[&n]).out();
    assert!(
        shown.contains("parked (undo_stuck)") && shown.contains("cause      cancelled: it is being undone"),
        "{shown}"
    );
    assert!(
        shown.contains("The undo of reserve#0 was refused: the stock is") && !shown.contains('\u{1b}'),
        "{shown:?}"
    );
    assert!(!shown.contains("semel saga compensate") && shown.contains("by ana: I looked"), "{shown}");
    assert!(shop.decide("compensate", &[&n]).failed(1).contains("it is being undone already"));
    assert!(shop.decide("cancel", &[&n]).failed(1).contains("being undone already"));
    let line = shop.decide("resolve", &[&n, "reserve", "--undo", "--applied", "7"]).failed(2);
    assert!(line.contains("an undo has no result"), "{line}");
    let said = shop.decide("resolve", &[&n, "reserve", "--undo", "--applied"]).out();
    assert!(said.contains("the undo of reserve#0 happened"), "{said}");
    shop.work(number, Participants::Break, "undone");
    let shown = shop.saga("show", &[&n, "--json"]).json();
    assert_eq!((&shown["status"], &shown["cause"]), (&json!("undone"), &json!("cancelled")));
    let operator =
        shown["entries"].as_array().unwrap().iter().find(|entry| entry["kind"] == "operator").unwrap();
    assert_eq!((&operator["step"], &operator["by"]), (&json!("/compensate#0"), &json!("ana")));
}

#[test]
fn a_saga_past_its_pivot_is_not_undone() {
    let shop = Shop::new();
    let n = shop.start("checkout", "order-1").to_string();
    assert!(shop.decide("compensate", &[&n]).failed(1).contains("pivot has begun"));
}

#[test]
fn abandoning_asks_first_and_cannot_be_taken_back() {
    let shop = Shop::new();
    let number = shop.start("checkout", "order-1");
    let n = number.to_string();
    let line = shop.decide("abandon", &[&n]).failed(1);
    assert!(line.contains("nothing was changed") && line.contains("--yes"), "{line}");
    assert_eq!(shop.status(number), "parked");
    assert!(shop.decide("abandon", &[&n, "--yes", "--retention", "forever"]).out().contains("is abandoned"));
    let shown = shop.saga("show", &[&n]).out();
    assert!(shown.contains("status     abandoned") && shown.contains("It is kept forever."), "{shown}");
    assert!(shown.contains("by ana: I looked"), "{shown}");
    assert!(shop.decide("retry", &[&n]).failed(1).contains("abandoned already"));
}

#[test]
fn a_waiting_saga_is_cancelled_once() {
    let shop = Shop::new();
    let number = shop.start("loan", "order-1");
    let n = number.to_string();
    assert!(shop.decide("cancel", &[&n]).out().contains("is cancelled"));
    assert!(shop.decide("cancel", &[&n]).out().contains("was cancelled before"));
    let shown = shop.saga("show", &[&n]).out();
    assert!(shown.contains("cancelled by ana: I looked"), "{shown}");
    shop.work(number, Participants::Answer, "undone");
    assert!(shop.saga("ls", &[]).out().contains("undone (cancelled)"));
}

#[test]
fn a_signal_is_the_same_under_the_same_id() {
    let shop = Shop::new();
    let number = shop.start("loan", "order-1");
    let n = number.to_string();
    let signal = |body: &str| shop.saga("signal", &[&n, "approval", body, "--id", "ticket-1"]);
    assert_eq!(signal("\"granted\"").out(), format!("saga {n} has the signal\n"));
    assert!(signal("\"denied\"").out().contains("before; nothing was changed"));
    let shown = shop.saga("show", &[&n]).out();
    assert!(shown.contains("approval \"granted\", id ticket-1"), "{shown}");
    shop.work(number, Participants::Answer, "completed");
    assert_eq!(shop.saga("show", &[&n, "--json"]).json()["outcome"], "granted");
}

#[test]
fn a_name_alone_is_the_one_use_of_the_step_that_is_open() {
    let shop = Shop::new();
    let number = shop.start("pair", "order-1");
    let n = number.to_string();
    let line = shop.decide("resolve", &[&n, "tell", "--applied"]).failed(2);
    assert!(line.contains("say which, tell#0 or tell#1"), "{line}");
    assert_eq!(shop.status(number), "parked");
    assert!(shop.decide("resolve", &[&n, "tell#0", "--applied"]).out().contains("tell#0 happened"));
    shop.work(number, Participants::Break, "parked");
    assert!(shop.decide("resolve", &[&n, "tell", "--applied"]).out().contains("tell#1 happened"));
    shop.work(number, Participants::Break, "completed");
}

#[test]
fn a_result_that_the_code_cannot_read_parks_the_saga_and_show_says_so() {
    let shop = Shop::new();
    let number = shop.start("checkout", "order-1");
    let n = number.to_string();
    assert_eq!(shop.decide("resolve", &[&n, "charge", "--applied"]).code, 0);
    shop.work(number, Participants::Break, "parked");
    let shown = shop.saga("show", &[&n]).out();
    assert!(shown.contains("parked (changed)") && shown.contains("cannot read a result in it"), "{shown}");
    assert!(shown.contains("it happened: null, by ana: I looked"), "{shown}");
    assert!(
        shop.decide("resolve", &[&n, "charge", "--applied", "\"x\""])
            .failed(1)
            .contains("nothing to resolve")
    );
}
