//! `semel saga approve` and `reject`.

use serde_json::json;

use crate::shop::{Participants, Shop};

#[test]
fn who_approved_and_why_is_recorded_and_the_first_decision_counts() {
    let shop = Shop::new();
    let number = shop.start("credit", "order-1");
    let n = number.to_string();
    assert!(shop.saga("approve", &[&n, "manager"]).failed(2).contains("--by"));
    let said = shop.decide("approve", &[&n, "manager"]).out();
    assert_eq!(said, format!("saga {n}: manager is approved\n"));
    assert!(shop.decide("approve", &[&n, "manager"]).out().contains("nothing was changed"));
    let opposite = shop.decide("reject", &[&n, "manager"]).failed(1);
    assert!(opposite.contains(&format!("saga {n} was already approved by ana: I looked")), "{opposite}");
    let other = shop.decide("approve", &[&n, "boss", "--id", "approval-manager"]).failed(1);
    assert!(other.contains("it is no decision about \"boss\""), "{other}");
    let shown = shop.saga("show", &[&n, "--json"]).json();
    let body = json!({ "approved": true, "by": "ana", "why": "I looked" });
    assert_eq!((&shown["signals"][0]["name"], &shown["signals"][0]["body"]), (&json!("manager"), &body));
    shop.work(number, Participants::Answer, "completed");
    assert_eq!(shop.saga("show", &[&n, "--json"]).json()["outcome"], "by ana: I looked");
    assert!(shop.decide("approve", &[&n, "manager", "--id", "another"]).failed(1).contains("has ended"));
}

#[test]
fn a_rejection_undoes_and_says_by_whom() {
    let shop = Shop::new();
    let number = shop.start("credit", "order-1");
    let n = number.to_string();
    let json = shop.decide("reject", &[&n, "manager", "--json"]).json();
    assert_eq!((&json["number"], &json["result"]), (&json!(number), &json!("recorded")));
    shop.work(number, Participants::Answer, "undone");
    assert_eq!(shop.saga("show", &[&n, "--json"]).json()["outcome"], "rejected by ana: I looked");
    assert!(shop.decide("approve", &["99", "manager"]).failed(1).contains("there is no saga 99"));
    assert!(
        shop.decide("approve", &[&n, "the/manager", "--id", "b"]).failed(2).contains("a signal has a name")
    );
}
