//! Handlers: one attribute, one layer, real HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use semel::Guard;
use semel::http::{ClaimHandle, IdempotencyLayer, Rule};
use semel::store::memory::MemoryStore;
use tokio::sync::Semaphore;

use crate::world::Effects;

#[derive(Clone)]
struct App {
    effects: Effects,
    /// A payment takes one before it answers.
    permits: Arc<Semaphore>,
}

#[derive(serde::Deserialize)]
struct Payment {
    cents: u32,
}

/// Pays.
#[semel::idempotent(operation = "payment.create", retention = "7d", in_flight = "wait:60s")]
async fn create_payment(
    State(app): State<App>,
    claim: ClaimHandle,
    Json(payment): Json<Payment>,
) -> impl IntoResponse {
    let run = app.effects.happen();
    app.permits.acquire().await.unwrap().forget();
    assert_eq!(claim.intent().operation().as_str(), "payment.create");
    (
        StatusCode::CREATED,
        [("location", format!("/payments/{run}"))],
        format!("{} in run {run}", payment.cents),
    )
}

#[semel::idempotent(operation = "payment.refund", effect = "keyed")]
async fn refund(Path(id): Path<u32>, State(app): State<App>) -> Result<String, StatusCode> {
    if id == 0 {
        Err(StatusCode::NOT_FOUND)
    } else {
        Ok(format!("{id} refunded in run {}", app.effects.happen()))
    }
}

fn layer(rules: impl IntoIterator<Item = Rule>) -> IdempotencyLayer<MemoryStore> {
    let builder = IdempotencyLayer::builder(Guard::new(MemoryStore::new()));
    let builder = builder.scope_header("x-tenant-id".parse().unwrap());
    rules.into_iter().fold(builder, |builder, rule| builder.rule(rule)).build().unwrap()
}

fn app(permits: usize) -> (App, Router) {
    let app = App { effects: Effects::default(), permits: Arc::new(Semaphore::new(permits)) };
    let rules = [create_payment::rule("POST /payments"), refund::rule("POST /payments/{id}/refund")];
    let router = Router::new()
        .route("/payments", post(create_payment))
        .route("/payments/{id}/refund", post(refund))
        .layer(layer(rules))
        .with_state(app.clone());
    (app, router)
}

async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

struct Got {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Got {
    fn replayed(&self) -> bool {
        self.headers.get("idempotency-replayed").is_some_and(|value| value == "true")
    }
}

async fn send(to: SocketAddr, path: &str, key: Option<&str>, body: &str) -> Got {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut request = Request::post(format!("http://{to}{path}"))
        .header("x-tenant-id", "acme")
        .header("content-type", "application/json");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap();
    let (parts, body) = client.request(request).await.unwrap().into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Got { status: parts.status.as_u16(), headers: parts.headers, body }
}

#[tokio::test]
async fn a_retry_is_replayed_and_another_body_is_a_conflict() {
    let (app, router) = app(10);
    let to = serve(router).await;
    for replayed in [false, true, true] {
        let got = send(to, "/payments", Some("k"), r#"{"cents":4200}"#).await;
        assert_eq!((got.status, got.body.as_str(), got.replayed()), (201, "4200 in run 1", replayed));
        assert_eq!(got.headers["location"], "/payments/1");
    }
    let other = send(to, "/payments", Some("k"), r#"{"cents":9900}"#).await;
    assert_eq!(other.status, 409);
    assert_eq!(app.effects.count(), 1);
}

#[tokio::test]
async fn a_duplicate_waits_for_the_first() {
    let (app, router) = app(0);
    let to = serve(router).await;
    let pay = || tokio::spawn(async move { send(to, "/payments", Some("k"), r#"{"cents":1}"#).await });
    let both = [pay(), pay()];
    while app.effects.count() == 0 {
        tokio::task::yield_now().await;
    }
    app.permits.add_permits(1);
    for got in both {
        let got = got.await.unwrap();
        assert_eq!((got.status, got.body.as_str()), (201, "1 in run 1"));
    }
    assert_eq!(app.effects.count(), 1);
}

#[tokio::test]
async fn each_handler_is_an_operation_of_its_own_and_needs_a_key() {
    let (app, router) = app(10);
    let to = serve(router).await;
    assert_eq!(send(to, "/payments/7/refund", Some("k"), "").await.body, "7 refunded in run 1");
    assert!(send(to, "/payments/7/refund", Some("k"), "").await.replayed());
    assert_eq!(send(to, "/payments/8/refund", Some("k"), "").await.status, 409);
    assert_eq!(send(to, "/payments", Some("k"), r#"{"cents":1}"#).await.status, 201);
    assert_eq!(send(to, "/payments/7/refund", None, "").await.status, 400);
    assert_eq!(app.effects.count(), 2);
}

#[tokio::test]
async fn a_declared_handler_does_not_run_without_its_rule() {
    for layers in [vec![], vec![layer([])], vec![layer([create_payment::rule("POST /elsewhere")])]] {
        let (app, _) = app(10);
        let mut router = Router::new().route("/payments", post(create_payment)).with_state(app.clone());
        for layer in layers {
            router = router.layer(layer);
        }
        let to = serve(router).await;
        for _ in 0..2 {
            let got = send(to, "/payments", Some("k"), r#"{"cents":1}"#).await;
            assert_eq!((got.status, got.replayed()), (500, false), "{}", got.body);
        }
        assert_eq!(app.effects.count(), 0);
    }
}

#[semel::idempotent(operation = "atomic", effect = "atomic")]
async fn atomic(claim: ClaimHandle) -> String {
    format!("{} to be claimed by the handler", claim.attempt())
}

#[tokio::test]
async fn a_handler_may_be_atomic() {
    let to = serve(Router::new().route("/", post(atomic)).layer(layer([atomic::rule("POST /")]))).await;
    assert_eq!(send(to, "/", Some("k"), "").await.body, "0 to be claimed by the handler");
}

#[tokio::test]
async fn a_test_may_call_a_handler_by_hand() {
    let (app, _) = app(0);
    let answer = refund(Default::default(), Path(7), State(app)).await;
    assert_eq!(answer, Ok("7 refunded in run 1".to_owned()));
}

/// What an attribute leaves out is left to `Policy::default()`, for handlers as for rules written by hand.
#[test]
fn a_rule_without_options_is_the_default_rule() {
    #[semel::idempotent(operation = "plain")]
    async fn plain() {}

    let by_hand = Rule::on("POST /plain").name("plain");
    assert_eq!(format!("{:?}", plain::rule("POST /plain")), format!("{by_hand:?}"));
    let declared = format!("{:?}", create_payment::rule("POST /payments"));
    assert!(declared.contains("Ms(604800000)") && declared.contains("Wait(60s)"), "{declared}");
    let _ = plain;
}

mod elsewhere {
    #[semel::idempotent(operation = "elsewhere")]
    pub(crate) async fn create() -> &'static str {
        "done"
    }
}

#[tokio::test]
async fn one_use_brings_the_handler_and_its_rule() {
    use elsewhere::create;

    let layer = layer([create::rule("POST /")]);
    let to = serve(Router::new().route("/", post(create)).layer(layer)).await;
    assert_eq!(send(to, "/", Some("k"), "").await.body, "done");
    assert!(send(to, "/", Some("k"), "").await.replayed());
}
