//! The admin listener, on an address of its own.

use crate::client::send;
use crate::gateway::plain;

#[test]
fn health_metrics_and_description() {
    let (_place, _upstream, gateway) = plain(&[]);
    let get = |path: &str| send(gateway.admin, "GET", path, &[], "");
    assert_eq!((get("/healthz").status, get("/healthz").text().as_str()), (200, "ok\n"));
    assert_eq!((get("/readyz").status, get("/readyz").text().as_str()), (200, "ready\n"));
    gateway.post("/pay", "k-1", "x");
    gateway.post("/pay", "k-1", "x");
    let metrics = get("/metrics");
    assert!(metrics.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    let text = metrics.text();
    for line in [
        "idempotency_claim_total{operation=\"POST *\",status=\"replay\"} 1",
        "semel_gateway_requests_total{kind=\"replay\"} 1",
        "semel_gateway_requests_total{kind=\"upstream\"} 1",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
    assert_eq!(text.matches("# EOF").count(), 1);
    assert!(text.ends_with("# EOF\n"));
    let description = get("/openapi.json").json();
    assert_eq!(description["openapi"], "3.1.0");
    assert_eq!(get("/nowhere").status, 404);
    assert_eq!(send(gateway.admin, "POST", "/healthz", &[], "").status, 405);
}

#[test]
fn nothing_of_it_is_on_the_public_port() {
    let (_place, upstream, gateway) = plain(&[]);
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
        assert_eq!(send(gateway.addr, "GET", path, &[], "").text(), "hello");
    }
    assert_eq!(upstream.seen().len(), 4);
}

#[test]
fn a_store_that_is_gone_is_not_ready() {
    let (place, _upstream, gateway) = plain(&[]);
    let connection = rusqlite::Connection::open(place.file("semel.db")).unwrap();
    connection.execute_batch("DROP TABLE intent").unwrap();
    let ready = send(gateway.admin, "GET", "/readyz", &[], "");
    assert_eq!(ready.status, 503, "{}", ready.text());
    assert_eq!(send(gateway.admin, "GET", "/healthz", &[], "").status, 200);
    let refused = gateway.post("/pay", "k-1", "x");
    assert_eq!((refused.status, refused.code()), (503, "IDEMPOTENCY_STORE_UNAVAILABLE"));
}
