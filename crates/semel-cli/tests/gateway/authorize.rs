//! A caller without permission gets no answer, not even a replay.

use crate::client::{Answer, send};
use crate::gateway::{Gateway, Place, configured};

fn pay(gateway: &Gateway, token: Option<&str>) -> Answer {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![("Idempotency-Key", "k-1"), ("X-User-Id", "mallory")];
    headers.extend(bearer.as_deref().map(|bearer| ("Authorization", bearer)));
    send(gateway.addr, "POST", "/pay", &headers, "x")
}

#[test]
fn a_replay_is_not_given_to_a_caller_that_upstream_does_not_know() {
    let (_place, upstream, gateway) = configured(&["--single-tenant", "--authorize", "GET /whoami"], "");
    let first = pay(&gateway, Some("ana.1"));
    assert_eq!(first.status, 201);
    let stranger = pay(&gateway, None);
    assert_eq!((stranger.status, stranger.text().as_str()), (401, "who are you?"));
    assert_eq!(stranger.header("www-authenticate"), Some("Bearer"));
    assert!(pay(&gateway, Some("ana.2")).is_replay());
    assert_eq!(upstream.effects("k-1"), 1);
    let asked = upstream.seen().into_iter().find(|seen| seen.path == "/whoami").unwrap();
    assert_eq!(asked.header("authorization"), Some("Bearer ana.1"));
    assert_eq!(
        (asked.header("x-forwarded-method"), asked.header("x-forwarded-uri")),
        (Some("POST"), Some("/pay"))
    );
    assert_eq!((asked.header("idempotency-key"), asked.body.len()), (None, 0));
}

#[test]
fn upstream_names_the_tenant_and_a_refreshed_token_is_the_same_one() {
    let (_place, upstream, gateway) =
        configured(&["--authorize", "GET /whoami", "--tenant", "auth:X-User-Id"], "");
    let ana = pay(&gateway, Some("ana.1"));
    let refreshed = pay(&gateway, Some("ana.2"));
    assert!(refreshed.is_replay() && refreshed.body == ana.body);
    let bob = pay(&gateway, Some("bob.1"));
    assert!(!bob.is_replay() && bob.body != ana.body);
    assert_eq!(upstream.effects("k-1"), 2);
}

#[test]
fn what_is_not_guarded_is_left_to_upstream() {
    let (_place, upstream, gateway) = configured(&["--single-tenant", "--authorize", "GET /whoami"], "");
    send(gateway.addr, "POST", "/pay", &[], "x");
    send(gateway.addr, "GET", "/hello", &[("Idempotency-Key", "k-1")], "");
    assert!(upstream.seen().iter().all(|seen| seen.path != "/whoami"));
}

#[test]
fn nothing_is_claimed_when_upstream_cannot_be_asked() {
    let place = Place::new();
    // Bound and not listening: a port that is only given up may be the next one of a server beside this test.
    let closed = tokio::net::TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = closed.local_addr().unwrap();
    let args = ["--single-tenant", "--authorize", "GET /whoami"];
    let gateway = place.start_before(&format!("http://{addr}"), &args, "", None);
    let answer = pay(&gateway, Some("ana.1"));
    assert_eq!((answer.status, answer.code()), (502, "GATEWAY_AUTHORIZE_FAILED"));
    let listed = place.semel(&["ls", "--json"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("\"records\":[]"), "{listed:?}");
}

#[test]
fn an_answer_without_a_tenant_is_an_error() {
    let args = ["--authorize", "GET /hello", "--tenant", "auth:X-User-Id"];
    let (_place, upstream, gateway) = configured(&args, "");
    assert_eq!(pay(&gateway, Some("ana.1")).code(), "GATEWAY_AUTHORIZE_FAILED");
    assert_eq!(upstream.effects("k-1"), 0);
}
