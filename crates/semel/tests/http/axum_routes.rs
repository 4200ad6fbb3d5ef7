//! With axum: operations are called by their route templates, and the claim is an extractor.

use axum::Router;
use axum::body::Body;
use axum::routing::{post, put};
use http::Request;
use semel::http::{ClaimHandle, IdempotencyLayer};
use semel::store::memory::MemoryStore;
use semel::store::{Filter, Store};

use crate::world::{Clock, builder, call};

fn ask(method: &str, path: &str, key: &str) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header("x-tenant-id", "acme");
    request.header("idempotency-key", key).body(Body::empty()).unwrap()
}

async fn operations(store: &MemoryStore) -> Vec<String> {
    let page = store.list(Filter { limit: 10, ..Filter::default() }).await.unwrap();
    let mut names: Vec<_> =
        page.records.iter().map(|record| record.intent.operation().as_str().to_owned()).collect();
    names.sort();
    names
}

fn layer(store: &MemoryStore) -> IdempotencyLayer<MemoryStore> {
    builder(store.clone()).build().unwrap()
}

#[tokio::test]
async fn an_operation_is_called_by_its_template_and_values_are_part_of_the_request() {
    let store = Clock::new().store();
    let answer = |claim: ClaimHandle| async move { claim.intent().operation().as_str().to_owned() };
    let app = Router::new()
        .route("/payments/{id}/refund", post(answer))
        .route("/payments/{id}", put(answer))
        .layer(layer(&store));
    let first = call(&app, ask("POST", "/payments/1/refund", "k")).await;
    assert_eq!(first.body, "POST /payments/{id}/refund");
    assert!(call(&app, ask("POST", "/payments/1/refund", "k")).await.replayed());
    // Another payment under the same key: the same operation, another request.
    assert_eq!(call(&app, ask("POST", "/payments/2/refund", "k")).await.status, 409);
    // Another operation under the same key: another intent.
    assert_eq!(call(&app, ask("PUT", "/payments/1", "k")).await.body, "PUT /payments/{id}");
    assert_eq!(operations(&store).await, ["POST /payments/{id}/refund", "PUT /payments/{id}"]);
}

#[tokio::test]
async fn a_layer_may_be_on_one_route_and_inside_a_nest() {
    let store = Clock::new().store();
    let guarded = |claim: Option<ClaimHandle>| async move { claim.is_some().to_string() };
    let inner =
        Router::new().route("/orders/{id}", post(guarded).layer(layer(&store))).route("/free", post(guarded));
    let app = Router::new().nest("/v1/{tenant}", inner);
    assert_eq!(call(&app, ask("POST", "/v1/a/orders/7", "k")).await.body, "true");
    assert!(call(&app, ask("POST", "/v1/a/orders/7", "k")).await.replayed());
    // The nested router sees `/orders/7` in both cases; the client asked for something else.
    assert_eq!(call(&app, ask("POST", "/v1/b/orders/7", "k")).await.status, 409);
    assert_eq!(call(&app, ask("POST", "/v1/a/free", "k")).await.body, "false");
    assert_eq!(operations(&store).await, ["POST /v1/{tenant}/orders/{id}"]);
}

#[tokio::test]
async fn a_handler_that_needs_a_claim_says_so_where_there_is_none() {
    let app: Router = Router::new().route("/", post(|_: ClaimHandle| async { "ran" }));
    assert_eq!(call(&app, ask("POST", "/", "k")).await.status, 500);
}

#[tokio::test]
async fn a_route_too_long_for_a_name_is_still_an_operation_of_its_own() {
    let store = Clock::new().store();
    let long = |end: &str| format!("/{}{end}", "x".repeat(250));
    let app = Router::new()
        .route(&long("/{a}"), post(|| async { "a" }))
        .route(&long("/b/{c}"), post(|| async { "b" }))
        .layer(layer(&store));
    for (path, body) in [(long("/1"), "a"), (long("/b/1"), "b")] {
        assert_eq!(call(&app, ask("POST", &path, "k")).await.body, body);
        assert!(call(&app, ask("POST", &path, "k")).await.replayed());
    }
    let names = operations(&store).await;
    assert!(names.len() == 2 && names.iter().all(|name| name.starts_with("POST #")), "{names:?}");
}
