//! The core table of what an idempotent edge must do, behind the gateway: duplicates, races, crashes, outages. The
//! rows have the names they have for the layer, in `crates/semel/tests/http/core_table.rs`.
//!
//! The memory store lives and dies with its gateway: it cannot be away, and nobody else can have it. Rows that are
//! about a store of which that is not true are there for SQLite only.

use std::time::Duration;

use testkit::proxy::Proxy;

use crate::client::{Answer, SOON, send};
use crate::gateway::{Gateway, Place};
use crate::upstream::Upstream;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Sqlite,
}

macro_rules! rows {
    (both: $($both:ident)* ; sqlite: $($sqlite:ident)*) => {
        mod on_memory {
            $(#[test] fn $both() { super::$both(super::Kind::Memory) })*
        }
        mod on_sqlite {
            $(#[test] fn $both() { super::$both(super::Kind::Sqlite) })*
            $(#[test] fn $sqlite() { super::$sqlite() })*
        }
    };
}

rows! {
    both:
        repeated_after_completion_the_response_is_replayed
        the_same_key_with_another_payload_is_a_conflict
        a_crash_after_the_claim_blocks_retries_until_its_fate_is_decided
        a_crash_after_the_effect_is_recovered_by_looking_it_up
        a_webhook_delivered_twice_is_processed_once
        an_event_redelivered_over_http_runs_until_it_worked_and_never_again;
    sqlite:
        a_store_outage_during_the_claim_follows_the_policy
        a_claim_whose_answer_was_lost_runs_once
        finishing_with_another_owners_token_is_refused
        a_worker_whose_marker_expired_cannot_overwrite_and_gives_the_answer_that_stands
}

const IN_PROGRESS: &str = "IDEMPOTENCY_REQUEST_IN_PROGRESS";
const UNCERTAIN: &str = "IDEMPOTENCY_OUTCOME_UNCERTAIN";

/// One operation with these settings; its lease is short, because a dead owner's has to run out.
fn operation(path: &str, settings: &str) -> String {
    format!(
        "[scope]\nsingle_tenant = true\n[[operation]]\nname = \"pay\"\nmatch = \"POST {path}\"\nlease = \"300ms\"\n\
         {settings}\n"
    )
}

fn start(place: &Place, kind: Kind, upstream: &str, config: &str) -> Gateway {
    let store = if kind == Kind::Memory { &["--store", "memory:"][..] } else { &[] };
    place.start_before(upstream, store, config, None)
}

fn json(gateway: &Gateway, key: &str, body: &str) -> Answer {
    let headers = [("Idempotency-Key", key), ("Content-Type", "application/json")];
    send(gateway.addr, "POST", "/pay", &headers, body)
}

/// Asks until it is not told "in progress" any more.
fn settled(gateway: &Gateway, path: &str) -> Answer {
    for _ in 0..400 {
        let answer = gateway.post(path, "k", "x");
        if answer.code() != IN_PROGRESS {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("it is in progress for ever");
}

/// A first caller, on a thread of its own.
fn first(gateway: &Gateway, path: &'static str) -> std::thread::JoinHandle<Option<Answer>> {
    let addr = gateway.addr;
    std::thread::spawn(move || {
        let mut connection = crate::client::Connection::open(addr);
        connection.write(crate::client::request("POST", path, &[("Idempotency-Key", "k")], "x"));
        connection.answer()
    })
}

fn repeated_after_completion_the_response_is_replayed(kind: Kind) {
    let (place, upstream) = (Place::new(), Upstream::start());
    let gateway = start(&place, kind, &upstream.url(), &operation("/pay", ""));
    let first = json(&gateway, "k", r#"{"amount":1}"#);
    let again = json(&gateway, "k", r#"{ "amount" : 1.0 }"#);
    assert_eq!((first.status, first.is_replay(), again.is_replay()), (201, false, true));
    assert_eq!((again.status, again.header("location"), &again.body), (201, Some("/pay/1"), &first.body));
    assert_eq!(upstream.effects("k"), 1);
}

fn the_same_key_with_another_payload_is_a_conflict(kind: Kind) {
    let (place, upstream) = (Place::new(), Upstream::start());
    let gateway = start(&place, kind, &upstream.url(), &operation("/pay", ""));
    json(&gateway, "k", r#"{"amount":1}"#);
    let other = json(&gateway, "k", r#"{"amount":2}"#);
    assert_eq!(
        (other.status, other.header("x-should-retry"), upstream.effects("k")),
        (409, Some("false"), 1)
    );
}

// "Concurrent requests with the same key: one processes" is in `once`.

/// Who holds a memory store is the gateway, so there the service dies; with SQLite the gateway does.
fn a_crash_after_the_claim_blocks_retries_until_its_fate_is_decided(kind: Kind) {
    for (effect, status, code) in [("opaque", 409, UNCERTAIN), ("keyed", 201, "")] {
        let (place, upstream) = (Place::new(), Upstream::start());
        let proxy = Proxy::start(upstream.addr).unwrap();
        let (url, config) =
            (format!("http://{}", proxy.addr()), operation("/slow", &format!("effect = \"{effect}\"")));
        let mut gateway = start(&place, kind, &url, &config);
        let caller = first(&gateway, "/slow");
        upstream.wait_for(1);
        assert_eq!(gateway.post("/slow", "k", "x").code(), IN_PROGRESS, "{effect}");
        match kind {
            Kind::Memory => proxy.cut(),
            Kind::Sqlite => {
                gateway.child.kill().unwrap();
                gateway = start(&place, kind, &url, &config);
            }
        }
        caller.join().unwrap();
        // The first attempt stands at the gate, a second one would stand behind it: both may go.
        upstream.open();
        upstream.open();
        let retry = settled(&gateway, "/slow");
        assert_eq!((retry.status, retry.code()), (status, code), "{effect}");
    }
}

fn a_crash_after_the_effect_is_recovered_by_looking_it_up(kind: Kind) {
    let (place, upstream) = (Place::new(), Upstream::start());
    // After `/never` the gateway is killed; at `/cut` the service is gone.
    let path = if kind == Kind::Sqlite { "/never" } else { "/cut" };
    let lookup = "lookup = \"GET /by-key/{key}\"\nlookup_settle = \"300ms\"\nlookup_status = 201";
    let config = operation(path, lookup);
    let mut gateway = start(&place, kind, &upstream.url(), &config);
    let caller = first(&gateway, path);
    upstream.wait_for(1);
    if kind == Kind::Sqlite {
        gateway.child.kill().unwrap();
        gateway = start(&place, kind, &upstream.url(), &config);
    }
    caller.join().unwrap();
    let retry = (0..400).find_map(|_| {
        let answer = settled(&gateway, path);
        // Too early to believe "not found": the retry is told when.
        if answer.code() == UNCERTAIN {
            assert!(answer.header("retry-after").is_some());
            std::thread::sleep(Duration::from_millis(25));
            return None;
        }
        Some(answer)
    });
    let retry = retry.expect("looked up");
    assert_eq!((retry.status, retry.text().as_str(), retry.is_replay()), (201, "{\"found\":true}", true));
    assert_eq!(upstream.effects("k"), 1);
}

/// Somebody else writes to the store's file and does not come to an end.
fn hold_the_store(place: &Place) -> rusqlite::Connection {
    let other = rusqlite::Connection::open(place.file("semel.db")).unwrap();
    other.busy_timeout(SOON).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    other
}

fn a_store_outage_during_the_claim_follows_the_policy() {
    std::thread::scope(|scope| {
        for (policy, status, effects) in [("closed", 503, 0), ("open", 201, 1)] {
            scope.spawn(move || {
                let (place, upstream) = (Place::new(), Upstream::start());
                let config = operation("/pay", &format!("store_down = \"{policy}\""));
                let gateway = start(&place, Kind::Sqlite, &upstream.url(), &config);
                let held = hold_the_store(&place);
                let got = gateway.post("/pay", "k", "x");
                assert_eq!((got.status, upstream.effects("k")), (status, effects), "{policy}");
                let guarded = (effects == 1).then_some("false");
                assert_eq!(got.header("idempotency-guarded"), guarded, "{policy}");
                drop(held);
            });
        }
    });
}

/// Nothing is known of a claim that was sent and not answered; it is asked for again under the same name.
fn a_claim_whose_answer_was_lost_runs_once() {
    let (place, upstream) = (Place::new(), Upstream::start());
    let gateway = start(&place, Kind::Sqlite, &upstream.url(), &operation("/pay", ""));
    let held = hold_the_store(&place);
    let caller = first(&gateway, "/pay");
    gateway.wait_for_metric(r#"idempotency_store_error_total{operation="pay",phase="claim"} 1"#);
    assert_eq!(upstream.effects("k"), 0);
    drop(held);
    let answer = caller.join().unwrap().expect("an answer");
    assert_eq!((answer.status, answer.is_replay(), upstream.effects("k")), (201, false, 1));
}

/// Whoever is not the owner cannot end a live claim.
fn finishing_with_another_owners_token_is_refused() {
    let (place, upstream) = (Place::new(), Upstream::start());
    let gateway = start(&place, Kind::Sqlite, &upstream.url(), &operation("/slow", ""));
    let caller = first(&gateway, "/slow");
    upstream.wait_for(1);
    let args = ["resolve", "--operation", "pay", "--key", "k", "--by", "mallory", "--why", "forged"];
    let forged = place.semel(&[&args[..], &["--applied", "--code", "200", "--body", "forged"]].concat());
    assert_eq!(forged.status.code(), Some(1), "{forged:?}");
    assert_eq!(gateway.post("/slow", "k", "x").code(), IN_PROGRESS);
    upstream.open();
    assert_eq!(caller.join().unwrap().expect("an answer").text(), "slow");
    assert_eq!(gateway.post("/slow", "k", "x").text(), "slow");
}

fn a_worker_whose_marker_expired_cannot_overwrite_and_gives_the_answer_that_stands() {
    let (place, upstream) = (Place::new(), Upstream::start());
    let config = operation("/gated", "effect = \"keyed\"");
    let stalled = start(&place, Kind::Sqlite, &upstream.url(), &config);
    let other = start(&place, Kind::Sqlite, &upstream.url(), &config);
    let slow = first(&stalled, "/gated");
    upstream.wait_for(1);
    stalled.child.pause().unwrap();
    upstream.open();
    upstream.open();
    let taken_over = settled(&other, "/gated");
    assert_eq!((taken_over.status, taken_over.text().as_str()), (201, "2"));
    stalled.child.resume().unwrap();
    let slow = slow.join().unwrap().expect("an answer");
    assert_eq!((slow.text().as_str(), slow.is_replay()), ("2", true), "every caller sees the same answer");
}

fn a_webhook_delivered_twice_is_processed_once(kind: Kind) {
    let (place, upstream) = (Place::new(), Upstream::start());
    let config = format!("key_header = \"Webhook-Id\"\n{}", operation("/pay", ""));
    let gateway = start(&place, kind, &upstream.url(), &config);
    for replayed in [false, true, true] {
        let got = send(gateway.addr, "POST", "/pay", &[("Webhook-Id", "evt_1")], "{}");
        assert_eq!((got.status, got.is_replay()), (201, replayed));
    }
    assert_eq!(upstream.seen().len(), 1);
}

fn an_event_redelivered_over_http_runs_until_it_worked_and_never_again(kind: Kind) {
    let (place, upstream) = (Place::new(), Upstream::start());
    let gateway = start(&place, kind, &upstream.url(), &operation("/second", ""));
    let answers: Vec<_> = (0..4).map(|_| gateway.post("/second", "evt-1", "{}").status).collect();
    // The first failed without effect and is delivered again; from then on nothing runs.
    assert_eq!((answers, upstream.effects("evt-1")), (vec![500, 201, 201, 201], 1));
    assert_eq!(upstream.seen().len(), 2);
}
