//! The client side: one key per intent, and retries that are safe because of it.
//!
//! ```no_run
//! # async fn pay() -> Result<(), Box<dyn std::error::Error>> {
//! use semel::http::client::IdempotentClient;
//!
//! let client = IdempotentClient::http();
//! let request = http::Request::post("http://127.0.0.1:8080/payments").body(r#"{"amount": 4200}"#.to_owned())?;
//! let response = client.send(request).await?; // one payment, however often it had to be sent
//! # Ok(()) }
//! ```
//!
//! | module | what |
//! |---|---|
//! | `policy` | [`RetryPolicy`]: retry budget and backoff |
//! | `response_class` | the result of an attempt, read from the response |
//! | `decide` | retry or not, and what is known in the end: pure, exported for other clients |
//! | `prepare` | chooses the key and reads the body into memory |
//! | `attempt`, `service` | [`IdempotentClient`] and [`RetryLayer`]: the attempts themselves |
//! | `transport`, `over_reqwest` | the ready-made transport, and reqwest's; which errors mean "not sent" |
//! | `error` | [`ClientError`]: did not happen, may have happened, happened without an answer, refused |
//! | `durable` | [`DurableClient`](durable::DurableClient): journaled before it is sent (feature `sqlite`) |
//!
//! What servers promise, and what each answer means, is in `docs/http-contract.md`; how to use the client, and
//! with which transports, is in `docs/client.md`.
//!
//! # What it does not do
//!
//! - It makes no second key. A caller in doubt continues with the first one: [`FirstSent`].
//! - It does not make a server idempotent. A retry to a server that ignores the key repeats the effect.
//! - It follows no redirects and refreshes no credentials; that is up to the transport.

mod attempt;
pub mod decide;
#[cfg(feature = "sqlite")]
pub mod durable;
mod error;
#[cfg(feature = "reqwest")]
mod over_reqwest;
mod policy;
mod prepare;
mod response_class;
mod service;
mod transport;

pub use error::{Attempts, BoxError, ClientAttempt, ClientError, GaveUp, InvalidRequest};
#[cfg(feature = "reqwest")]
pub use over_reqwest::ReqwestTransport;
pub use policy::{ANSWER_BYTES_MAX, ATTEMPTS_MAX, RetryPolicy};
pub use prepare::FirstSent;
pub use response_class::{ResponseClass, Signals};
pub use service::{IdempotentClient, RetryLayer};
pub use transport::HttpTransport;
