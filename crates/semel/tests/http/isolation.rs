//! No tenant gets another's answer, and none can pretend to be another.

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::post;
use http::Request;
use http::StatusCode;
use semel::Scope;
use semel::intent::fingerprint::Recipe;

use crate::world::{Clock, Effects, app, builder, call, charged, layer, payment, payments, request};

#[tokio::test]
async fn two_tenants_may_use_the_same_key() {
    let effects = Effects::default();
    let app = app(layer(Clock::new().store(), payments()), &effects, charged);
    assert_eq!(call(&app, request("acme", "k", "{}")).await.body, "charged 1");
    let other = call(&app, request("globex", "k", "{}")).await;
    assert_eq!((&*other.body, other.replayed()), (&b"charged 2"[..], false));
    assert_eq!(call(&app, request("acme", "k", "{}")).await.body, "charged 1");
}

#[tokio::test]
async fn a_request_that_does_not_say_whose_it_is_is_refused() {
    let effects = Effects::default();
    let app = app(layer(Clock::new().store(), payments()), &effects, charged);
    let mut twice = payment("k", "{}");
    twice.headers_mut().append("x-tenant-id", "globex".parse().unwrap());
    let mut none = payment("k", "{}");
    none.headers_mut().remove("x-tenant-id");
    let mut empty = payment("k", "{}");
    empty.headers_mut().insert("x-tenant-id", "".parse().unwrap());
    for bad in [twice, none, empty] {
        let got = call(&app, bad).await;
        assert_eq!((got.status, got.code().as_str()), (400, "IDEMPOTENCY_SCOPE_MISSING"));
    }
    assert_eq!(effects.count(), 0);
}

#[tokio::test]
async fn a_refreshed_token_is_the_same_caller_when_the_scope_is_the_principal() {
    #[derive(Clone)]
    struct User(&'static str);
    let effects = Effects::default();
    let layer = semel::http::IdempotencyLayer::builder(semel::Guard::new(Clock::new().store()))
        .scope(|parts| match parts.extensions.get::<User>() {
            Some(user) => {
                Scope::tenant("acme").and_then(|tenant| tenant.actor(user.0)).map_err(|e| e.to_string())
            }
            None => Err("no user is logged in at db-7.internal".to_owned()),
        })
        .rule(payments())
        .build()
        .unwrap();
    let app = app(layer, &effects, charged);
    for (token, replayed) in [("Bearer old", false), ("Bearer new", true)] {
        let mut sent = payment("k", "{}");
        sent.headers_mut().insert("authorization", token.parse().unwrap());
        sent.extensions_mut().insert(User("ada"));
        assert_eq!(call(&app, sent).await.replayed(), replayed);
    }
    let mut other = payment("k", "{}");
    other.extensions_mut().insert(User("bob"));
    assert_eq!(call(&app, other).await.body, "charged 2");
    let no_tenant = call(&app, payment("k", "{}")).await;
    assert_eq!(no_tenant.code(), "IDEMPOTENCY_SCOPE_MISSING");
    assert!(!String::from_utf8_lossy(&no_tenant.body).contains("db-7"));
}

#[tokio::test]
async fn a_replay_is_for_those_who_are_allowed_to_ask() {
    use axum::middleware::{Next, from_fn};
    let authorise = |request: Request<axum::body::Body>, next: Next| async move {
        match request.headers().get("authorization") {
            Some(token) if token == "Bearer good" => next.run(request).await,
            _ => StatusCode::UNAUTHORIZED.into_response(),
        }
    };
    let effects = Effects::default();
    let app = app(layer(Clock::new().store(), payments()), &effects, charged).layer(from_fn(authorise));
    for (token, status) in [("Bearer good", 201), ("Bearer revoked", 401), ("Bearer good", 201)] {
        let mut sent = payment("k", "{}");
        sent.headers_mut().insert("authorization", token.parse().unwrap());
        assert_eq!(call(&app, sent).await.status, status, "{token}");
    }
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn cookies_and_credentials_are_never_replayed() {
    let effects = Effects::default();
    let answer = |_| {
        let headers = [
            ("set-cookie", "session=secret"),
            ("authentication-info", "nextnonce=1"),
            ("x-request-id", "r-1"),
            ("x-receipt", "r-7"),
            ("etag", "\"1\""),
        ];
        (StatusCode::OK, headers, "ok").into_response()
    };
    let rule = payments().replay_header("x-receipt".parse().unwrap());
    let app = app(layer(Clock::new().store(), rule), &effects, answer);
    let first = call(&app, payment("k", "{}")).await;
    assert_eq!((first.header("set-cookie"), first.header("x-request-id")), ("session=secret", "r-1"));
    let again = call(&app, payment("k", "{}")).await;
    assert!(again.replayed());
    for gone in ["set-cookie", "authentication-info", "x-request-id"] {
        assert_eq!(again.header(gone), "", "{gone}");
    }
    assert_eq!((again.header("etag"), again.header("x-receipt")), ("\"1\"", "r-7"));
}

#[tokio::test]
async fn headers_that_only_the_layer_says_cannot_be_spoofed() {
    const OURS: [&str; 6] = [
        "idempotency-replayed",
        "idempotent-replayed",
        "idempotency-stored",
        "idempotency-guarded",
        "idempotency-body",
        "idempotency-effect",
    ];
    // A service that gives back every header it got.
    let echo = |request: Request<axum::body::Body>| async move { (request.headers().clone(), "ok") };
    let app = Router::new().route("/payments", post(echo)).layer(layer(Clock::new().store(), payments()));
    for (key, replayed) in [("k", false), ("k", true), ("l", false)] {
        let mut sent = payment(key, "");
        for name in OURS {
            sent.headers_mut().insert(name, "true".parse().unwrap());
        }
        let got = call(&app, sent).await;
        assert_eq!(got.replayed(), replayed);
        for name in &OURS[1..] {
            assert_eq!(got.header(name), "", "{name}");
        }
    }
}

#[tokio::test]
async fn chosen_headers_are_part_of_the_request_and_others_are_not() {
    let effects = Effects::default();
    let recipe = Recipe::builder().header("x-channel").build().unwrap();
    let app = app(layer(Clock::new().store(), payments().recipe(recipe)), &effects, charged);
    let with = |channel: &str, agent: &str| {
        let mut sent = payment("k", "{}");
        sent.headers_mut().insert("x-channel", channel.parse().unwrap());
        sent.headers_mut().insert("user-agent", agent.parse().unwrap());
        sent.headers_mut().insert("range", "bytes=0-3".parse().unwrap());
        sent.headers_mut().insert("if-none-match", format!("\"{agent}\"").parse().unwrap());
        sent
    };
    assert_eq!(call(&app, with("web", "a")).await.body, "charged 1");
    let again = call(&app, with("web", "b")).await;
    // A replay is the first answer, whatever the retry says about ranges and versions.
    assert_eq!((again.status, &*again.body, again.replayed()), (201, &b"charged 1"[..], true));
    assert_eq!(call(&app, with("app", "a")).await.status, 409);
}

#[tokio::test]
async fn a_single_tenant_shares_one_space_of_keys() {
    let effects = Effects::default();
    let single = builder(Clock::new().store()).single_tenant().rule(payments()).build().unwrap();
    let app = app(single, &effects, charged);
    assert_eq!(call(&app, request("acme", "k", "{}")).await.body, "charged 1");
    assert!(call(&app, request("globex", "k", "{}")).await.replayed());
}
