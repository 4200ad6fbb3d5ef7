//! curl, as in the documentation.

use std::process::Command;

use crate::gateway::{CONFIG, Gateway};
use crate::upstream::Upstream;
use crate::wire::{Head, read_message};
use crate::{need, said};

const PAYMENT: &str = "/v1/payment_intents";
const KEY: [&str; 2] = ["-H", "Idempotency-Key: order-1001"];

fn curl(gateway: &Gateway, path: &str, arguments: &[&str]) -> (Head, Vec<u8>) {
    let url = format!("{}{path}", gateway.url());
    let answer =
        said(Command::new("curl").args(["-sS", "-i", "--http1.1", "-m", "20"]).args(arguments).arg(url));
    read_message(&mut answer.as_bytes()).unwrap_or_else(|| panic!("no answer: {answer}"))
}

#[test]
fn curl_sees_the_contract() {
    need("curl");
    let upstream = Upstream::start();
    let gateway = Gateway::start(upstream.address, CONFIG);
    let [header, key] = KEY;
    let (first, body) = curl(&gateway, PAYMENT, &[header, key, "-d", "amount=4200"]);
    assert_eq!((first.status(), first.header("idempotency-replayed")), (200, None));
    assert!(!body.is_empty());

    let (again, same) = curl(&gateway, PAYMENT, &[header, key, "-d", "amount=4200"]);
    assert_eq!((again.status(), again.header("idempotency-replayed")), (200, Some("true")));
    assert_eq!(again.header("content-type"), first.header("content-type"));
    assert_eq!(same, body, "byte for byte");

    let (other, problem) = curl(&gateway, PAYMENT, &[header, key, "-d", "amount=1"]);
    assert_eq!((other.status(), other.header("x-should-retry")), (409, Some("false")));
    assert_eq!(other.header("content-type"), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_slice(&problem).unwrap();
    assert_eq!(problem["code"], "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST");

    let (missing, _) = curl(&gateway, PAYMENT, &["-d", "amount=4200"]);
    assert_eq!(missing.status(), 400);
    assert_eq!(missing.header("idempotency-problem"), Some("IDEMPOTENCY_KEY_MISSING"));

    // Requests that match no operation pass through.
    let (read, _) = curl(&gateway, "/v1/balance", &[]);
    assert_eq!((read.status(), read.header("idempotency-replayed")), (200, None));

    assert_eq!(upstream.charges(), [("order-1001".to_owned(), "pi_1".to_owned())]);
}

#[test]
fn curl_over_http2_sees_the_same() {
    need("curl");
    let upstream = Upstream::start();
    let gateway = Gateway::start(upstream.address, CONFIG);
    let [header, key] = KEY;
    let url = format!("{}{PAYMENT}", gateway.url());
    let ask = || {
        let arguments =
            ["-sS", "--http2-prior-knowledge", "-m", "20", "-w", "\n%{http_version} %{http_code}"];
        said(Command::new("curl").args(arguments).args([header, key, "-d", "amount=4200", &url]))
    };
    let first = ask();
    assert!(first.ends_with("\n2 200"), "{first}");
    assert_eq!(ask(), first);
    assert_eq!(upstream.charged("order-1001"), 1);
}
