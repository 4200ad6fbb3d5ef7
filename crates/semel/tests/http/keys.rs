//! Which requests are guarded, and under which key.

use axum::Router;
use axum::body::Body;
use http::{Method, Request};
use proptest::prelude::*;
use semel::http::{IdempotencyLayer, KeyRule, Rule};
use semel::store::Store;
use semel::store::memory::MemoryStore;

use crate::world::{Clock, Effects, app, builder, call, charged, layer, payment, payments, record, request};

#[tokio::test]
async fn bare_and_quoted_keys_are_one_intent() {
    let (store, effects) = (Clock::new().store(), Effects::default());
    let app = app(layer(store.clone(), payments()), &effects, charged);
    for (key, replayed) in
        [("order-1", false), ("\"order-1\"", true), ("order-1", true), (r#""order\\1""#, false)]
    {
        assert_eq!(call(&app, payment(key, "{}")).await.replayed(), replayed, "{key}");
    }
    assert_eq!(effects.count(), 2);
    assert!(record(&store, "order-1").await.is_some() && record(&store, r"order\1").await.is_some());
}

#[tokio::test]
async fn a_key_sent_twice_is_refused_in_whatever_form_it_arrives() {
    let effects = Effects::default();
    let app = app(layer(Clock::new().store(), payments()), &effects, charged);
    for (one, two) in [("a", "a"), ("a", "b"), ("\"a\"", "\"b\"")] {
        let mut twice = payment(one, "{}");
        twice.headers_mut().append("idempotency-key", two.parse().unwrap());
        assert_eq!(call(&app, twice).await.code(), "IDEMPOTENCY_KEY_INVALID");
        assert_eq!(
            call(&app, payment(&format!("{one}, {two}"), "{}")).await.code(),
            "IDEMPOTENCY_KEY_INVALID"
        );
    }
    assert_eq!(effects.count(), 0);
}

/// A service that takes any method on any path.
fn anything<S: Store>(layer: IdempotencyLayer<S>, effects: &Effects) -> Router {
    let effects = effects.clone();
    Router::new()
        .fallback(axum::routing::any(move || async move { effects.happen().to_string() }))
        .layer(layer)
}

fn asks(method: &Method, path: &str, key: Option<&str>) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header("x-tenant-id", "acme");
    let request = if let Some(key) = key { request.header("idempotency-key", key) } else { request };
    request.body(Body::empty()).unwrap()
}

#[tokio::test]
async fn what_changes_nothing_passes_through_untouched_even_with_a_key() {
    let effects = Effects::default();
    let app = anything(builder(Clock::new().store()).build().unwrap(), &effects);
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE] {
        for key in ["k", "not, a key"] {
            let before = effects.count();
            for _ in 0..2 {
                let got = call(&app, asks(&method, "/", Some(key))).await;
                assert_eq!((got.status, got.replayed()), (200, false));
            }
            assert_eq!(effects.count(), before + 2, "{method}");
        }
    }
}

#[tokio::test]
async fn without_rules_what_changes_things_is_guarded_when_a_key_is_sent() {
    for method in [Method::POST, Method::PATCH, Method::PUT, Method::DELETE] {
        let effects = Effects::default();
        let app = anything(builder(Clock::new().store()).build().unwrap(), &effects);
        for n in 1..3 {
            assert_eq!(call(&app, asks(&method, "/a", None)).await.body, n.to_string());
        }
        for _ in 0..2 {
            assert_eq!(call(&app, asks(&method, "/a", Some("k"))).await.body, "3");
        }
        // The path is part of what was asked for: the same key elsewhere is another request.
        let elsewhere = call(&app, asks(&method, "/b", Some("k"))).await;
        assert_eq!(elsewhere.code(), "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST");
        let query = call(&app, asks(&method, "/a?x=1", Some("k"))).await;
        assert_eq!(query.code(), "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST");
    }
}

#[tokio::test]
async fn a_key_can_be_required_of_all_posts() {
    let effects = Effects::default();
    let required = Rule::default_rule().key(KeyRule::Required);
    let app = anything(builder(Clock::new().store()).default_rule(required).build().unwrap(), &effects);
    for (method, refused) in
        [(Method::POST, true), (Method::PATCH, true), (Method::PUT, false), (Method::DELETE, false)]
    {
        let got = call(&app, asks(&method, "/", None)).await;
        assert_eq!(got.code() == "IDEMPOTENCY_KEY_MISSING", refused, "{method}");
    }
}

#[tokio::test]
async fn rules_match_by_template_and_values_are_part_of_the_request() {
    let effects = Effects::default();
    let layer = builder(Clock::new().store())
        .rule(Rule::on("POST /payments/{id}/refund").name("payment.refund"))
        .rule(Rule::on("POST /ping").key(KeyRule::Ignored))
        .build()
        .unwrap();
    let app = anything(layer, &effects);
    let refund = |id: &str, key| asks(&Method::POST, &format!("/payments/{id}/refund"), key);
    assert_eq!(call(&app, refund("1", None)).await.code(), "IDEMPOTENCY_KEY_MISSING");
    assert_eq!(call(&app, refund("1", Some("k"))).await.body, "1");
    assert!(call(&app, refund("1", Some("k"))).await.replayed());
    assert_eq!(call(&app, refund("2", Some("k"))).await.status, 409);
    for n in 2..4 {
        assert_eq!(call(&app, asks(&Method::POST, "/ping", Some("k"))).await.body, n.to_string());
    }
}

#[tokio::test]
async fn the_header_can_have_another_name() {
    let effects = Effects::default();
    let name = "x-request-token".parse().unwrap();
    let app =
        app(builder(Clock::new().store()).header(name).rule(payments()).build().unwrap(), &effects, charged);
    let refused = call(&app, payment("k", "{}")).await;
    assert_eq!(refused.code(), "IDEMPOTENCY_KEY_MISSING");
    assert!(String::from_utf8_lossy(&refused.body).contains("x-request-token"));
    for replayed in [false, true] {
        let mut sent = payment("", "{}");
        sent.headers_mut().insert("x-request-token", "k".parse().unwrap());
        assert_eq!(call(&app, sent).await.replayed(), replayed);
    }
}

#[test]
fn whatever_is_sent_as_a_key_or_body_is_answered_and_runs_at_most_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let key =
        prop_oneof![prop::collection::vec(any::<u8>(), 0..40), "[ -~]{0,300}".prop_map(String::into_bytes)];
    let body = prop::collection::vec(any::<u8>(), 0..200);
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(key in key, body in body)| {
        let Ok(value) = http::HeaderValue::from_bytes(&key) else { return Ok(()) };
        runtime.block_on(async {
            let effects = Effects::default();
            let app = app(layer(MemoryStore::new(), payments()), &effects, charged);
            let sent = || {
                let mut sent = request("acme", "", body.clone());
                sent.headers_mut().insert("idempotency-key", value.clone());
                sent
            };
            let (first, again) = (call(&app, sent()).await, call(&app, sent()).await);
            match first.status {
                201 => assert!(again.replayed() && again.body == first.body && effects.count() == 1),
                400 => assert!(again.status == 400 && effects.count() == 0),
                other => panic!("{other}"),
            }
        });
    });
}
