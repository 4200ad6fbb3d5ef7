//! Atomic operations: the layer reads, the handler claims and finishes.

#[cfg(feature = "sqlite")]
mod own_file;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::Request;
use semel::http::ClaimHandle;
use semel::store::faulty::{Call, Fault, Faulty};
use semel::store::memory::MemoryStore;
use semel::store::{Claim, Claimed, Finish, Store};
use semel::{Effect, Outcome, Owner, Retention, StoreDown, Verdict};

use crate::world::{Clock, Effects, call, charged, layer, payment, payments};

/// Stands in for a transaction: claim, row and outcome in one go.
async fn in_one_commit(
    store: &MemoryStore,
    claim: &ClaimHandle,
    effects: &Effects,
) -> axum::response::Response {
    let (intent, fingerprint) = (claim.intent().clone(), claim.fingerprint());
    let (owner, effect) = (Owner::random(), Effect::Atomic);
    let claimed = store.claim(Claim { intent, fingerprint, owner, effect, lease_ms: 1_000 }).await.unwrap();
    let Claimed::Run(ticket) = claimed else { panic!("{claimed:?}") };
    let n = effects.happen();
    let outcome =
        Some(Outcome::new(201, format!("charged {n}")).header("location", format!("/payments/{n}")));
    let finish = Finish { verdict: Verdict::Completed, outcome, retention: Retention::DAY };
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
            Faulty::new(store.clone(), |asked| if asked == Call::Get { Fault::Refused } else { Fault::None });
        let rule = payments().effect(Effect::Atomic).store_down(policy);
        let app = service(store, &effects, layer(faulty, rule));
        assert_eq!(call(&app, payment("k", "{}")).await.status, code);
    }
}
