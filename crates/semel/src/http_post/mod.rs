//! Sends one POST to a configured endpoint, and reports what is known after the attempt.
//!
//! **SSRF protection.** Every address is checked when it is connected to: this machine, private networks and the
//! metadata services of clouds are refused unless allowed. Redirects are not followed.

use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderName;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::TokioExecutor;
use rustls::RootCertStore;
use tokio::time::{Instant, timeout_at};
use tower_service::Service;

use self::dial::Dial;
#[cfg(feature = "webhook")]
use crate::in_progress::{is_answer_lost, is_in_progress};
use crate::tls_roots;

mod address;
mod dial;
mod wire;

/// How much of an answer is read, so that its connection can be reused.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Idle connections kept to one host.
const IDLE_MAX: usize = 16;

/// An HTTP client that posts each request to its own URI. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Poster {
    client: Client<Dial, Full<Bytes>>,
    dial: Dial,
    attempt: Duration,
}

/// What is known after an attempt.
#[derive(Debug)]
pub(crate) enum Sent {
    /// There was an answer.
    Answered(Answer),
    /// No connection was made, so nothing was sent.
    NotReached(String),
    /// It was sent, or may have been, and the connection failed before an answer.
    Lost(String),
    /// No answer in time.
    TimedOut,
}

/// An answer. The body is empty if it is longer than the bound or breaks off.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    #[cfg_attr(not(feature = "forward"), allow(dead_code))]
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// See [`is_in_progress`].
    #[cfg(feature = "webhook")]
    pub(crate) fn is_in_progress(&self) -> bool {
        is_in_progress(self.status, &self.headers, &self.body)
    }

    /// See [`is_answer_lost`].
    #[cfg(feature = "webhook")]
    pub(crate) fn is_answer_lost(&self) -> bool {
        is_answer_lost(&self.headers)
    }
}

/// What a status says about the posted message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Says {
    /// It was accepted.
    Taken,
    /// It will never be accepted.
    Refused,
    /// A redirect, which is not followed.
    Redirected,
    /// It was not accepted this time.
    NotTaken,
    /// It may have been accepted.
    Unknown,
}

impl Says {
    pub(crate) fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            200..=299 => Self::Taken,
            400 | 410 | 413 | 415 | 422 => Self::Refused,
            300..=399 => Self::Redirected,
            401 | 403 | 404 | 405 | 429 => Self::NotTaken,
            _ => Self::Unknown,
        }
    }
}

pub(crate) fn endpoint(url: &str) -> Result<Uri, &'static str> {
    let uri: Uri = url.parse().map_err(|_| "not a URL")?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(_)) => Ok(uri),
        _ => Err("it must begin with https:// or http:// and have a host"),
    }
}

impl Poster {
    /// `attempt`: timeout of one attempt, connecting included. `trust`: root certificates for `https://`; without it,
    /// the system's, which are read only if an endpoint needs them.
    pub(crate) fn new<'u>(
        mut endpoints: impl Iterator<Item = &'u Uri>,
        allow_private: bool,
        attempt: Duration,
        trust: Option<&RootCertStore>,
    ) -> Self {
        let roots = match trust {
            Some(roots) => Ok(roots.clone()),
            None if endpoints.any(|uri| uri.scheme_str() == Some("https")) => tls_roots::of_the_system()
                .map_err(|why| format!("{why}; configure the certificate authority of the endpoints")),
            None => Ok(RootCertStore::empty()),
        };
        // Shorter than the attempt, so that a connect timeout is known to have sent nothing.
        let dial =
            Dial { allow_private, timeout: attempt - attempt / 4, tls: roots.and_then(wire::encryption) };
        let client =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(IDLE_MAX).build(dial.clone());
        Self { client, dial, attempt }
    }

    /// Why TLS certificates cannot be verified, if so.
    pub(crate) fn violations(&self) -> Option<String> {
        self.dial.tls.as_ref().err().cloned()
    }

    /// Connects without sending anything.
    pub(crate) async fn reach(&self, uri: &Uri) -> std::io::Result<()> {
        self.dial.clone().call(uri.clone()).await.map(drop)
    }

    /// One attempt, which ends at `until` or after its own timeout, whichever is earlier.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>, until: Option<Instant>) -> Sent {
        let ours = Instant::now() + self.attempt;
        let until = until.map_or(ours, |until| until.min(ours));
        let response = match timeout_at(until, self.client.request(request)).await {
            Err(_) => return Sent::TimedOut,
            Ok(Err(error)) => return unanswered(&error),
            Ok(Ok(response)) => response,
        };
        let (head, body) = response.into_parts();
        // Read to its end, so that the connection can be reused. A body that is too long or breaks off is dropped.
        let body = timeout_at(until, Limited::new(body, ANSWER_BYTES_MAX).collect()).await;
        let body = body.ok().and_then(Result::ok).map(|whole| whole.to_bytes()).unwrap_or_default();
        Sent::Answered(Answer { status: head.status, headers: head.headers, body })
    }
}

fn unanswered(error: &Error) -> Sent {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    if error.is_connect() { Sent::NotReached(message) } else { Sent::Lost(message) }
}

/// Headers for transport, routing and authentication, which a message must not set.
pub(crate) fn is_ours(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("webhook-")
        || name.starts_with("proxy-")
        || matches!(
            name,
            "authorization"
                | "connection"
                | "content-length"
                | "cookie"
                | "expect"
                | "host"
                | "idempotency-key"
                | "keep-alive"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
                | "user-agent"
        )
}
