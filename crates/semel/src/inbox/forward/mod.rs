//! Forwards each message to an HTTP service as a POST with an `Idempotency-Key` that stays the same across retries.
//!
//! | in the request | from the message |
//! |---|---|
//! | body | its payload |
//! | `Idempotency-Key` | its [key](crate::inbox::Identity::key) for this consumer, quoted; the same for every attempt |
//! | `semel-id`, `semel-type` | the event's id and type |
//! | `semel-source`, `semel-key` | the topic, and the key that orders it |
//! | `semel-attempt` | attempt number, starting at 1 |
//! | `traceparent`, `content-type` and others | its headers, as far as HTTP can carry them |
//!
//! | response | means |
//! |---|---|
//! | 2xx | done, except semel's own 202, which is retried later |
//! | 400, 410, 413, 415, 422; a key used for another request | permanent: a dead letter at once |
//! | 408, 425, 429, 503, a 409 that says "in progress", no connection | transient: retried without limit |
//! | other 5xx, no response, a broken one | retried, and counted |
//! | other 4xx, redirects | retried, and counted; redirects are not followed |
//!
//! `Retry-After` is honoured, up to [`AFTER_MAX`](crate::inbox::consumer::AFTER_MAX).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::Uri;
use rustls::RootCertStore;

use super::consumer::HandlerError;
use super::store_dedup::{Work, WorkAttempt};
use crate::http::client::Signals;
use crate::http_post::{self, Poster, Sent};
use crate::tls_roots;

mod request;
mod verdict;

pub use request::HEADERS_BYTES_MAX;

/// Why messages cannot be forwarded to an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ForwardError {
    message: String,
}

/// Where and how to forward. See [`Forward::to`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ForwardOptions {
    uri: Uri,
    public_only: bool,
    trust: Option<RootCertStore>,
    attempt: Duration,
}

impl ForwardOptions {
    /// Timeout of one attempt. Default: 10 s.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt = timeout.clamp(Duration::from_millis(50), Duration::from_secs(3_600));
        self
    }

    /// Refuses to connect to this machine and to private networks (SSRF protection). For an endpoint that others
    /// configure.
    pub fn public_only(mut self) -> Self {
        self.public_only = true;
        self
    }

    /// Trusts the certificate authorities of this PEM file instead of the system's.
    ///
    /// # Errors
    /// If it has no certificate, or anything else.
    pub fn trust(mut self, pem: &[u8]) -> Result<Self, ForwardError> {
        let bad = |why| ForwardError { message: format!("not a PEM file of certificate authorities: {why}") };
        self.trust = Some(tls_roots::of_pem(pem).map_err(bad)?);
        Ok(self)
    }

    /// Ready to forward. Does not connect yet.
    ///
    /// # Errors
    /// If certificates could not be verified.
    pub fn open(self) -> Result<Forward, ForwardError> {
        let poster =
            Poster::new([&self.uri].into_iter(), !self.public_only, self.attempt, self.trust.as_ref());
        match poster.violations() {
            Some(message) => Err(ForwardError { message }),
            None => Ok(Forward { inner: Arc::new(Inner { uri: self.uri, poster, attempt: self.attempt }) }),
        }
    }
}

/// Forwards messages to an HTTP endpoint: [work](Work) for a keyed [`ClaimFinish`](super::store_dedup::ClaimFinish).
/// Cheap to clone.
///
/// ```
/// use semel::inbox::forward::Forward;
/// use semel::inbox::store_dedup::Dedup;
/// use semel::{Effect, Guard, store::memory::MemoryStore};
///
/// let forward = Forward::to("http://127.0.0.1:3000/payments")?.open()?;
/// let dedup = Dedup::new(&Guard::new(MemoryStore::new()), "billing")?;
/// let handler = dedup.claim_finish(Effect::Keyed, forward)?;
/// # drop(handler); Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Forward {
    inner: Arc<Inner>,
}

struct Inner {
    uri: Uri,
    poster: Poster,
    attempt: Duration,
}

impl Forward {
    /// Forwards to this URL.
    ///
    /// # Errors
    /// If it is not the URL of an endpoint.
    pub fn to(url: &str) -> Result<ForwardOptions, ForwardError> {
        let bad = |why| ForwardError { message: format!("{url:?} is not the URL of an endpoint: {why}") };
        let uri = http_post::endpoint(url).map_err(bad)?;
        Ok(ForwardOptions { uri, public_only: false, trust: None, attempt: Duration::from_secs(10) })
    }

    /// Connects without sending a request.
    ///
    /// # Errors
    /// If it cannot connect.
    pub async fn reach(&self) -> Result<(), ForwardError> {
        let Inner { uri, poster, .. } = &*self.inner;
        let unreached = |error| ForwardError { message: format!("{uri} could not be reached: {error}") };
        poster.reach(uri).await.map_err(unreached)
    }
}

impl Work for Forward {
    async fn run(&self, call: WorkAttempt) -> Result<(), HandlerError> {
        let Inner { uri, poster, attempt } = &*self.inner;
        let request = request::of(&call, uri)?;
        match poster.send(request, None).await {
            Sent::Answered(answer) => {
                let signals = Signals::read(answer.status, &answer.headers, &answer.body, SystemTime::now());
                verdict::judge(uri, &signals)
            }
            Sent::NotReached(why) => {
                Err(HandlerError::transient(format!("{uri} could not be reached: {why}")).not_applied())
            }
            Sent::Lost(why) => Err(HandlerError::retry(format!("the connection to {uri} broke: {why}"))),
            Sent::TimedOut => Err(HandlerError::retry(format!("{uri} did not answer within {attempt:?}"))),
        }
    }
}

impl fmt::Debug for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forward").field("uri", &self.inner.uri).finish_non_exhaustive()
    }
}
