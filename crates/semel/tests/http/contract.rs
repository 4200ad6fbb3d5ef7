//! The contract table, row by row, in three dialects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::response::IntoResponse;
use http::StatusCode;
use semel::http::{Profile, Rule};
use semel::store::Store;
use semel::store::faulty::{Fault, Faulty, StoreCall};
use semel::{KeyFormat, StoreDown};
use tokio::sync::Notify;

use crate::world::{
    Clock, Effects, Got, app, builder, call, charged, payment, payments, record, state, status,
};

fn built<S: Store>(store: S, rule: Rule, profile: Profile) -> semel::http::IdempotencyLayer<S> {
    builder(store).rule(rule).profile(profile).build().unwrap()
}

/// Status by profile.
fn by(profile: Profile, classic: u16, ietf: u16, stripe: u16) -> u16 {
    match profile {
        Profile::Ietf => ietf,
        Profile::Stripe => stripe,
        _ => classic,
    }
}

fn assert_problem(got: &Got, profile: Profile, status: u16, code: &str, retryable: bool) {
    assert_eq!((got.status, got.code().as_str()), (status, code), "{profile:?} {got:?}");
    assert_eq!(got.header("content-type"), "application/problem+json");
    assert_eq!(got.header("cache-control"), "no-store");
    assert_eq!(got.header(profile.should_retry().as_str()), retryable.to_string());
    let problem: serde_json::Value = serde_json::from_slice(&got.body).unwrap();
    assert_eq!(problem["status"], status);
    assert_eq!(problem["retryable"], retryable);
    for member in ["type", "title", "detail"] {
        assert!(problem[member].as_str().is_some_and(|text| !text.is_empty()), "{member}");
    }
    assert_eq!(problem["error"]["message"].is_string(), profile == Profile::Stripe);
    assert_eq!(got.header("retry-after").is_empty(), !retryable, "{profile:?} {code}");
    assert!(!got.replayed());
}

#[tokio::test]
async fn key_missing_or_malformed_is_400() {
    for profile in Profile::ALL {
        let (store, effects) = (Clock::new().store(), Effects::default());
        let app = app(built(store, payments().key_bytes_min(4), profile), &effects, charged);
        let missing = call(&app, payment("", "{}")).await;
        assert_problem(&missing, profile, 400, "IDEMPOTENCY_KEY_MISSING", false);
        for bad in ["\"half", "one, two", "abc", "\"\""] {
            let invalid = call(&app, payment(bad, "{}")).await;
            assert_problem(&invalid, profile, 400, "IDEMPOTENCY_KEY_INVALID", false);
        }
        assert_eq!(effects.count(), 0);
    }
}

