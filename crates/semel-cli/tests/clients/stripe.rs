//! Stripe's SDK for Python: sends keys, retries by itself, and obeys `Stripe-Should-Retry`.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::gateway::{CONFIG, Gateway};
use crate::said;
use crate::upstream::Upstream;

const ROUNDS: usize = 2;
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/stripe_client.py");

/// Slow: the package's own retries wait, and the calls that are never answered run into the gateway's timeout.
#[test]
fn each_key_is_charged_once_whatever_becomes_of_the_answers() {
    let python = testkit::python::with(&["stripe==16.1.0"]).unwrap();
    let upstream = Upstream::start();
    // For calls that are never answered; late answers come well before.
    let config = CONFIG.replace("[timeouts]", "[timeouts]\nresponse = \"4s\"");
    let config = format!("profile = \"stripe\"\n{config}");
    let gateway = Gateway::start(upstream.address, &config);
    let script = [SCRIPT, &gateway.url(), &ROUNDS.to_string()];
    let said = said(Command::new(python).args(script).env("PYTHONDONTWRITEBYTECODE", "1"));
    println!("{said}");
    let said: Value = serde_json::from_str(&said).unwrap();

    let charges = upstream.charges();
    let paid = said["paid"].as_object().unwrap();
    assert_eq!(paid.len(), ROUNDS * 6);
    let answered: BTreeMap<_, _> =
        paid.iter().map(|(key, paid)| (key.clone(), paid["id"].as_str().unwrap().to_owned())).collect();
    let payments = charges.iter().filter(|(key, _)| answered.contains_key(key)).cloned();
    let mut payments: Vec<_> = payments.collect();
    payments.sort();
    assert_eq!(
        payments,
        answered.clone().into_iter().collect::<Vec<_>>(),
        "the ledger, and what the clients got"
    );
    assert_eq!(said["again"].as_str(), answered.get("ok-0").map(String::as_str));
    for (key, paid) in paid {
        // The SDK retried by itself where it could.
        let alone = ["ok", "late", "error"].iter().any(|behaviour| key.starts_with(behaviour));
        assert!(!alone || paid["calls"] == 1, "{key}: {paid}");
    }

    let mismatch = &said["mismatch"];
    assert!(
        ["IdempotencyError", "InvalidRequestError"].map(Value::from).contains(&mismatch["error"]),
        "{mismatch}"
    );
    assert_eq!(mismatch["sent"], 1, "{mismatch}");
    for uncertain in [&said["uncertain"], &said["still_uncertain"]] {
        assert_eq!(uncertain["should_retry"], "false", "{uncertain}");
        assert_eq!(uncertain["code"], "IDEMPOTENCY_OUTCOME_UNCERTAIN", "{uncertain}");
        assert_eq!(uncertain["sent"], 1, "not retried by the SDK: {uncertain}");
    }
    assert_eq!((upstream.attempts("lost-refund"), upstream.charged("lost-refund")), (1, 1));

    // Each upload has its own boundary, and still counts as the same request.
    let files = &said["files"];
    assert_eq!(files[0]["id"], files[1]["id"], "{files}");
    assert_eq!(files[1]["replayed"], "true", "{files}");
    assert_eq!(upstream.charged("file-0"), 1);
    assert_eq!(charges.len(), ROUNDS * 6 + 2, "{charges:?}");
}
