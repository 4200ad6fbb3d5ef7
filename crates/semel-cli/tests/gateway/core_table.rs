//! The core table of what an idempotent edge must do, behind the gateway: duplicates, races, crashes, outages. The
//! rows have the names they have for the layer, in `crates/semel/tests/http/core_table.rs`.
//!
//! The memory store lives in its gateway: it cannot be unreachable, and no other process can use it. Rows that need
//! a separate store run on SQLite and PostgreSQL only.

use std::time::Duration;

use testkit::proxy::Proxy;

use crate::client::{Answer, SOON, send};
use crate::gateway::{Gateway, Place};
#[cfg(feature = "postgres")]
use crate::server::Server;
use crate::upstream::Upstream;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Sqlite,
    #[cfg(feature = "postgres")]
    Postgres,
}

macro_rules! rows {
    (all: $($all:ident)* ; durable: $($durable:ident)*) => {
        mod on_memory {
            $(#[test] fn $all() { super::$all(super::Kind::Memory) })*
        }
        mod on_sqlite {
            $(#[test] fn $all() { super::$all(super::Kind::Sqlite) })*
            $(#[test] fn $durable() { super::$durable(super::Kind::Sqlite) })*
        }
        #[cfg(feature = "postgres")]
        mod on_postgres {
            $(#[test] fn $all() { super::$all(super::Kind::Postgres) })*
            $(#[test] fn $durable() { super::$durable(super::Kind::Postgres) })*
        }
    };
}

rows! {
    all:
        repeated_after_completion_the_response_is_replayed
        the_same_key_with_another_payload_is_a_conflict
        a_crash_after_the_claim_blocks_retries_until_its_fate_is_decided
        a_crash_after_the_effect_is_recovered_by_looking_it_up
        a_webhook_delivered_twice_is_processed_once
        an_event_redelivered_over_http_runs_until_it_worked_and_never_again;
    durable:
        a_store_outage_during_the_claim_follows_the_policy
        a_claim_whose_answer_was_lost_runs_once
        finishing_with_another_owners_token_is_refused
        a_worker_whose_marker_expired_cannot_overwrite_and_gives_the_answer_that_stands
}

/// A directory with a store, and the store's server.
struct Shelf {
    place: Place,
    #[cfg(feature = "postgres")]
    server: Option<Server>,
}

impl Shelf {
    /// `None` if the run has no such server.
    fn new(kind: Kind) -> Option<Self> {
        #[cfg(feature = "postgres")]
        if kind == Kind::Postgres {
            let server = Server::new()?;
            return Some(Self { place: Place::with_store(server.url()), server: Some(server) });
        }
        let _ = kind;
        Some(Self {
            place: Place::new(),
            #[cfg(feature = "postgres")]
            server: None,
        })
    }

    /// Makes the store unreachable until the returned function is called: another writer holds the lock on its file,
    /// or the network to its server is down.
    fn away(&self) -> Box<dyn FnOnce() + '_> {
        #[cfg(feature = "postgres")]
        if let Some(server) = &self.server {
            server.leave();
            return Box::new(|| server.come_back());
        }
        let other = rusqlite::Connection::open(self.place.file("semel.db")).unwrap();
        other.busy_timeout(SOON).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        Box::new(move || drop(other))
    }
}

const IN_PROGRESS: &str = "IDEMPOTENCY_REQUEST_IN_PROGRESS";
const UNCERTAIN: &str = "IDEMPOTENCY_OUTCOME_UNCERTAIN";

/// One operation with these settings; its lease is short, because a dead owner's has to expire.
fn operation(path: &str, settings: &str) -> String {
    format!(
        "[scope]\nsingle_tenant = true\n[[operation]]\nname = \"pay\"\nmatch = \"POST {path}\"\nlease = \"5s\"\n\
         {settings}\n"
    )
}

fn start(shelf: &Shelf, kind: Kind, upstream: &str, config: &str) -> Gateway {
    let store = if kind == Kind::Memory { &["--store", "memory:"][..] } else { &[] };
    shelf.place.start_before(upstream, store, config, None)
}

fn json(gateway: &Gateway, key: &str, body: &str) -> Answer {
    let headers = [("Idempotency-Key", key), ("Content-Type", "application/json")];
    send(gateway.addr, "POST", "/pay", &headers, body)
}

/// Retries until the answer is not "in progress" any more.
fn settled(gateway: &Gateway, path: &str) -> Answer {
    known(|| gateway.post(path, "k", "x"))
}

/// The same for any request. The store may also take longer to record an outcome than its caller waits.
fn known(ask: impl Fn() -> Answer) -> Answer {
    for _ in 0..1_600 {
        let answer = ask();
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
    let Some(shelf) = Shelf::new(kind) else { return };
    let upstream = Upstream::start();
    let gateway = start(&shelf, kind, &upstream.url(), &operation("/pay", ""));
    let first = json(&gateway, "k", r#"{"amount":1}"#);
    let again = known(|| json(&gateway, "k", r#"{ "amount" : 1.0 }"#));
    assert_eq!((first.status, first.is_replay(), again.is_replay()), (201, false, true));
    assert_eq!((again.status, again.header("location"), &again.body), (201, Some("/pay/1"), &first.body));
    assert_eq!(upstream.effects("k"), 1);
}

fn the_same_key_with_another_payload_is_a_conflict(kind: Kind) {
    let Some(shelf) = Shelf::new(kind) else { return };
    let upstream = Upstream::start();
    let gateway = start(&shelf, kind, &upstream.url(), &operation("/pay", ""));
    json(&gateway, "k", r#"{"amount":1}"#);
    let other = known(|| json(&gateway, "k", r#"{"amount":2}"#));
    assert_eq!(
        (other.status, other.header("x-should-retry"), upstream.effects("k")),
        (409, Some("false"), 1)
    );
}

// "Concurrent requests with the same key: one processes" is in `once`.

/// A memory store dies with its gateway, so there the service is killed; elsewhere the gateway is.
fn a_crash_after_the_claim_blocks_retries_until_its_fate_is_decided(kind: Kind) {
    for (effect, status, code) in [("opaque", 409, UNCERTAIN), ("keyed", 201, "")] {
        let Some(shelf) = Shelf::new(kind) else { return };
        let upstream = Upstream::start();
        let proxy = Proxy::start(upstream.addr).unwrap();
        let (url, config) =
            (format!("http://{}", proxy.addr()), operation("/slow", &format!("effect = \"{effect}\"")));
        let mut gateway = start(&shelf, kind, &url, &config);
        let caller = first(&gateway, "/slow");
        upstream.wait_for(1);
        assert_eq!(gateway.post("/slow", "k", "x").code(), IN_PROGRESS, "{effect}");
        match kind {
            Kind::Memory => proxy.cut(),
            _ => {
                gateway.child.kill().unwrap();
                gateway = start(&shelf, kind, &url, &config);
            }
        }
        caller.join().unwrap();
        // The first attempt waits in the service, and a second one would wait behind it: both are released.
        upstream.open();
        upstream.open();
        let retry = settled(&gateway, "/slow");
        assert_eq!((retry.status, retry.code()), (status, code), "{effect}");
    }
}

fn a_crash_after_the_effect_is_recovered_by_looking_it_up(kind: Kind) {
    let Some(shelf) = Shelf::new(kind) else { return };
    let upstream = Upstream::start();
    // After `/never` the gateway is killed; at `/cut` the service is gone.
    let path = if kind == Kind::Memory { "/cut" } else { "/never" };
    let lookup =
        "lookup = \"GET /by-key/{key}\"\nlookup_absent = 404\nlookup_settle = \"300ms\"\nlookup_status = 201";
    let config = operation(path, lookup);
    let mut gateway = start(&shelf, kind, &upstream.url(), &config);
    let caller = first(&gateway, path);
    upstream.wait_for(1);
    if kind != Kind::Memory {
        gateway.child.kill().unwrap();
        gateway = start(&shelf, kind, &upstream.url(), &config);
    }
    caller.join().unwrap();
    let retry = (0..1_600).find_map(|_| {
        let answer = settled(&gateway, path);
        // Too early for "not found" to count: the answer says when to retry.
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

fn a_store_outage_during_the_claim_follows_the_policy(kind: Kind) {
    std::thread::scope(|scope| {
        for (policy, status, effects) in [("closed", 503, 0), ("open", 201, 1)] {
            scope.spawn(move || {
                let Some(shelf) = Shelf::new(kind) else { return };
                let upstream = Upstream::start();
                let config = operation("/pay", &format!("store_down = \"{policy}\""));
                let gateway = start(&shelf, kind, &upstream.url(), &config);
                let back = shelf.away();
                let got = gateway.post("/pay", "k", "x");
                assert_eq!((got.status, upstream.effects("k")), (status, effects), "{policy}");
                let guarded = (effects == 1).then_some("false");
                assert_eq!(got.header("idempotency-guarded"), guarded, "{policy}");
                back();
            });
        }
    });
}

/// A caller whose claim was sent but not answered, and the function that restores answers.
fn lost_claim<'s>(
    shelf: &'s Shelf,
    gateway: &Gateway,
) -> (Box<dyn FnOnce() + 's>, std::thread::JoinHandle<Option<Answer>>) {
    #[cfg(feature = "postgres")]
    if let Some(server) = &shelf.server {
        server.lose_answers();
        let caller = first(gateway, "/pay");
        server.wait_for_a_lost_answer();
        return (Box::new(|| server.come_back()), caller);
    }
    let back = shelf.away();
    let caller = first(gateway, "/pay");
    gateway.wait_for_any(r#"idempotency_store_error_total{operation="pay",phase="claim"}"#);
    (back, caller)
}

/// The result of a claim that was sent but not answered is unknown; it is sent again under the same name.
fn a_claim_whose_answer_was_lost_runs_once(kind: Kind) {
    let Some(shelf) = Shelf::new(kind) else { return };
    let upstream = Upstream::start();
    let gateway = start(&shelf, kind, &upstream.url(), &operation("/pay", ""));
    let (back, caller) = lost_claim(&shelf, &gateway);
    assert_eq!(upstream.effects("k"), 0);
    back();
    let answer = caller.join().unwrap().expect("an answer");
    assert_eq!((answer.status, answer.is_replay(), upstream.effects("k")), (201, false, 1));
}

/// Only the owner can end a live claim.
fn finishing_with_another_owners_token_is_refused(kind: Kind) {
    let Some(shelf) = Shelf::new(kind) else { return };
    let upstream = Upstream::start();
    // A live claim: its lease is long enough to be renewed in time even on a slow machine.
    let config = operation("/slow", "").replace("lease = \"5s\"", "lease = \"60s\"");
    let gateway = start(&shelf, kind, &upstream.url(), &config);
    let caller = first(&gateway, "/slow");
    upstream.wait_for(1);
    let args = ["resolve", "--operation", "pay", "--key", "k", "--by", "mallory", "--why", "forged"];
    let forged =
        shelf.place.semel(&[&args[..], &["--applied", "--code", "200", "--body", "forged"]].concat());
    assert_eq!(forged.status.code(), Some(1), "{forged:?}");
    assert_eq!(gateway.post("/slow", "k", "x").code(), IN_PROGRESS);
    upstream.open();
    assert_eq!(caller.join().unwrap().expect("an answer").text(), "slow");
    assert_eq!(settled(&gateway, "/slow").text(), "slow");
}

fn a_worker_whose_marker_expired_cannot_overwrite_and_gives_the_answer_that_stands(kind: Kind) {
    let Some(shelf) = Shelf::new(kind) else { return };
    let upstream = Upstream::start();
    let config = operation("/gated", "effect = \"keyed\"");
    let stalled = start(&shelf, kind, &upstream.url(), &config);
    let other = start(&shelf, kind, &upstream.url(), &config);
    let slow = first(&stalled, "/gated");
    upstream.wait_for(1);
    stalled.child.pause().unwrap();
    upstream.open();
    upstream.open();
    let taken_over = settled(&other, "/gated");
    assert_eq!((taken_over.status, taken_over.text().as_str()), (201, "2"));
    stalled.child.resume().unwrap();
    let slow = slow.join().unwrap().expect("an answer");
    // If the store takes longer than its caller waits, the answer says that it is not stored.
    if slow.header("idempotency-stored") != Some("false") {
        let shown = format!("every caller sees the same answer: {slow:?}");
        assert_eq!((slow.text().as_str(), slow.is_replay()), ("2", true), "{shown}");
    }
    let stands = settled(&stalled, "/gated");
    assert_eq!((stands.text().as_str(), stands.is_replay()), ("2", true), "the other's answer stands");
}

fn a_webhook_delivered_twice_is_processed_once(kind: Kind) {
    let Some(shelf) = Shelf::new(kind) else { return };
    let upstream = Upstream::start();
    let config = format!("key_header = \"Webhook-Id\"\n{}", operation("/pay", ""));
    let gateway = start(&shelf, kind, &upstream.url(), &config);
    for replayed in [false, true, true] {
        let got = known(|| send(gateway.addr, "POST", "/pay", &[("Webhook-Id", "evt_1")], "{}"));
        assert_eq!((got.status, got.is_replay()), (201, replayed));
    }
    assert_eq!(upstream.seen().len(), 1);
}

fn an_event_redelivered_over_http_runs_until_it_worked_and_never_again(kind: Kind) {
    let Some(shelf) = Shelf::new(kind) else { return };
    let upstream = Upstream::start();
    let gateway = start(&shelf, kind, &upstream.url(), &operation("/second", ""));
    let answers: Vec<_> = (0..4).map(|_| known(|| gateway.post("/second", "evt-1", "{}")).status).collect();
    // The first failed without effect and is delivered again; from then on nothing runs.
    assert_eq!((answers, upstream.effects("evt-1")), (vec![500, 201, 201, 201], 1));
    assert_eq!(upstream.seen().len(), 2);
}
