//! Atomic operations: the layer reads, the handler claims and finishes.

#[cfg(feature = "sqlite")]
mod own_file;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::Request;
use semel::http::ClaimHandle;
use semel::store::faulty::{Fault, Faulty, StoreCall};
use semel::store::memory::MemoryStore;
use semel::store::{Claim, Claimed, Finish, Store};
use semel::{Effect, KeyFormat, Outcome, Owner, Retention, StoreDown, Verdict};
use std::time::Duration;

use crate::world::{Clock, Effects, call, charged, layer, payment, payments};

const HOUR_MS: u64 = 3_600_000;

/// Stands in for a transaction: claim, row and outcome in one go.
async fn in_one_commit(
    store: &MemoryStore,
    claim: &ClaimHandle,
    effects: &Effects,
) -> axum::response::Response {
    let (intent, fingerprint) = (claim.intent().clone(), claim.fingerprint());
    let (owner, effect) = (Owner::random(), Effect::Atomic);
    let window = semel::intent::guard_expiry::KeyWindow::ENDLESS;
    let claim = Claim { intent, fingerprint, owner, effect, lease_ms: 1_000, window };
    let claimed = store.claim(claim).await.unwrap();
    let Claimed::Run(ticket) = claimed else { panic!("{claimed:?}") };
    let n = effects.happen();
    let outcome =
        Some(Outcome::new(201, format!("charged {n}")).header("location", format!("/payments/{n}")));
    let finish = Finish { verdict: Verdict::Completed, outcome, retention: Retention::Ms(HOUR_MS) };
    store.finish(ticket, finish).await.unwrap();
    charged(n)
}

fn service(
    store: MemoryStore,
    effects: &Effects,
    layered: semel::http::IdempotencyLayer<impl Store>,
) -> Router {
    let effects = effects.clone();
    let handler = move |request: Request<Body>| async move {
        let claim = request.extensions().get::<ClaimHandle>().cloned().unwrap();
        assert_eq!((claim.attempt(), claim.epoch()), (0, None));
        in_one_commit(&store, &claim, &effects).await
    };
    Router::new().route("/payments", post(handler)).layer(layered)
}

#[tokio::test]
async fn the_layer_replays_and_refuses_what_the_handler_recorded() {
    let (store, effects) = (Clock::new().store(), Effects::default());
    let app = service(store.clone(), &effects, layer(store.clone(), payments().effect(Effect::Atomic)));
    let first = call(&app, payment("k", "{}")).await;
    let again = call(&app, payment("k", "{}")).await;
    assert_eq!((first.status, first.replayed(), again.status, again.replayed()), (201, false, 201, true));
    assert_eq!((&again.body, again.header("location")), (&first.body, "/payments/1"));
    let other = call(&app, payment("k", "[]")).await;
    assert_eq!(other.code(), "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST");
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn a_store_that_cannot_be_read_follows_the_policy() {
    for (policy, code) in [(StoreDown::Closed, 503), (StoreDown::Open, 201)] {
        let (store, effects) = (Clock::new().store(), Effects::default());
        let faulty =
            Faulty::new(
                store.clone(),
                |asked| if asked == StoreCall::Get { Fault::Refused } else { Fault::None },
            );
        let rule = payments().effect(Effect::Atomic).store_down(policy);
        let app = service(store, &effects, layer(faulty, rule));
        assert_eq!(call(&app, payment("k", "{}")).await.status, code);
    }
}

/// Made when the clock of these tests starts.
const MADE_AT_START: &str = "01a3185c-5000-7cc3-98c4-dc0c0c07398f";

#[tokio::test]
async fn a_key_that_is_older_than_outcomes_are_kept_is_refused_and_not_run_again() {
    let (clock, effects) = (Clock::new(), Effects::default());
    let store = clock.store();
    let rule = payments().effect(Effect::Atomic).retention(Retention::Ms(HOUR_MS));
    let rule = rule.key_format(KeyFormat::TimeOrdered { skew_ms: 1_000 });
    let app = service(store.clone(), &effects, layer(store, rule));
    assert_eq!(call(&app, payment(MADE_AT_START, "{}")).await.status, 201);
    assert!(call(&app, payment(MADE_AT_START, "{}")).await.replayed());
    clock.advance_ms(2 * HOUR_MS);
    let late = call(&app, payment(MADE_AT_START, "{}")).await;
    assert_eq!((late.status, late.code().as_str()), (412, "IDEMPOTENCY_KEY_EXPIRED"));
    let plain = call(&app, payment("order-1001", "{}")).await;
    assert_eq!((plain.status, plain.code().as_str()), (400, "IDEMPOTENCY_KEY_INVALID"));
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_takes_too_long_is_dropped() {
    let rule = payments().effect(Effect::Atomic).timeout(Duration::from_secs(5));
    let handler = || async { std::future::pending::<axum::response::Response>().await };
    let app = Router::new().route("/payments", post(handler)).layer(layer(Clock::new().store(), rule));
    let got = tokio::time::timeout(Duration::from_secs(60), call(&app, payment("k", "{}"))).await;
    let got = got.expect("it was not dropped");
    assert_eq!((got.status, got.code().as_str()), (504, "IDEMPOTENCY_ATTEMPT_FAILED"));
    assert_eq!(got.header("x-should-retry"), "true");
}
