//! The client as a tower service over any transport, and the loop of attempts.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use super::attempt::{Got, attempt};
use super::decide::{Known, Moment, RetryDecision, Why, conclude, decide, leaves_doubt};
use super::error::{Attempts, BoxError, ClientAttempt, ClientError, GaveUp, InvalidRequest};
use super::policy::RetryPolicy;
use super::prepare::{Judged, Prepared};
use super::transport::{self, HttpTransport};
use crate::http::body::BufferedBody;

/// Sends each request until there is an answer, always with the same key.
///
/// The transport is any tower [`Service`] over [`http::Request`]`<Full<Bytes>>`; [`IdempotentClient::http`] is
/// a ready-made one. Clones share the transport's connections if its own clones do.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let transport = tower::service_fn(|request: http::Request<http_body_util::Full<bytes::Bytes>>| async move {
/// #     assert!(request.headers().contains_key("idempotency-key"));
/// #     Ok::<_, std::io::Error>(http::Response::new(http_body_util::Full::new(bytes::Bytes::from("charged"))))
/// # });
/// use http_body_util::BodyExt;
/// use semel::{Key, http::client::{Attempts, IdempotentClient}};
///
/// let client = IdempotentClient::new(transport);
/// let request = http::Request::post("http://api.example/payments")
///     .extension(Key::new("order-1001")?) // optional: by default a UUIDv7 is made
///     .body(r#"{"amount": 4200}"#.to_owned())?;
///
/// let response = client.send(request).await?;
/// assert_eq!(response.extensions().get::<Attempts>().unwrap().count(), 1);
/// assert_eq!(response.into_body().collect().await?.to_bytes(), "charged");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// Dropping the future stops the waiting, not the effect: a request that was sent may still be carried out.
#[derive(Clone)]
pub struct IdempotentClient<S> {
    transport: S,
    retries: RetryLayer,
}

impl IdempotentClient<HttpTransport> {
    /// Over hyper's pooling client, without TLS: for loopback, a sidecar or the gateway. For TLS pass
    /// [`new`](Self::new) a hyper client with the connector of your choice.
    pub fn http() -> Self {
        Self::new(transport::http())
    }
}

impl<S> IdempotentClient<S> {
    /// Over any transport, with the default [`RetryPolicy`].
    pub fn new(transport: S) -> Self {
        RetryLayer::default().layer(transport)
    }

    /// Replaces the retry policy.
    pub fn with_policy(mut self, policy: RetryPolicy) -> Self {
        self.retries.policy = Arc::new(policy);
        self
    }

    pub(super) fn policy(&self) -> &RetryPolicy {
        &self.retries.policy
    }

    /// Sends the request until there is an answer or the budget is used up.
    ///
    /// An answer is any final response of the service: a declined card is one, too. Everything else is a
    /// [`ClientError`]. The response has its [`Attempts`] in its extensions.
    pub async fn send<B, R>(&self, request: Request<B>) -> Result<Response<BufferedBody<R>>, ClientError>
    where
        B: Body<Data = Bytes>,
        S: Service<Request<Full<Bytes>>, Response = Response<R>> + Clone,
        S::Error: Into<BoxError>,
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        let prepared = self.prepare(request).await.map_err(ClientError::Invalid)?;
        self.send_prepared(&prepared).await
    }

    pub(super) async fn prepare<B>(&self, request: Request<B>) -> Result<Prepared, InvalidRequest>
    where
        B: Body<Data = Bytes>,
    {
        Prepared::new(request, self.policy(), (self.retries.wall)()).await
    }

    #[cfg(feature = "sqlite")]
    pub(super) fn judged_now(&self) -> Judged {
        Judged::now((self.retries.wall)())
    }

    pub(super) async fn send_prepared<R>(
        &self,
        prepared: &Prepared,
    ) -> Result<Response<BufferedBody<R>>, ClientError>
    where
        S: Service<Request<Full<Bytes>>, Response = Response<R>> + Clone,
        S::Error: Into<BoxError>,
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        run(&mut self.transport.clone(), prepared, &self.retries).await
    }
}

impl<S, B, R> Service<Request<B>> for IdempotentClient<S>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
    S: Service<Request<Full<Bytes>>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError> + Send,
{
    type Response = Response<BufferedBody<R>>;
    type Error = ClientError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ClientError>> + Send>>;

    /// Always ready: waiting for the transport is part of an attempt, and counts against the budget.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut transport, retries) = (self.transport.clone(), self.retries.clone());
        Box::pin(async move {
            let prepared = Prepared::new(request, &retries.policy, (retries.wall)()).await;
            let prepared = prepared.map_err(ClientError::Invalid)?;
            run(&mut transport, &prepared, &retries).await
        })
    }
}

/// Puts an [`IdempotentClient`] around a transport.
///
/// ```
/// use semel::http::client::{RetryLayer, RetryPolicy};
/// use tower::{Layer, service_fn};
/// # type Request = http::Request<http_body_util::Full<bytes::Bytes>>;
///
/// let layer = RetryLayer::new(RetryPolicy::default().attempts_max(3));
/// let client = layer.layer(service_fn(|_: Request| async { Ok::<_, std::io::Error>(http::Response::new(String::new())) }));
/// # let _ = client;
/// ```
#[derive(Clone)]
pub struct RetryLayer {
    policy: Arc<RetryPolicy>,
    random: Arc<dyn Fn() -> u64 + Send + Sync>,
    wall: Wall,
}

