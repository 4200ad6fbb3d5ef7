//! Each message a POST to a service in whatever language, under a key that stays the same.
//!
//! | in the request | from the message |
//! |---|---|
//! | body | its payload |
//! | `Idempotency-Key` | its [key](crate::inbox::Identity::key) for this consumer, quoted; the same however often it is sent |
//! | `semel-id`, `semel-type` | which event it is, and what happened |
//! | `semel-source`, `semel-key` | the topic, and the key that orders it |
//! | `semel-attempt` | which attempt this is, from 1 |
//! | `traceparent`, `content-type` and others | its own headers, those that HTTP can carry |
//!
//! | answer | means |
//! |---|---|
//! | 2xx | done, but for a 202 of semel's own, which is later |
//! | 400, 410, 413, 415, 422; a key used for another request | refused: poison at once |
//! | 408, 425, 429, 503, a 409 that says "in progress", no connection | later, for as long as it takes |
//! | other 5xx, no answer, a broken one | tried again, and counted |
//! | other 4xx, redirects | tried again, and counted; redirects are not followed |
//!
//! `Retry-After` is waited for, up to [`AFTER_MAX`](crate::inbox::consumer::AFTER_MAX).

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

/// Why nothing can be forwarded there.
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
    /// The longest that the service may take to answer: 10 s.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt = timeout.clamp(Duration::from_millis(50), Duration::from_secs(3_600));
        self
    }

    /// Does not connect to this machine and to private networks. For an endpoint that others name.
    pub fn public_only(mut self) -> Self {
        self.public_only = true;
        self
    }

    /// Believes the authorities of this PEM file instead of the system's.
    ///
    /// # Errors
    /// When there is no certificate in it, or something else.
    pub fn trust(mut self, pem: &[u8]) -> Result<Self, ForwardError> {
        let bad = |why| ForwardError { message: format!("not a PEM file of certificate authorities: {why}") };
        self.trust = Some(tls_roots::of_pem(pem).map_err(bad)?);
        Ok(self)
    }

    /// Ready to forward. Nobody is connected to yet.
    ///
    /// # Errors
    /// When no certificate could be checked.
    pub fn open(self) -> Result<Forward, ForwardError> {
        let poster =
            Poster::new([&self.uri].into_iter(), !self.public_only, self.attempt, self.trust.as_ref());
        match poster.violations() {
            Some(message) => Err(ForwardError { message }),
            None => Ok(Forward { inner: Arc::new(Inner { uri: self.uri, poster, attempt: self.attempt }) }),
        }
    }
}

/// Forwards messages to an HTTP endpoint: [work](Work) for a keyed [state machine](super::store_dedup::ClaimFinish). Cheap to
/// clone.
///
/// ```
/// use semel::inbox::forward::Forward;
/// use semel::inbox::store_dedup::Dedup;
/// use semel::{Effect, Guard, store::memory::MemoryStore};
///
/// let forward = Forward::to("http://127.0.0.1:3000/payments")?.open()?;
/// let marks = Dedup::new(&Guard::new(MemoryStore::new()), "billing")?;
/// let handler = marks.state_machine(Effect::Keyed, forward)?;
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
    /// To this address.
    ///
    /// # Errors
    /// When it is none.
    pub fn to(url: &str) -> Result<ForwardOptions, ForwardError> {
        let bad = |why| ForwardError { message: format!("{url:?} is no endpoint's address: {why}") };
        let uri = http_post::endpoint(url).map_err(bad)?;
        Ok(ForwardOptions { uri, public_only: false, trust: None, attempt: Duration::from_secs(10) })
    }

    /// Connects, and says nothing there.
    ///
    /// # Errors
    /// When there is no connection.
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
