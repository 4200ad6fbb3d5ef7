//! The connection pool to the upstream service.
//!
//! The gateway's guarantees depend on one question: was the request sent? hyper hands back a message that it has not
//! begun to write; then nothing happened, and it may be sent over another connection. Once a byte may have been
//! written, the result is unknown.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::{HeaderMap, HeaderValue};
use http::uri::Authority;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::body::{Payload, Progress, Watched, whole};

/// Largest response head.
const ANSWER_HEAD_BYTES_MAX: usize = 64 << 10;

/// The service's address, and its timeouts and limits.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) authority: Authority,
    pub(super) port: u16,
    pub(super) connect: Duration,
    /// Until the answer's head, from the last progress of the request's body.
    pub(super) response: Duration,
    /// Between two pieces of the answer's body.
    pub(super) response_idle: Duration,
    /// How long an idle connection may be reused.
    pub(super) idle: Duration,
    pub(super) requests_max: usize,
    pub(super) idle_max: usize,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failed {
    /// Nothing was sent.
    NotSent(String),
    /// All or part of it was sent.
    Unknown { why: String, timed_out: bool },
    /// The client aborted its body while it was being sent.
    ClientBroke,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(why) => write!(f, "nothing was sent: {why}"),
            Self::Unknown { why, .. } => write!(f, "the request was sent, but not answered: {why}"),
            Self::ClientBroke => f.write_str("the client aborted its request body"),
        }
    }
}

struct Idle {
    sender: SendRequest<Payload>,
    until: Instant,
}

/// The upstream service. Cheap to clone.
#[derive(Clone)]
pub(super) struct Upstream(Arc<Inner>);

struct Inner {
    target: Target,
    /// The authority as a header value.
    host: Option<HeaderValue>,
    idle: Mutex<VecDeque<Idle>>,
    in_flight: Arc<Semaphore>,
}

impl Upstream {
    pub(super) fn new(target: Target) -> Self {
        let in_flight = Arc::new(Semaphore::new(target.requests_max));
        let host = HeaderValue::from_str(target.authority.as_str()).ok();
        Self(Arc::new(Inner { target, host, idle: Mutex::default(), in_flight }))
    }

    /// Its value for the `Host` header.
    pub(super) fn host(&self) -> Option<&HeaderValue> {
        self.0.host.as_ref()
    }

    /// Sends a request whose URI is a path, and returns the answer with a streaming body. The [`Progress`] of the
    /// request's body is in its extensions.
    pub(super) async fn send(&self, mut request: Request<Payload>) -> Result<Response<Payload>, Failed> {
        let target = &self.0.target;
        let permit = match Arc::clone(&self.0.in_flight).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.wait_for_permit().await?,
        };
        let progress = request.extensions().get::<Progress>().cloned().unwrap_or_default();
        loop {
            let (mut sender, reused) = match self.take_idle() {
                Some(sender) => (sender, true),
                None => (Box::pin(self.connect()).await?, false),
            };
            let repeat = if reused { repeatable(&request) } else { None };
            let sent = sender.try_send_request(request);
            let answered = match in_time(sent, &progress, target.response).await {
                Some(answered) => answered,
                None => {
                    let why = format!("no answer within {:?}", target.response);
                    return Err(Failed::Unknown { why, timed_out: true });
                }
            };
            let mut error = match answered {
                Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    let why = "it switched protocols without being asked to".to_owned();
                    return Err(Failed::Unknown { why, timed_out: false });
                }
                Ok(response) => {
                    let idle = idle_for(response.headers(), target.idle);
                    let in_use =
                        InUse { upstream: self.clone(), sender: Some(sender), idle, _permit: permit };
                    let watched =
                        |body| Watched::new(body, Some(target.response_idle), Progress::default(), in_use);
                    return Ok(response.map(|body| watched(body).boxed_unsync()));
                }
                Err(error) => error,
            };
            request = match (error.take_message(), repeat) {
                // The connection was closed while idle. Nothing was written, so another one will do.
                (Some(again), _) if reused => again,
                (Some(_), _) => return Err(Failed::NotSent(error.error().to_string())),
                (None, _) if progress.failed() => return Err(Failed::ClientBroke),
                // The connection was closing, and the request is safe to repeat.
                (None, Some(again)) => again,
                (None, None) => {
                    let why = error.error().to_string();
                    return Err(Failed::Unknown { why, timed_out: false });
                }
            };
        }
    }

    async fn wait_for_permit(&self) -> Result<OwnedSemaphorePermit, Failed> {
        let target = &self.0.target;
        let permit = timeout(target.connect, Arc::clone(&self.0.in_flight).acquire_owned()).await;
        permit
            .ok()
            .and_then(Result::ok)
            .ok_or_else(|| Failed::NotSent(format!("{} requests are already in flight", target.requests_max)))
    }

    async fn connect(&self) -> Result<SendRequest<Payload>, Failed> {
        let target = &self.0.target;
        let host = target.authority.host().trim_start_matches('[').trim_end_matches(']');
        let stream = match timeout(target.connect, TcpStream::connect((host, target.port))).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(Failed::NotSent(error.to_string())),
            Err(_) => return Err(Failed::NotSent(format!("no connection within {:?}", target.connect))),
        };
        let _ = stream.set_nodelay(true);
        let mut builder = http1::Builder::new();
        let handshake = builder.max_buf_size(ANSWER_HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| Failed::NotSent(error.to_string()))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to upstream failed");
            }
        });
        Ok(sender)
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Idle>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most recently used connection: it is the least likely to have been closed.
    fn take_idle(&self) -> Option<SendRequest<Payload>> {
        let now = Instant::now();
        let mut idle = self.idle();
        while idle.front().is_some_and(|oldest| oldest.is_over(now)) {
            idle.pop_front();
        }
        let mut at = idle.len();
        while at > 0 {
            at -= 1;
            if idle[at].is_over(now) {
                idle.remove(at);
            } else if idle[at].sender.is_ready() {
                return idle.remove(at).map(|last| last.sender);
            }
            // Otherwise the connection's last answer has only just been read, and it becomes ready in a moment.
        }
        None
    }

    fn put_idle(&self, sender: SendRequest<Payload>, for_at_most: Duration) {
        let until = Instant::now() + for_at_most;
        let mut idle = self.idle();
        if idle.len() < self.0.target.idle_max {
            idle.push_back(Idle { sender, until });
        }
    }
}

