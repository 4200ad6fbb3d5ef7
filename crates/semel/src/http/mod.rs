//! The HTTP server side: a tower layer that runs a request once and gives every retry of it the same answer.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use semel::http::{BufferedBody, IdempotencyLayer, Rule};
//! use semel::{Guard, store::memory::MemoryStore};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! let layer = IdempotencyLayer::builder(Guard::new(MemoryStore::new()))
//!     .single_tenant()
//!     .rule(Rule::on("POST /payments").name("payment.create"))
//!     .build()?;
//! let service = layer.layer(service_fn(|_: Request<BufferedBody<Full<bytes::Bytes>>>| async {
//!     Ok::<_, std::convert::Infallible>(Response::new(Full::<bytes::Bytes>::from("charged")))
//! }));
//! for replayed in [false, true] {
//!     let request = Request::post("/payments").header("idempotency-key", "order-1001");
//!     let response = service.clone().oneshot(request.body("4200".into())?).await?;
//!     assert_eq!(response.headers().contains_key("idempotency-replayed"), replayed);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! | module | what |
//! |---|---|
//! | `layer`, `builder` | [`IdempotencyLayer`] and its settings |
//! | `rule`, `route`, `operations` | [`Rule`]: the settings of one operation, and which requests belong to it |
//! | `key` | reads the key from its header |
//! | `classify` | before the claim: key, scope, body, fingerprint |
//! | `inspect` | [`Inspection`]: what the layer will do with a request, from its head alone |
//! | `service` | claims, runs and answers a request, or replays the record |
//! | `inner_call` | the call of the inner service, as a task that outlives its caller |
//! | `body`, `budget` | bodies, read up to a bound and passed on unchanged; how many bytes are buffered at once |
//! | `failure` | what a response says about the effect |
//! | `respond`, `problem`, `profile`, `headers` | what clients see |
//! | `claim` | [`ClaimHandle`]: the claim as its handler sees it |
//! | `atomic` | the claim in the handler's own transaction, for [`Effect::Atomic`](crate::Effect::Atomic) |
//! | `status`, `status_token` | [`StatusService`]: the status resource of a 202, and who may read it |
//! | `axum`, `bare` | with the feature `axum`, and without it: route templates, the claim as an extractor |
//! | `client` | the client side: keys and retries (feature `client`) |
//!
//! The contract with clients is `docs/http-contract.md`.
//!
//! # Where to put it
//!
//! - **Inside of authentication.** A replay is an answer too: a caller without access must not get it.
//!   [`Builder::scope`] takes the tenant that authentication has found.
//! - **Inside of compression.** The answer is stored once for all retries, whatever each of them accepts. Guarded
//!   requests reach the service with `Accept-Encoding: identity`, so a compression layer further in leaves
//!   the answer as it is; one further out compresses replays like any other answer.
//! - **Inside of timeouts, too.** A timeout outside drops the caller, not the work: the retry finds the result.
//!   One inside drops the work, and an opaque effect becomes uncertain.
//!
//! The layer passes on a [`BufferedBody`], which routers and most middleware take like any other body. Middleware that
//! needs its framework's own type (axum's `from_fn` in the same `ServiceBuilder`, further in) needs tower-http's
//! `MapRequestBodyLayer` in between; with one `Router::layer` call for each there is nothing to do.
//!
//! # What it does not do
//!
//! - Task-local values of the caller are not available in the handler: guarded work is a task of its own, because it
//!   must outlive its caller. Extensions are available.
//! - `If-Match`, `If-None-Match` and `Range` go to the service as they are, and are not part of the fingerprint; a
//!   replay is the first answer, whatever the retry says about ranges.
//! - Trailers of a response are passed on but not stored: a response with trailers leaves "done, body not kept".

#[cfg(feature = "_sql")]
mod atomic;
pub(crate) mod body;
mod budget;
mod builder;
mod claim;
mod classify;
#[cfg(feature = "client")]
pub mod client;
mod failure;
pub mod headers;
mod inner_call;
mod inspect;
mod key;
mod layer;
mod operations;
pub(crate) mod problem;
mod profile;
mod respond;
mod route;
mod rule;
mod service;
mod status;
mod status_token;

#[cfg(feature = "axum")]
#[path = "axum.rs"]
mod framework;
#[cfg(not(feature = "axum"))]
#[path = "bare.rs"]
mod framework;

#[cfg(feature = "_sql")]
pub use atomic::Remembered;
pub use body::BufferedBody;
pub use budget::BUFFERED_BYTES_MAX;
pub use builder::{BuildError, Builder, RULES_MAX};
pub use claim::ClaimHandle;
pub use failure::On5xx;
pub use inspect::Inspection;
pub use layer::IdempotencyLayer;
pub use problem::Code;
pub use profile::Profile;
pub use rule::{BODY_BYTES_MAX, KeyRule, RESPONSE_BYTES_MAX, RESPONSE_TIME_MAX, Rule};
pub use service::IdempotencyService;
pub use status::{StatusBody, StatusService};

#[cfg(all(doctest, feature = "axum", feature = "sqlite"))]
#[doc = include_str!("../../../../docs/guide.md")]
struct Guide;
