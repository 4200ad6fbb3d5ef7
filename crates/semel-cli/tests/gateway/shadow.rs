//! Shadow mode.

use crate::client::send;
use crate::gateway::{configured, plain};

fn verdict(operation: &str, verdict: &str, count: u32) -> String {
    format!("semel_gateway_shadow_total{{operation=\"{operation}\",verdict=\"{verdict}\"}} {count}")
}

#[test]
fn everything_reaches_the_service_and_what_would_have_been_is_reported() {
    let (_place, upstream, gateway) = plain(&["--shadow", "--require-key"]);
    assert_eq!(gateway.post("/pay", "k-1", "1").status, 201);
    gateway.wait_for_metric(&verdict("POST *", "run", 1));
    let again = gateway.post("/pay", "k-1", "1");
    assert_eq!((again.status, again.is_replay()), (201, false));
    gateway.wait_for_metric(&verdict("POST *", "replay", 1));
    assert_eq!(gateway.post("/pay", "k-1", "2").status, 201);
    gateway.wait_for_metric(&verdict("POST *", "mismatch", 1));
    assert_eq!(send(gateway.addr, "POST", "/pay", &[], "x").status, 201);
    gateway.wait_for_metric(&verdict("POST", "key_missing", 1));
    assert_eq!(upstream.effects("k-1"), 3);

    let addr = gateway.addr;
    let slow = move || send(addr, "POST", "/slow", &[("Idempotency-Key", "k-2")], "x");
    let two = [std::thread::spawn(slow), std::thread::spawn(slow)];
    gateway.wait_for_metric(&verdict("POST *", "in_flight", 1));
    upstream.open();
    upstream.open();
    for answer in two {
        assert_eq!(answer.join().unwrap().status, 201);
    }
    assert_eq!(upstream.effects("k-2"), 2);
    let end = gateway.stop();
    assert!(end.status.success());
    // The ledger keeps counting, so the second answer differs from the first.
    let replay = end.stderr.iter().find(|line| line.contains("verdict=\"replay\"")).unwrap();
    assert!(replay.contains("same_answer=false") && replay.contains("key_hash="), "{replay}");
    assert!(end.stderr.iter().all(|line| !line.contains("k-1")), "raw keys stay out of the log");
}

#[test]
fn tenants_are_asked_for_in_the_shadow_too() {
    let args = ["--shadow", "--authorize", "GET /whoami", "--tenant", "auth:X-User-Id"];
    let (_place, upstream, gateway) = configured(&args, "");
    let pay = |headers: &[(&str, &str)]| send(gateway.addr, "POST", "/pay", headers, "x").status;
    assert_eq!(pay(&[("Idempotency-Key", "k-1")]), 201);
    gateway.wait_for_metric(&verdict("POST", "unauthorised", 1));
    assert_eq!(pay(&[("Idempotency-Key", "k-1"), ("Authorization", "Bearer ana.1")]), 201);
    gateway.wait_for_metric(&verdict("POST", "run", 1));
    assert_eq!(upstream.effects("k-1"), 2);
}