#[tokio::test]
async fn the_same_key_with_another_request_is_refused_and_reveals_nothing() {
    for profile in Profile::ALL {
        let (store, effects) = (Clock::new().store(), Effects::default());
        let app = app(built(store, payments(), profile), &effects, charged);
        assert_eq!(call(&app, payment("k", r#"{"amount":4711}"#)).await.status, 201);
        let other = call(&app, payment("k", r#"{"amount":2}"#)).await;
        let expected = by(profile, 409, 422, 400);
        assert_problem(&other, profile, expected, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST", false);
        let text = String::from_utf8(other.body.to_vec()).unwrap();
        assert!(!text.contains("4711") && !text.contains("charged") && other.header("location").is_empty());
        assert_eq!(effects.count(), 1);
    }
}

#[tokio::test]
async fn the_same_key_in_flight_is_409_and_a_mismatch_comes_before_it() {
    for profile in Profile::ALL {
        let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (starts, goes) = (Arc::clone(&started), Arc::clone(&go));
        let handler = move || async move {
            starts.notify_one();
            goes.notified().await;
            charged(1)
        };
        let layer = built(Clock::new().store(), payments(), profile);
        let app = axum::Router::new().route("/payments", axum::routing::post(handler)).layer(layer);
        let first = tokio::spawn({
            let app = app.clone();
            async move { call(&app, payment("k", "{}")).await }
        });
        started.notified().await;
        let duplicate = call(&app, payment("k", "{}")).await;
        assert_problem(&duplicate, profile, 409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", true);
        let other = call(&app, payment("k", "[]")).await;
        let expected = by(profile, 409, 422, 400);
        assert_problem(&other, profile, expected, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST", false);
        go.notify_one();
        assert_eq!(first.await.unwrap().status, 201);
    }
}

#[tokio::test]
async fn a_fate_that_is_not_known_is_409_and_not_for_machines() {
    for profile in Profile::ALL {
        let (store, effects) = (Clock::new().store(), Effects::default());
        let app = app(built(store, payments(), profile), &effects, |_| status(502));
        assert_eq!(call(&app, payment("k", "{}")).await.status, 502);
        let retry = call(&app, payment("k", "{}")).await;
        assert_problem(&retry, profile, 409, "IDEMPOTENCY_OUTCOME_UNCERTAIN", false);
        assert_eq!(effects.count(), 1);
    }
}

#[tokio::test]
async fn a_late_retry_is_412_where_the_operation_asks_for_it() {
    for profile in Profile::ALL {
        let (clock, effects) = (Clock::new(), Effects::default());
        let rule = payments()
            .key_format(KeyFormat::TimeOrdered { skew_ms: 1_000 })
            .retention(Duration::from_secs(3_600));
        let app = app(built(clock.store(), rule, profile), &effects, charged);
        // Made at the test clock's beginning: 1_800_000_000_000 ms.
        let key = "01a3185c-5000-7cc3-98c4-dc0c0c07398f";
        assert_eq!(call(&app, payment(key, "{}")).await.status, 201);
        clock.advance_ms(3_600_000);
        let late = call(&app, payment(key, "{}")).await;
        assert_problem(&late, profile, 412, "IDEMPOTENCY_KEY_EXPIRED", false);
        let future = call(&app, payment("02a3185c-5000-7cc3-98c4-dc0c0c07398f", "{}")).await;
        assert_problem(&future, profile, 412, "IDEMPOTENCY_KEY_FROM_FUTURE", false);
        let other = call(&app, payment("order-1", "{}")).await;
        assert_problem(&other, profile, 400, "IDEMPOTENCY_KEY_INVALID", false);
        assert_eq!(effects.count(), 1);
    }
}

#[tokio::test]
async fn done_but_too_large_to_keep_is_the_status_without_a_body() {
    for profile in Profile::ALL {
        let (store, effects) = (Clock::new().store(), Effects::default());
        let large =
            |n| (StatusCode::CREATED, [("location", "/p")], "x".repeat(101 + n as usize)).into_response();
        let app = app(built(store, payments().response_bytes_max(100), profile), &effects, large);
        let first = call(&app, payment("k", "{}")).await;
        assert_eq!((first.status, first.body.len()), (201, 102));
        let again = call(&app, payment("k", "{}")).await;
        assert_eq!((again.status, again.body.len(), again.header("location")), (201, 0, "/p"));
        assert_eq!(again.header("idempotency-body"), "not-kept");
        assert_eq!(again.header("content-type"), "");
        assert_eq!(again.header(profile.replayed().as_str()), "true");
        assert_eq!(effects.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_effect_is_done_and_could_not_be_stored() {
    for profile in Profile::ALL {
        let (store, effects) = (Clock::new().store(), Effects::default());
        let failing = Arc::new(AtomicBool::new(true));
        let script = Arc::clone(&failing);
        let faulty = Faulty::new(store.clone(), move |asked| match asked {
            StoreCall::Finish if script.load(Ordering::SeqCst) => Fault::RequestLost,
            _ => Fault::None,
        });
        let app = app(built(faulty, payments(), profile), &effects, charged);
        let first = call(&app, payment("k", "{}")).await;
        assert_eq!(
            (first.status, &*first.body, first.header("idempotency-stored")),
            (201, &b"charged 1"[..], "false")
        );
        assert_eq!(first.header("idempotency-guarded"), "");
        // Recording goes on; once it worked, retries find it.
        failing.store(false, Ordering::SeqCst);
        crate::world::until(&store, "k", semel::State::Completed).await;
        let again = call(&app, payment("k", "{}")).await;
        assert_eq!((again.body, again.headers.get("idempotency-stored")), (first.body, None));
        assert_eq!(effects.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_503_when_closed_and_says_so_when_open() {
    for profile in Profile::ALL {
        let down = |store| Faulty::new(store, |_| Fault::Refused);
        let effects = Effects::default();
        let closed = app(built(down(Clock::new().store()), payments(), profile), &effects, charged);
        let refused = call(&closed, payment("k", "{}")).await;
        assert_problem(&refused, profile, 503, "IDEMPOTENCY_STORE_UNAVAILABLE", true);
        assert_eq!(effects.count(), 0);

        let open = payments().store_down(StoreDown::Open);
        let open = app(built(down(Clock::new().store()), open, profile), &effects, charged);
        let ran = call(&open, payment("k", "{}")).await;
        assert_eq!(
            (ran.status, ran.header("idempotency-guarded"), ran.header("idempotency-stored")),
            (201, "false", "false")
        );
    }
}

#[tokio::test]
async fn a_replay_is_the_same_and_says_so() {
    for profile in Profile::ALL {
        let (store, effects) = (Clock::new().store(), Effects::default());
        let answer = |n: u32| {
            let headers = [("location", format!("/payments/{n}")), ("x-request-id", n.to_string())];
            (StatusCode::CREATED, headers, vec![0u8, 255, 10, 13]).into_response()
        };
        let app = app(built(store.clone(), payments(), profile), &effects, answer);
        let first = call(&app, payment("k", "{}")).await;
        assert_eq!(first.headers.get(profile.replayed()), None);
        assert_eq!(
            (first.header("x-request-id"), state(&store, "k").await),
            ("1", Some(semel::State::Completed))
        );
        for _ in 0..2 {
            let again = call(&app, payment("k", " { } ")).await;
            assert_eq!((again.status, &again.body), (first.status, &first.body));
            assert_eq!(again.header(profile.replayed().as_str()), "true");
            for name in ["location", "content-type", "content-length"] {
                assert_eq!(again.header(name), first.header(name), "{name}");
            }
            assert_eq!(again.header("x-request-id"), "");
        }
        assert_eq!((effects.count(), record(&store, "k").await.unwrap().attempts), (1, 1));
    }
}

#[tokio::test]
async fn busy_and_draining_are_503_and_worth_a_retry() {
    let mut limits = semel::guard::Limits::default();
    limits.calls_max = 1;
    let (metrics, runtime) = (semel::observe::Metrics::new(), semel::guard::CurrentRuntime);
    let guard = semel::Guard::with(Clock::new().store(), limits, metrics, runtime);
    let layer = semel::http::IdempotencyLayer::builder(guard.clone())
        .scope_header("x-tenant-id".parse().unwrap())
        .rule(payments())
        .build()
        .unwrap();
    let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (starts, goes) = (Arc::clone(&started), Arc::clone(&go));
    let handler = move || async move {
        starts.notify_one();
        goes.notified().await;
        charged(1)
    };
    let app = axum::Router::new().route("/payments", axum::routing::post(handler)).layer(layer);
    let first = tokio::spawn({
        let app = app.clone();
        async move { call(&app, payment("k1", "{}")).await }
    });
    started.notified().await;
    assert_problem(&call(&app, payment("k2", "{}")).await, Profile::Classic, 503, "IDEMPOTENCY_BUSY", true);
    go.notify_one();
    assert_eq!(first.await.unwrap().status, 201);
    assert!(guard.drain(Duration::from_secs(5)).await.is_clean());
    assert_problem(
        &call(&app, payment("k3", "{}")).await,
        Profile::Classic,
        503,
        "IDEMPOTENCY_DRAINING",
        true,
    );
}
