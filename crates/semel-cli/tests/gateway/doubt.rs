//! Uncertain outcomes when the service gives no answer, and how lookups settle them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use testkit::proxy::{Fault, Proxy};

use crate::client::{Answer, Connection, request};
use crate::gateway::{Gateway, Place, configured, plain};
use crate::upstream::Upstream;

const UNCERTAIN: &str = "IDEMPOTENCY_OUTCOME_UNCERTAIN";
const PATIENCE: Duration = Duration::from_secs(60);

/// One operation on `/cut`, where the effect happens and the answer is lost, with these settings.
fn cut(settings: &str) -> (Place, Upstream, Gateway) {
    let config = format!(
        "[scope]\nsingle_tenant = true\n[[operation]]\nname = \"pay\"\nmatch = \"POST /cut\"\n{settings}\n"
    );
    configured(&[], &config)
}

fn status_and_code(answer: &Answer) -> (u16, &str) {
    (answer.status, answer.code())
}

/// Retries until the outcome is known. A lookup may be too early to count, or too late on a busy machine: then nothing
/// is decided, and the next retry triggers another lookup.
fn settled(addr: SocketAddr, path: &str) -> Answer {
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = crate::client::send(addr, "POST", path, &[("Idempotency-Key", "k-1")], "x");
        if status_and_code(&answer) != (409, UNCERTAIN) || Instant::now() >= until {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_answer_that_is_lost_leaves_an_opaque_effect_uncertain() {
    let (_place, upstream, gateway) = cut("");
    let first = gateway.post("/cut", "k-1", "x");
    assert_eq!(status_and_code(&first), (502, UNCERTAIN));
    assert_eq!(
        (first.header("x-should-retry"), first.json()["retryable"].as_bool()),
        (Some("false"), Some(false))
    );
    assert_eq!(status_and_code(&gateway.post("/cut", "k-1", "x")), (409, UNCERTAIN));
    assert_eq!(upstream.effects("k-1"), 1);
}

#[test]
fn an_answer_that_breaks_off_half_way_is_no_answer() {
    let (_place, upstream, gateway) = plain(&[]);
    let mut client = Connection::open(gateway.addr);
    client.write(request("POST", "/half", &[("Idempotency-Key", "k-1")], "x"));
    let half = client.answer();
    assert_eq!(half.as_ref().map(status_and_code), Some((502, UNCERTAIN)));
    assert_eq!(status_and_code(&gateway.post("/half", "k-1", "x")), (409, UNCERTAIN));
    assert_eq!(upstream.effects("k-1"), 1);
    // The head of an answer that is cut off counts.
    assert_eq!(status_and_code(&gateway.post("/half-applied", "k-2", "x")), (502, "IDEMPOTENCY_ANSWER_LOST"));
    let again = gateway.post("/half-applied", "k-2", "x");
    assert_eq!(
        (again.status, again.is_replay(), again.header("idempotency-body")),
        (200, true, Some("not-kept"))
    );
    assert_eq!(upstream.effects("k-2"), 1);
}

#[test]
fn a_keyed_effect_is_run_again() {
    let (_place, upstream, gateway) = cut("effect = \"keyed\"");
    for _ in 0..2 {
        let answer = gateway.post("/cut", "k-1", "x");
        assert_eq!(status_and_code(&answer), (502, "IDEMPOTENCY_ATTEMPT_FAILED"));
        assert_eq!(answer.header("x-should-retry"), Some("true"));
    }
    assert_eq!(upstream.effects("k-1"), 2);
}

#[test]
fn a_service_that_takes_too_long_is_in_doubt_too() {
    let (_place, upstream, gateway) = configured(&["--single-tenant"], "[timeouts]\nresponse = \"2s\"\n");
    assert_eq!(status_and_code(&gateway.post("/never", "k-1", "x")), (504, UNCERTAIN));
    assert_eq!(status_and_code(&gateway.post("/never", "k-1", "x")), (409, UNCERTAIN));
    assert_eq!(upstream.effects("k-1"), 1);
    let mut unguarded = Connection::open(gateway.addr);
    unguarded.write(request("GET", "/never", &[], ""));
    assert_eq!(status_and_code(&unguarded.answer().unwrap()), (504, "GATEWAY_UPSTREAM_TIMEOUT"));
}

#[test]
fn what_was_never_sent_did_not_happen() {
    let place = Place::new();
    let addr = SocketAddr::from(([127, 0, 0, 1], testkit::services::spare_port()));
    let gateway = place.start_before(&format!("http://{addr}"), &["--single-tenant"], "", None);
    let down = gateway.post("/pay", "k-1", "x");
    assert_eq!(status_and_code(&down), (502, "GATEWAY_UPSTREAM_UNREACHABLE"));
    assert_eq!((down.header("x-should-retry"), down.header("retry-after")), (Some("true"), Some("1")));
    let upstream = Upstream::start_on(addr);
    assert_eq!(gateway.post("/pay", "k-1", "x").status, 201);
    assert!(gateway.post("/pay", "k-1", "x").is_replay());
    assert_eq!(upstream.effects("k-1"), 1);
}

#[test]
fn a_network_that_swallows_answers_leaves_doubt_and_never_a_second_effect() {
    let (place, upstream) = (Place::new(), Upstream::start());
    let proxy = Proxy::start(upstream.addr).unwrap();
    let gateway = place.start_before(&format!("http://{}", proxy.addr()), &["--single-tenant"], "", None);
    for (n, fault) in
        [Fault::DropResponse, Fault::CutAnswerAfter(5), Fault::CutRequestAfter(20)].into_iter().enumerate()
    {
        let key = format!("k-{n}");
        proxy.cut();
        proxy.set(fault);
        // A pooled connection may turn out to be closed before anything is sent: then nothing happened.
        let first = loop {
            let answer = gateway.post("/pay", &key, "x");
            if answer.code() != "GATEWAY_UPSTREAM_UNREACHABLE" {
                break answer;
            }
        };
        assert_eq!(status_and_code(&first), (502, UNCERTAIN), "{fault:?}");
        proxy.set(Fault::Pass);
        assert_eq!(status_and_code(&gateway.post("/pay", &key, "x")), (409, UNCERTAIN), "{fault:?}");
        assert!(upstream.effects(&key) <= 1);
    }
}

#[test]
fn a_lookup_that_finds_it_settles_it() {
    let (_place, upstream, gateway) = cut(
        "lookup = \"GET /by-key/{key}\"\nlookup_absent = 404\nlookup_settle = \"1ms\"\nlookup_status = 201",
    );
    assert_eq!(status_and_code(&gateway.post("/cut", "k-1", "x")), (502, UNCERTAIN));
    let retry = settled(gateway.addr, "/cut");
    assert_eq!((retry.status, retry.text().as_str(), retry.is_replay()), (201, "{\"found\":true}", true));
    assert_eq!(retry.header("content-type"), Some("application/json"));
    assert_eq!(upstream.effects("k-1"), 1);
}

#[test]
fn a_lookup_that_finds_nothing_lets_it_run_again() {
    let config = "[scope]\nsingle_tenant = true\n[timeouts]\nresponse = \"8s\"\n\
                  [[operation]]\nmatch = \"POST /slow\"\nlookup = \"GET /by-key/{key}\"\nlookup_absent = 404\nlookup_settle = \"1ms\"\n";
    let (_place, upstream, gateway) = configured(&[], config);
    // The request waits in the service and has not taken effect yet.
    assert_eq!(status_and_code(&gateway.post("/slow", "k-1", "x")), (504, UNCERTAIN));
    let (addr, open) = (gateway.addr, &upstream);
    let retry = std::thread::scope(|scope| {
        let retry = scope.spawn(move || settled(addr, "/slow"));
        // The first attempt, the lookup, the second attempt.
        open.wait_for(3);
        open.open();
        open.open();
        retry.join().unwrap()
    });
    assert_eq!(retry.status, 201);
    assert!(upstream.seen().iter().any(|seen| seen.path == "/by-key/k-1" && seen.method == "GET"));
}

#[test]
fn a_lookup_waits_and_one_that_does_not_know_settles_nothing() {
    let (_place, upstream, gateway) =
        cut("lookup = \"GET /by-key/{key}\"\nlookup_absent = 404\nlookup_settle = \"1h\"");
    gateway.post("/cut", "k-1", "x");
    let early = gateway.post("/cut", "k-1", "x");
    assert_eq!(status_and_code(&early), (409, UNCERTAIN));
    assert!(early.header("retry-after").unwrap().parse::<u64>().unwrap() > 3_000);
    assert_eq!(upstream.seen().len(), 1, "it was not asked yet");

    let (_place, upstream, gateway) =
        cut("lookup = \"GET /by-key/{key}\"\nlookup_absent = 404\nlookup_settle = \"1ms\"");
    upstream.break_lookups(true);
    gateway.post("/cut", "k-1", "x");
    assert_eq!(status_and_code(&gateway.post("/cut", "k-1", "x")), (409, UNCERTAIN));
    upstream.break_lookups(false);
    assert_eq!(settled(gateway.addr, "/cut").status, 200);
    assert_eq!(upstream.effects("k-1"), 1);
}

#[test]
fn what_is_uncertain_is_looked_up_although_no_client_comes_back() {
    let config = "[scope]\nsingle_tenant = true\n[recover]\nreconcile_every = \"20ms\"\npause_min = \"20ms\"\n\
                  [[operation]]\nname = \"pay\"\nmatch = \"POST /cut\"\nlookup = \"GET /by-key/{key}\"\nlookup_absent = 404\n\
                  lookup_settle = \"1ms\"\n";
    let (_place, upstream, gateway) = configured(&[], config);
    upstream.break_lookups(true);
    assert_eq!(status_and_code(&gateway.post("/cut", "k-1", "x")), (502, UNCERTAIN));
    gateway.wait_for_metric("idempotency_held{operation=\"pay\"} 1");
    upstream.break_lookups(false);
    gateway.wait_for_metric("idempotency_recovery_total{operation=\"pay\",status=\"applied\"} 1");
    gateway.wait_for_metric("idempotency_held{operation=\"pay\"} 0");
    upstream.break_lookups(true);
    let retry = gateway.post("/cut", "k-1", "x");
    assert_eq!((retry.text().as_str(), retry.is_replay()), ("{\"found\":true}", true));
    assert_eq!(upstream.effects("k-1"), 1);
}

#[test]
fn what_a_person_decides_is_what_the_next_retry_gets() {
    let (place, upstream, gateway) = cut("");
    for key in ["k-1", "k-2"] {
        assert_eq!(status_and_code(&gateway.post("/cut", key, "x")), (502, UNCERTAIN));
    }
    let resolve = |key: &str, more: &[&str]| {
        let args = ["resolve", "--operation", "pay", "--key", key, "--by", "ana", "--why", "looked"];
        let output = place.semel(&[&args[..], more].concat());
        assert!(output.status.success(), "{output:?}");
    };
    resolve("k-1", &["--applied", "--code", "201", "--body", "by hand"]);
    let retry = gateway.post("/cut", "k-1", "x");
    assert_eq!((retry.status, retry.text().as_str(), retry.is_replay()), (201, "by hand", true));
    resolve("k-2", &["--not-applied"]);
    gateway.post("/cut", "k-2", "x");
    assert_eq!((upstream.effects("k-1"), upstream.effects("k-2")), (1, 2));
}

/// Several tenants, each with its own `k-1`; the lookup names the tenant.
#[test]
fn a_lookup_asks_about_the_tenant_whose_intent_it_is() {
    let config = "[scope]\ntenant = \"header:X-Tenant-Id\"\n[[operation]]\nname = \"pay\"\nmatch = \"POST /cut\"\n\
                  lookup = \"GET /by-key/{key}?tenant={tenant}\"\nlookup_host = \"payments.example\"\nlookup_settle = \"1ms\"\n\
                  lookup_headers = { x-tenant-id = \"{tenant}\", accept-encoding = \"br\" }\n";
    let (_place, upstream, gateway) = configured(&[], config);
    upstream.break_lookups(true);
    let headers = [("Idempotency-Key", "k-1"), ("X-Tenant-Id", "org/42")];
    assert_eq!(
        status_and_code(&crate::client::send(gateway.addr, "POST", "/cut", &headers, "x")),
        (502, UNCERTAIN)
    );
    let until = Instant::now() + PATIENCE;
    let asked = loop {
        crate::client::send(gateway.addr, "POST", "/cut", &headers, "x");
        let seen = upstream.seen();
        match seen.into_iter().find(|request| request.path.starts_with("/by-key/")) {
            Some(asked) => break asked,
            None => assert!(Instant::now() < until, "no lookup came"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    // Encoded once, and configured values replace the gateway's own.
    assert_eq!(asked.path, "/by-key/k-1?tenant=org%2F42");
    let said = |name: &str| -> Vec<String> {
        let named = |(header, _): &&(String, String)| header.eq_ignore_ascii_case(name);
        asked.headers.iter().filter(named).map(|(_, value)| value.clone()).collect()
    };
    assert_eq!(said("host"), ["payments.example"]);
    assert_eq!(said("x-tenant-id"), ["org/42"]);
    assert_eq!(said("accept-encoding"), ["br"]);
}

/// "Not found" means "not applied" only if the configuration says so: it may come from the wrong host.
#[test]
fn not_found_settles_nothing_unless_it_is_named() {
    let config = |more: &str| {
        format!(
            "[scope]\nsingle_tenant = true\n[timeouts]\nresponse = \"1s\"\n[[operation]]\nmatch = \"POST /slow\"\n\
             lookup = \"GET /by-key/{{key}}\"\nlookup_settle = \"1ms\"\n{more}"
        )
    };
    let (_place, upstream, gateway) = configured(&[], &config(""));
    assert_eq!(status_and_code(&gateway.post("/slow", "k-1", "x")), (504, UNCERTAIN));
    // Every lookup is answered with 404.
    let until = Instant::now() + PATIENCE;
    while upstream.seen().iter().filter(|request| request.path.starts_with("/by-key/")).count() < 3 {
        assert_eq!(status_and_code(&gateway.post("/slow", "k-1", "x")), (409, UNCERTAIN));
        assert!(Instant::now() < until, "no lookup came");
    }
    assert_eq!(
        upstream.seen().iter().filter(|request| request.path == "/slow").count(),
        1,
        "it was run again"
    );
}
