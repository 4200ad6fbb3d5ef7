//! The webhook receiver: verifies what a provider posts, then handles it once, in your transaction.
//!
//! ```text
//!  POST ─▶ read (bounded) ─▶ verify raw body ─▶ event id ─▶ your handler: begin ─▶ mark ─▶ your rows ─▶ commit ─▶ 200
//!           413, 408          400, 401          500          503: the provider retries
//! ```
//!
//! Providers redeliver an event until they get a success: twice if a response is lost, for days if there is none. The
//! [verifier](Verifier) runs first: if marks came before it, anyone could make one, and the real event would be
//! skipped. The 200 is sent after the commit, so that an event the provider stops sending is really stored.
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use std::sync::Arc;
//!
//! use axum::Router;
//! use semel::blocking;
//! use semel::inbox::webhook::{Received, Stripe, WebhookReceiver};
//! use semel::inbox::{self, Inbox};
//! use semel::tx::driver::Dialect;
//! use tokio::sync::Mutex;
//!
//! type Failed = Box<dyn std::error::Error + Send + Sync>;
//!
//! let db = rusqlite::Connection::open_in_memory()?;
//! db.execute_batch(inbox::schema(Dialect::Sqlite))?;
//! db.execute_batch("CREATE TABLE paid (payment TEXT NOT NULL)")?;
//!
//! let (db, inbox) = (Arc::new(Mutex::new(db)), Inbox::new("billing")?);
//! let handler = {
//!     let db = Arc::clone(&db);
//!     move |event: Received| {
//!         let (db, inbox) = (Arc::clone(&db), inbox.clone());
//!         async move {
//!             let mut db = db.lock().await;
//!             let tx = db.transaction()?;
//!             let handled = blocking::handle_tx(&inbox, &tx, &event, |tx| {
//!                 tx.execute("INSERT INTO paid (payment) VALUES (?1)", [event.id()]).map(drop)
//!             })?;
//!             tx.commit()?;
//!             // Only now may the provider stop sending it.
//!             Ok::<_, Failed>(handled.into())
//!         }
//!     }
//! };
//! let stripe = Stripe::new(["whsec_the_new_one", "whsec_the_old_one"])?;
//! let app: Router = Router::new().route_service("/hooks/stripe", WebhookReceiver::new("stripe", stripe, handler)?);
//!
//! # use hmac::{Hmac, KeyInit, Mac};
//! # use tower::ServiceExt;
//! # let sign = |at: u64, body: &str| {
//! #     let mut mac = Hmac::<sha2::Sha256>::new_from_slice(b"whsec_the_old_one").unwrap();
//! #     mac.update(format!("{at}.{body}").as_bytes());
//! #     let hex: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
//! #     format!("t={at},v1={hex}")
//! # };
//! // Stripe sends the event twice, and a stranger sends a forged one.
//! let body = r#"{"id":"evt_1","type":"payment_intent.succeeded"}"#;
//! let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
//! for (signature, status) in [(sign(now, body), 200), (sign(now, body), 200), (sign(now, "{}"), 401)] {
//!     let request = http::Request::post("/hooks/stripe").header("stripe-signature", signature);
//!     let response = app.clone().oneshot(request.body(axum::body::Body::from(body))?).await?;
//!     assert_eq!(response.status(), status);
//! }
//! let paid: i64 = db.lock().await.query_row("SELECT count(*) FROM paid", [], |row| row.get(0))?;
//! assert_eq!(paid, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! | verifier | signed | the event's id |
//! |---|---|---|
//! | [`Stripe`] | time, body | `/id` of the body |
//! | [`StandardWebhooks`], also Svix's headers | id, time, body | `webhook-id` |
//! | [`Github`] | body | `X-GitHub-Delivery`, or the body's digest |
//! | [`PlainHmac`] | body, or time and body | as configured |
//!
//! Malformed, forged, stale and duplicate requests are counted separately
//! ([`WEBHOOK`](crate::observe::names::WEBHOOK)). See also `docs/webhooks.md`.
//!
//! | module | what it decides |
//! |---|---|
//! | `verifier` | the trait for a provider's signature scheme |
//! | `standard`, `stripe`, `github`, `hmac` | the schemes |
//! | `header`, `timestamp`, `secrets` | signature headers, how old one may be, several secrets during a rotation |
//! | `event_id` | where a request has its event id and kind |
//! | `receiver`, `service` | the settings; reads, verifies, identifies, handles and answers a request |
//! | `received`, `answer` | the event that a handler gets; the responses |

mod answer;
mod event_id;
mod github;
mod header;
mod hmac;
mod received;
mod receiver;
mod secrets;
mod service;
mod standard;
mod stripe;
mod timestamp;
mod verifier;

pub use answer::ReceiverBody;
pub use github::Github;
pub use hmac::PlainHmac;
pub use received::{Done, Received};
pub use receiver::{BODY_BYTES_MAX, BODY_TIME_MAX, HANDLER_TIME_MAX, IN_FLIGHT_MAX, Tenant, WebhookReceiver};
pub use secrets::{SECRETS_MAX, SIGNATURES_MAX};
pub use standard::StandardWebhooks;
pub use stripe::Stripe;
pub use timestamp::TOLERANCE;
pub use verifier::{Verified, Verifier, VerifierError, VerifyError};
