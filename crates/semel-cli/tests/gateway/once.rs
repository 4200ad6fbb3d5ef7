//! A guarded request happens once, and every retry gets the same answer.

use crate::client::{Connection, request, send};
use crate::gateway::{Place, configured, plain};
use crate::upstream::Upstream;

#[test]
fn a_retry_gets_the_first_answer_and_the_service_is_not_asked() {
    let (_place, upstream, gateway) = plain(&[]);
    let headers = [("Idempotency-Key", "k-1"), ("Content-Type", "application/json")];
    let pay = |body: &str| send(gateway.addr, "POST", "/pay", &headers, body);
    let first = pay("{\"a\":1}");
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert_eq!(first.header("set-cookie"), Some("a=b"));
    assert_eq!(upstream.last().header("idempotency-key"), Some("k-1"));
    for body in ["{\"a\":1}", "{ \"a\": 1.0 }"] {
        let again = pay(body);
        assert_eq!((again.status, again.is_replay()), (201, true));
        assert_eq!(again.body, first.body);
        assert_eq!(again.header("location"), first.header("location"));
        assert_eq!(again.header("set-cookie"), None);
    }
    assert_eq!(upstream.effects("k-1"), 1);
}

#[test]
fn another_request_under_the_same_key_is_refused() {
    let (_place, upstream, gateway) = plain(&[]);
    gateway.post("/pay", "k-1", "{\"a\":1}");
    for (path, body) in [("/pay", "{\"a\":2}"), ("/else", "{\"a\":1}"), ("/pay?x=1", "{\"a\":1}")] {
        let answer = gateway.post(path, "k-1", body);
        assert_eq!(
            (answer.status, answer.code()),
            (409, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"),
            "{path}"
        );
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn profiles_tell_the_same_in_their_dialect() {
    for (profile, status, replayed) in
        [("ietf", 422, "idempotency-replayed"), ("stripe", 400, "idempotent-replayed")]
    {
        let (_place, _upstream, gateway) = plain(&["--profile", profile]);
        gateway.post("/pay", "k-1", "1");
        assert_eq!(gateway.post("/pay", "k-1", "2").status, status);
        assert_eq!(gateway.post("/pay", "k-1", "1").header(replayed), Some("true"));
    }
}

#[test]
fn a_key_is_needed_only_where_it_is_said() {
    let (_place, upstream, gateway) = plain(&[]);
    assert_eq!(send(gateway.addr, "POST", "/pay", &[], "x").status, 201);
    let (_place, _upstream, strict) = plain(&["--require-key"]);
    for method in ["POST", "PATCH"] {
        let answer = send(strict.addr, method, "/pay", &[], "x");
        assert_eq!((answer.status, answer.code()), (400, "IDEMPOTENCY_KEY_MISSING"));
    }
    for method in ["PUT", "DELETE", "GET"] {
        assert_eq!(send(strict.addr, method, "/hello", &[], "").status, 200);
    }
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn duplicates_at_the_same_time_run_once() {
    let (_place, upstream, gateway) = plain(&[]);
    let addr = gateway.addr;
    let first = std::thread::spawn(move || send(addr, "POST", "/slow", &[("Idempotency-Key", "k-1")], "x"));
    upstream.wait_for(1);
    let second = gateway.post("/slow", "k-1", "x");
    assert_eq!((second.status, second.code()), (409, "IDEMPOTENCY_REQUEST_IN_PROGRESS"));
    assert_eq!(second.header("retry-after"), Some("1"));
    upstream.open();
    assert_eq!(first.join().unwrap().status, 201);
    assert!(gateway.post("/slow", "k-1", "x").is_replay());
    assert_eq!(upstream.effects("k-1"), 1);
}

#[test]
fn a_duplicate_may_wait_or_be_given_an_address_to_ask() {
    let config = "[scope]\nsingle_tenant = true\n\
                  [[operation]]\nmatch = \"POST /slow\"\nin_flight = \"wait:20s\"\n\
                  [[operation]]\nmatch = \"PUT /slow\"\nin_flight = \"accept\"\n";
    let (_place, upstream, gateway) = configured(&[], config);
    let addr = gateway.addr;
    let put = |method: &'static str| {
        std::thread::spawn(move || send(addr, method, "/slow", &[("Idempotency-Key", "k-1")], "x"))
    };
    let first = put("POST");
    upstream.wait_for(1);
    let second = put("POST");
    upstream.open();
    let answers = [first.join().unwrap(), second.join().unwrap()];
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [201, 201]);
    assert_eq!(answers.iter().filter(|answer| answer.is_replay()).count(), 1);

    let first = put("PUT");
    upstream.wait_for(2);
    let accepted = send(addr, "PUT", "/slow", &[("Idempotency-Key", "k-1")], "x");
    assert_eq!(accepted.status, 202);
    let place = accepted.header("location").unwrap().to_owned();
    assert!(place.starts_with("/.semel/intents/"), "{place}");
    assert_eq!(send(addr, "GET", &place, &[], "").status, 202);
    upstream.open();
    first.join().unwrap();
    let result = send(addr, "GET", &place, &[], "");
    assert_eq!((result.status, result.text().as_str()), (201, "slow"));
    // Without its token the status resource is not found.
    let (id, _) = place.rsplit_once('.').unwrap();
    for made_up in [id.to_owned(), format!("{id}.{}", "0".repeat(32))] {
        let answer = send(addr, "GET", &made_up, &[], "");
        assert_eq!((answer.status, answer.code()), (404, "IDEMPOTENCY_INTENT_NOT_FOUND"), "{made_up}");
    }
    assert_eq!(upstream.seen().len(), 2, "the status resource is the gateway's own");
}

#[test]
fn the_address_in_a_202_outlives_the_gateway_that_gave_it() {
    let (place, upstream) = (Place::new(), Upstream::start());
    let secret = place.file("status.secret");
    std::fs::write(&secret, "a secret of this service\n").unwrap();
    let config = |more: &str| {
        format!(
            "{more}[scope]\nsingle_tenant = true\n[[operation]]\nmatch = \"PUT /slow\"\nin_flight = \"accept\"\n"
        )
    };
    let signed = config(&format!("status_secret = \"file:{}\"\n", secret.display()));
    let gateway = place.start(&upstream, &[], &signed);
    let addr = gateway.addr;
    let put = move || send(addr, "PUT", "/slow", &[("Idempotency-Key", "k-1")], "x");
    let first = std::thread::spawn(put);
    upstream.wait_for(1);
    let accepted = put();
    let address = accepted.header("location").unwrap().to_owned();
    upstream.open();
    assert_eq!(first.join().unwrap().status, 201);
    drop(gateway.stop());
    for (config, status) in [(&signed, 201), (&config(""), 404)] {
        let gateway = place.start(&upstream, &[], config);
        assert_eq!(send(gateway.addr, "GET", &address, &[], "").status, status);
        let finished = gateway.stop();
        let warned = finished.stderr.iter().any(|line| line.contains("status_secret is not set"));
        assert_eq!(warned, status == 404, "{:?}", finished.stderr);
    }
}

#[test]
fn a_caller_who_goes_away_changes_nothing() {
    let (_place, upstream, gateway) = plain(&[]);
    let mut gone = Connection::open(gateway.addr);
    gone.write(request("POST", "/slow", &[("Idempotency-Key", "k-1")], "x"));
    upstream.wait_for(1);
    drop(gone);
    upstream.open();
    gateway.wait_for_metric("idempotency_finalize_total{operation=\"POST *\",status=\"recorded\"} 1");
    let retry = gateway.post("/slow", "k-1", "x");
    assert_eq!((retry.status, retry.is_replay()), (201, true));
    assert_eq!(upstream.effects("k-1"), 1);
}

#[test]
fn tenants_have_their_own_keys() {
    let (_place, upstream, gateway) = configured(&["--tenant", "header:X-Tenant-Id"], "");
    let pay = |tenant: &str| {
        send(gateway.addr, "POST", "/pay", &[("Idempotency-Key", "k-1"), ("X-Tenant-Id", tenant)], "x")
    };
    let (acme, globex) = (pay("acme"), pay("globex"));
    assert_ne!(acme.body, globex.body);
    assert_eq!(pay("acme").body, acme.body);
    assert_eq!(upstream.effects("k-1"), 2);
    let no_tenant = gateway.post("/pay", "k-1", "x");
    assert_eq!((no_tenant.status, no_tenant.code()), (400, "IDEMPOTENCY_SCOPE_MISSING"));
}

#[test]
fn what_is_too_large_is_refused_or_not_kept() {
    let (_place, upstream, gateway) = plain(&[]);
    let answer = gateway.post("/pay", "k-1", &"x".repeat((1 << 20) + 1));
    assert_eq!((answer.status, answer.code()), (413, "IDEMPOTENCY_BODY_TOO_LARGE"));
    assert_eq!(upstream.seen().len(), 0);
    let big = gateway.post("/big", "k-2", "x");
    assert_eq!((big.status, big.body.len()), (200, 300 << 10));
    let again = gateway.post("/big", "k-2", "x");
    assert_eq!((again.status, again.body.len()), (200, 0));
    assert_eq!(again.header("idempotency-body"), Some("not-kept"));
    assert_eq!(upstream.effects("k-2"), 1);
}

#[test]
fn final_answers_are_replayed_and_failures_run_again() {
    let (_place, upstream, gateway) = plain(&[]);
    for (path, status, asked) in [("/declined", 402, 1), ("/fails", 500, 2)] {
        let before = upstream.seen().len();
        for _ in 0..2 {
            assert_eq!(gateway.post(path, path, "x").status, status);
        }
        assert_eq!(upstream.seen().len() - before, asked, "{path}");
    }
}

#[test]
fn answers_outlive_the_gateway() {
    let (place, upstream) = (Place::new(), Upstream::start());
    let gateway = place.start(&upstream, &["--single-tenant"], "");
    let first = gateway.post("/pay", "k-1", "x");
    assert!(gateway.stop().status.success());
    let gateway = place.start(&upstream, &["--single-tenant"], "");
    let again = gateway.post("/pay", "k-1", "x");
    assert!(again.is_replay() && again.body == first.body);
    assert_eq!(upstream.effects("k-1"), 1);
}

#[test]
fn a_crowd_of_duplicates_leaves_one_effect_for_each_key() {
    const KEYS: usize = 50;
    const SENDERS: usize = 16;
    let config =
        "[scope]\nsingle_tenant = true\n[[operation]]\nmatch = \"POST /pay\"\nin_flight = \"wait:20s\"\n";
    let (_place, upstream, gateway) = configured(&[], config);
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let gateway = &gateway;
            // Every client sends every key in its own order, over one connection.
            scope.spawn(move || {
                let mut connection = Connection::open(gateway.addr);
                for n in 0..KEYS {
                    let key = format!("k-{}", (n * (2 * sender + 1)) % KEYS);
                    connection.write(request("POST", "/pay", &[("Idempotency-Key", &key)], "x"));
                    assert_eq!(connection.answer().unwrap().status, 201, "{key}");
                }
            });
        }
    });
    for n in 0..KEYS {
        assert_eq!(upstream.effects(&format!("k-{n}")), 1, "k-{n}");
    }
}