/// The machine's wall clock, which may be set back or forward.
type Wall = Arc<dyn Fn() -> SystemTime + Send + Sync>;

impl RetryLayer {
    /// With this policy.
    pub fn new(policy: RetryPolicy) -> Self {
        Self {
            policy: Arc::new(policy),
            random: Arc::new(|| fastrand::u64(..)),
            wall: Arc::new(SystemTime::now),
        }
    }

    /// Replaces the source of randomness for the jitter; all 64 bits are used.
    pub fn random(mut self, random: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.random = Arc::new(random);
        self
    }

    /// Replaces the machine's wall clock: for tests and simulations.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn wall_clock(mut self, wall: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.wall = Arc::new(wall);
        self
    }
}

impl Default for RetryLayer {
    fn default() -> Self {
        Self::new(RetryPolicy::default())
    }
}

impl<S> Layer<S> for RetryLayer {
    type Service = IdempotentClient<S>;

    fn layer(&self, transport: S) -> IdempotentClient<S> {
        IdempotentClient { transport, retries: self.clone() }
    }
}

impl fmt::Debug for RetryLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryLayer").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for IdempotentClient<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentClient").field("policy", &self.retries.policy).finish_non_exhaustive()
    }
}

async fn run<S, R>(
    transport: &mut S,
    prepared: &Prepared,
    retries: &RetryLayer,
) -> Result<Response<BufferedBody<R>>, ClientError>
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    let policy = &*retries.policy;
    let age = Age { began: Instant::now(), judged: prepared.judged, wall: &retries.wall };
    let mut attempts = Attempts::default();
    let mut doubt = prepared.sent_before;
    if age.passed() >= prepared.sendable {
        // After such a long pause another process may have sent it.
        let doubt = doubt || !prepared.sendable.is_zero();
        let known = if doubt { Known::InDoubt } else { Known::NotSent };
        return end(prepared, known, Why::Retention, Got::nothing(), attempts, policy);
    }
    loop {
        let began = age.waited();
        let timeout = policy.attempt_timeout.min(policy.time_max.saturating_sub(began));
        let (seen, got) =
            attempt(transport, prepared.request(), timeout, policy.answer_bytes_max, &*retries.wall).await;
        let elapsed = age.waited();
        attempts.0.push(ClientAttempt { began, took: elapsed - began, seen });

        let made = attempts.count();
        let sendable = prepared.sendable.saturating_sub(age.passed());
        let moment = Moment { attempts: made, elapsed, sendable, random: (retries.random)() };
        let why = match decide(policy, &moment, &seen) {
            RetryDecision::Stop { why } => Some(why),
            RetryDecision::Retry { after } => {
                tracing::debug!(key = %prepared.key.short_hash(), attempt = made, ?seen, ?after, "retrying");
                tokio::time::sleep(after).await;
                // Checked again: if the machine was suspended, the sleep took longer than planned.
                let late = age.waited() >= policy.time_max;
                let forgotten = (age.passed() >= prepared.sendable).then_some(Why::Retention);
                forgotten.or(late.then_some(Why::Time))
            }
        };
        if let Some(why) = why {
            return end(prepared, conclude(doubt, why, &seen), why, got, attempts, policy);
        }
        doubt |= leaves_doubt(&seen);
    }
}

struct Age<'a> {
    began: Instant,
    judged: Judged,
    wall: &'a Wall,
}

impl Age<'_> {
    /// How long the caller has waited.
    fn waited(&self) -> Duration {
        self.began.elapsed()
    }

    /// How much of the server's retention has passed.
    fn passed(&self) -> Duration {
        self.judged.passed((self.wall)())
    }
}

fn end<R: Body<Data = Bytes>>(
    prepared: &Prepared,
    known: Known,
    why: Why,
    got: Got<R>,
    attempts: Attempts,
    policy: &RetryPolicy,
) -> Result<Response<BufferedBody<R>>, ClientError> {
    let response = match got.response {
        Some(mut response) if known == Known::Answered => {
            response.extensions_mut().insert(attempts);
            return Ok(response);
        }
        response => response.map(|response| response.map(|body| start(body.data(), policy))),
    };
    let gave_up = Box::new(GaveUp { key: prepared.key.clone(), why, attempts, response, source: got.error });
    Err(match known {
        Known::NotSent => ClientError::NotSent(gave_up),
        Known::InDoubt => ClientError::InDoubt(gave_up),
        Known::AnswerLost => ClientError::AnswerLost(gave_up),
        // `Answered` without a response does not occur: only a response can be an answer.
        Known::Refused | Known::Answered => ClientError::Refused(gave_up),
    })
}

fn start(data: &Bytes, policy: &RetryPolicy) -> Bytes {
    data.slice(..data.len().min(policy.answer_bytes_max))
}
