//! Killed at every crash point, restarted, retried: the result is checked against the service's ledger.

use semel::crash;

use crate::client::{Connection, SOON, request};
use crate::gateway::Place;
use crate::upstream::Upstream;

/// What follows a crash at a point: how often the effect had happened by then, and what the retry gets.
fn killed_at(point: &str, effect: &str) -> (Upstream, crate::client::Answer) {
    let (place, upstream) = (Place::new(), Upstream::start());
    let config = format!(
        "[scope]\nsingle_tenant = true\n[[operation]]\nname = \"pay\"\nmatch = \"POST /pay\"\nlease = \"1s\"\n\
         effect = \"{effect}\"\n"
    );
    let mut gateway = place.start_before(&upstream.url(), &[], &config, Some(point));
    let mut client = Connection::open(gateway.addr);
    client.write(request("POST", "/pay", &[("Idempotency-Key", "k-1")], "x"));
    assert_eq!(gateway.child.wait_for_point(SOON).unwrap(), point);
    gateway.child.kill().unwrap();
    assert!(client.is_closed());
    let gateway = place.start(&upstream, &[], &config);
    // Until the dead owner's lease expires, the intent is in progress.
    let answer = loop {
        let answer = gateway.post("/pay", "k-1", "x");
        if answer.code() != "IDEMPOTENCY_REQUEST_IN_PROGRESS" {
            break answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    (upstream, answer)
}

#[test]
fn an_opaque_effect_never_happens_twice() {
    for point in crash::ALL {
        let (upstream, answer) = killed_at(point, "opaque");
        let effects = upstream.effects("k-1");
        match point {
            crash::BEFORE_CLAIM => assert_eq!((answer.status, effects), (201, 1), "{point}"),
            crash::AFTER_CLAIM | crash::BEFORE_EFFECT => {
                assert_eq!((answer.code(), effects), ("IDEMPOTENCY_OUTCOME_UNCERTAIN", 0), "{point}");
            }
            crash::AFTER_EFFECT | crash::BEFORE_FINISH => {
                assert_eq!((answer.code(), effects), ("IDEMPOTENCY_OUTCOME_UNCERTAIN", 1), "{point}");
            }
            _ => assert_eq!((answer.status, answer.is_replay(), effects), (201, true, 1), "{point}"),
        }
    }
}

#[test]
fn a_keyed_effect_is_run_again_with_the_same_key() {
    for point in crash::ALL {
        let (upstream, answer) = killed_at(point, "keyed");
        assert_eq!(answer.status, 201, "{point}");
        let keys: Vec<_> =
            upstream.seen().iter().map(|seen| seen.header("idempotency-key").map(str::to_owned)).collect();
        assert!(keys.iter().all(|key| key.as_deref() == Some("k-1")), "{point}: {keys:?}");
    }
}