impl Idle {
    fn is_over(&self, now: Instant) -> bool {
        self.until <= now || self.sender.is_closed()
    }
}

/// A connection whose answer is being read; it returns to the pool afterwards. One whose answer was not read to its end
/// will never be ready again, and closes.
struct InUse {
    upstream: Upstream,
    sender: Option<SendRequest<Payload>>,
    idle: Duration,
    _permit: OwnedSemaphorePermit,
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take().filter(|sender| !sender.is_closed()) {
            self.upstream.put_idle(sender, self.idle);
        }
    }
}

/// A copy of the request, if its method is safe and it has no body.
fn repeatable(request: &Request<Payload>) -> Option<Request<Payload>> {
    if !request.method().is_safe() || !request.body().is_end_stream() {
        return None;
    }
    let mut again = Request::new(whole(""));
    *again.method_mut() = request.method().clone();
    *again.uri_mut() = request.uri().clone();
    *again.headers_mut() = request.headers().clone();
    Some(again)
}

/// Waits for an answer; `None` if it takes too long after the last progress of the request's body.
async fn in_time<T>(answer: impl Future<Output = T>, progress: &Progress, limit: Duration) -> Option<T> {
    let mut answer = std::pin::pin!(answer);
    let mut frames = progress.frames();
    loop {
        if let Ok(answer) = timeout(limit, &mut answer).await {
            return Some(answer);
        }
        let now = progress.frames();
        if now == frames {
            return None;
        }
        frames = now;
    }
}

/// How long to keep a connection idle: up to a second before the server's own `Keep-Alive: timeout`.
fn idle_for(headers: &HeaderMap, at_most: Duration) -> Duration {
    let value = headers.get("keep-alive").and_then(|value| value.to_str().ok());
    let seconds =
        value.and_then(|value| value.split(',').find_map(|part| part.trim().strip_prefix("timeout=")));
    match seconds.and_then(|seconds| seconds.parse::<u64>().ok()) {
        Some(seconds) => at_most.min(Duration::from_secs(seconds.saturating_sub(1))),
        None => at_most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_left_before_it_leaves() {
        let of = |value: &'static str| {
            let headers: HeaderMap =
                [(http::header::HeaderName::from_static("keep-alive"), value.parse().unwrap())]
                    .into_iter()
                    .collect();
            idle_for(&headers, Duration::from_secs(20)).as_secs()
        };
        for (value, seconds) in
            [("timeout=5", 4), ("timeout=5, max=100", 4), ("max=1", 20), ("timeout=60", 20), ("timeout=0", 0)]
        {
            assert_eq!(of(value), seconds, "{value}");
        }
    }
}
