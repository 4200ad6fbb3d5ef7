//! What the edge's tests share: a payments service that counts its effects, a real listener, a real client.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use semel::http::{Builder, IdempotencyLayer, Rule};
use semel::store::memory::MemoryStore;
use semel::store::{AnyStore, Record, Store};
use semel::{Guard, Intent, Key, Operation, Scope, State, StoreTime};
use tower::ServiceExt;

/// How often the effect happened.
#[derive(Clone, Default)]
pub struct Effects(Arc<AtomicU32>);

impl Effects {
    pub fn happen(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Which store a test runs on.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Memory,
    #[cfg(feature = "sqlite")]
    Sqlite,
    /// On a real server, opened anew by the test that runs the rows there.
    #[allow(dead_code)]
    Elsewhere(fn() -> Pin<Box<dyn Future<Output = AnyStore>>>),
}

/// How much faster time passes on a real server, whose clock the test cannot move.
const HURRY: u64 = 5;

/// A clock the test moves, and what goes with it.
#[derive(Clone)]
pub struct Clock(Arc<AtomicU64>, Arc<std::sync::OnceLock<tempfile::TempDir>>);

impl Clock {
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_800_000_000_000)), Arc::default())
    }

    pub fn store(&self) -> MemoryStore {
        let clock = self.clone();
        MemoryStore::with_clock(move || clock.now())
    }

    fn now(&self) -> StoreTime {
        StoreTime(self.0.load(Ordering::SeqCst))
    }

    /// A store on this clock; its file lives as long as the clock, or as the store if that was opened in
    /// passing.
    pub async fn on(&self, kind: Kind) -> AnyStore {
        match kind {
            Kind::Memory => AnyStore::new(self.store()),
            Kind::Elsewhere(open) => open().await,
            #[cfg(feature = "sqlite")]
            Kind::Sqlite => {
                let (clock, directory) = (self.clone(), self.1.get_or_init(testkit::scratch::directory));
                let options = semel::store::sqlite::SqliteStore::options();
                // The store keeps its clock, all of it, and the clock the directory.
                let options = options.clock(move || clock.now());
                AnyStore::new(options.open(directory.path().join("semel.db")).await.unwrap())
            }
        }
    }

    /// Lets so much time pass; on a real server it is waited for, in a hurry.
    pub async fn pass_ms(&self, kind: Kind, ms: u64) {
        match kind {
            Kind::Elsewhere(_) => tokio::time::sleep(kind.span_ms(ms) + Duration::from_millis(50)).await,
            _ => self.advance_ms(ms),
        }
    }

    pub fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Kind {
    /// How long that is for a store of this kind.
    pub fn span_ms(self, ms: u64) -> Duration {
        match self {
            Self::Elsewhere(_) => Duration::from_millis(ms / HURRY),
            _ => Duration::from_millis(ms),
        }
    }
}

pub const OPERATION: &str = "payment.create";

/// The rule nearly all tests begin with.
pub fn payments() -> Rule {
    Rule::on("POST /payments").name(OPERATION)
}

pub fn builder<S: Store>(store: S) -> Builder<S> {
    IdempotencyLayer::builder(Guard::new(store)).scope_header("x-tenant-id".parse().unwrap())
}

pub fn layer<S: Store>(store: S, rule: Rule) -> IdempotencyLayer<S> {
    builder(store).rule(rule).build().unwrap()
}

/// A service under the layer: each effect is one call of `answer`, with its number, starting at 1.
pub fn app<S: Store>(
    layer: IdempotencyLayer<S>,
    effects: &Effects,
    answer: impl Fn(u32) -> Response + Clone + Send + Sync + 'static,
) -> Router {
    let effects = effects.clone();
    let handler = move || async move { answer(effects.happen()) };
    Router::new().route("/payments", post(handler)).layer(layer)
}

/// The usual answer.
pub fn charged(n: u32) -> Response {
    (StatusCode::CREATED, [("location", format!("/payments/{n}"))], format!("charged {n}")).into_response()
}

pub fn status(code: u16) -> Response {
    (StatusCode::from_u16(code).unwrap(), format!("status {code}")).into_response()
}

/// A response, read to its end.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Got {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn replayed(&self) -> bool {
        self.header("idempotency-replayed") == "true"
    }

    pub fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        problem["code"].as_str().unwrap_or("").to_owned()
    }
}

/// A payment by `acme` under a key.
pub fn payment(key: &str, body: impl Into<Body>) -> Request<Body> {
    request("acme", key, body)
}

pub fn request(tenant: &str, key: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post("/payments").header("x-tenant-id", tenant);
    let request = if key.is_empty() { request } else { request.header("idempotency-key", key) };
    request.header("content-type", "application/json").body(body.into()).unwrap()
}

/// One call through tower, without a network.
pub async fn call(app: &Router, request: Request<Body>) -> Got {
    read(app.clone().oneshot(request).await.unwrap()).await
}

pub async fn read<B>(response: http::Response<B>) -> Got
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Got { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// Serves on a port of its own until the test ends.
pub async fn serve(app: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

pub fn client() -> Client<HttpConnector, Full<Bytes>> {
    Client::builder(TokioExecutor::new()).build_http()
}

/// One call over TCP.
pub async fn send(client: &Client<HttpConnector, Full<Bytes>>, to: SocketAddr, key: &str, body: &str) -> Got {
    let request = Request::post(format!("http://{to}/payments"))
        .header("x-tenant-id", "acme")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
        .unwrap();
    read(client.request(request).await.unwrap()).await
}

/// A service on a port of its own, and a client of it.
pub struct Wire {
    to: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Wire {
    pub async fn to(app: Router) -> Self {
        Self { to: serve(app).await, client: client() }
    }

    pub async fn pay(&self, key: &str, body: &str) -> Got {
        send(&self.client, self.to, key, body).await
    }
}

pub fn intent(key: &str) -> Intent {
    let (scope, operation) = (Scope::tenant("acme").unwrap(), Operation::new(OPERATION).unwrap());
    Intent::new(scope, operation, Key::new(key).unwrap())
}

pub async fn record(store: &impl Store, key: &str) -> Option<Record> {
    store.get(intent(key).id()).await.unwrap()
}

pub async fn state(store: &impl Store, key: &str) -> Option<State> {
    let now = store.now().await.unwrap();
    record(store, key).await?.state_at(now)
}

/// Yields until the intent has this state. The test's own time limit bounds it.
pub async fn until(store: &impl Store, key: &str, wanted: State) {
    while state(store, key).await != Some(wanted) {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}
