//! Rate limits and quotas per tenant and per key.

use crate::client::{Connection, send};
use crate::gateway::configured;

const TENANT: &str = "[scope]\ntenant = \"header:X-Tenant-Id\"\n";

#[test]
fn new_intents_are_limited_per_tenant_and_retries_are_not_new() {
    let config = format!("{TENANT}[limits]\nnew_intents_per_s = 0.01\nnew_intents_burst = 2\n");
    let (_place, upstream, gateway) = configured(&[], &config);
    let pay = |tenant: &str, key: &str| {
        send(gateway.addr, "POST", "/pay", &[("Idempotency-Key", key), ("X-Tenant-Id", tenant)], "x")
    };
    // Retries before the limit is reached do not count either.
    for key in ["k-1", "k-1", "k-1", "k-2"] {
        assert_eq!(pay("acme", key).status, 201, "{key}");
    }
    let third = pay("acme", "k-3");
    assert_eq!((third.status, third.code()), (429, "GATEWAY_TOO_MANY_INTENTS"));
    assert!(third.header("retry-after").unwrap().parse::<u64>().unwrap() > 10);
    assert_eq!(third.header("x-should-retry"), Some("true"));
    assert!(pay("acme", "k-1").is_replay());
    assert_eq!(pay("globex", "k-3").status, 201);
    assert_eq!((upstream.effects("k-3"), upstream.seen().len()), (1, 3));
    gateway.wait_for_metric("semel_gateway_limited_total{kind=\"intents\"} 1");
}

#[test]
fn attempts_are_limited_per_key() {
    let config = format!("{TENANT}[limits]\nattempts_per_key_per_s = 0.01\nattempts_burst = 3\n");
    let (_place, _upstream, gateway) = configured(&[], &config);
    let pay = |key: &str| {
        send(gateway.addr, "POST", "/pay", &[("Idempotency-Key", key), ("X-Tenant-Id", "acme")], "x")
    };
    for _ in 0..3 {
        assert_eq!(pay("k-1").status, 201);
    }
    let fourth = pay("k-1");
    assert_eq!((fourth.status, fourth.code()), (429, "GATEWAY_TOO_MANY_ATTEMPTS"));
    assert_eq!(pay("k-2").status, 201);
}

#[test]
fn a_tenant_that_fills_the_store_is_stopped() {
    let config = format!("{TENANT}[limits]\nstored_bytes_max = 1000\n");
    let (_place, upstream, gateway) = configured(&[], &config);
    let pay = |key: &str| {
        send(gateway.addr, "POST", "/pay", &[("Idempotency-Key", key), ("X-Tenant-Id", "acme")], "x")
    };
    assert_eq!(pay("k-1").status, 201);
    assert_eq!(pay("k-2").status, 201);
    let third = pay("k-3");
    assert_eq!((third.status, third.code()), (429, "GATEWAY_QUOTA_EXCEEDED"));
    assert!(pay("k-2").is_replay());
    assert_eq!(upstream.effects("k-3"), 0);
}

#[test]
fn weak_keys_are_refused_where_an_operation_says_so() {
    let config = "[scope]\nsingle_tenant = true\n[[operation]]\nmatch = \"POST /pay\"\nkey_bytes_min = 16\n";
    let (_place, _upstream, gateway) = configured(&[], config);
    let weak = gateway.post("/pay", "order-1", "x");
    assert_eq!((weak.status, weak.code()), (400, "IDEMPOTENCY_KEY_INVALID"));
    assert_eq!(gateway.post("/pay", "0199a3c2-7d4e-7c31-9f0a-5b2e8c6d4f10", "x").status, 201);
    assert_eq!(gateway.post("/else", "order-1", "x").status, 201, "other operations have their own rule");
}

/// Each body is small enough; all of them together exceed the limit.
#[test]
fn bodies_that_are_held_at_once_have_a_bound_together() {
    const BODY: usize = 600_000;
    let config = format!("[scope]\nsingle_tenant = true\n[limits]\nbuffered_bytes_max = {}\n", 1 << 20);
    let (_place, upstream, gateway) = configured(&[], &config);
    let body = "x".repeat(BODY);
    let mut slow = Connection::open(gateway.addr);
    slow.write(format!(
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k-1\r\nContent-Length: {BODY}\r\n\r\n"
    ));
    slow.write(&body[..BODY - 1]);
    gateway.wait_for_metric(&format!("semel_http_buffered_bytes {BODY}"));
    let refused = gateway.post("/pay", "k-2", &body);
    assert_eq!((refused.status, refused.code()), (503, "IDEMPOTENCY_BUSY"));
    assert_eq!((refused.header("retry-after"), refused.header("x-should-retry")), (Some("1"), Some("true")));
    gateway.wait_for_metric("semel_http_buffer_refused_total 1");
    assert_eq!(gateway.post("/pay", "k-3", "small").status, 201);
    slow.write("x");
    assert_eq!(slow.answer().unwrap().status, 201);
    gateway.wait_for_metric("semel_http_buffered_bytes 0");
    assert_eq!(gateway.post("/pay", "k-2", &body).status, 201);
    assert_eq!(upstream.effects("k-2"), 1);
}
