//! Shadow mode: forwards everything, and reports what the guard would have done.
//!
//! Each request that would be guarded is copied while it is forwarded. When it is complete, the copy goes through a
//! layer of its own, on a store of its own, whose "service" is upstream's answer to the real request.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use semel::http::{BufferedBody, Code, IdempotencyLayer, IdempotencyService, Inspection, Profile, headers};
use semel::store::AnyStore;
use tokio::sync::{Semaphore, oneshot};
use tower_layer::Layer;
use tower_service::Service;

use super::authorize::{Allowed, Authorize};
use super::body::{BoxError, Payload, whole};
use super::forward::{Broken, Forward};
use super::metrics::Counted;

/// Requests watched at once. Further ones are forwarded too, and counted as not watched.
const WATCHED_MAX: usize = 1_000;
/// Largest body that is copied.
const COPY_BYTES_MAX: usize = 1 << 20;

/// The shadow guard beside the forwarded requests.
pub(super) struct Shadow {
    layer: IdempotencyLayer<AnyStore>,
    service: IdempotencyService<AsReal, AnyStore>,
    authorize: Option<Authorize>,
    forward: Forward,
    profile: Profile,
    counted: Counted,
    permits: Arc<Semaphore>,
}

/// Upstream's answer to the real request; `None` when there was none.
type Real = Option<Response<Copied>>;

/// Receives the real answer, in the extensions of the copy.
#[derive(Clone)]
struct PendingAnswer(Arc<Mutex<Option<oneshot::Receiver<Real>>>>);

impl PendingAnswer {
    async fn wait(&self) -> Real {
        let receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        receiver?.await.ok()?
    }
}

impl Shadow {
    pub(super) fn new(
        layer: IdempotencyLayer<AnyStore>,
        authorize: Option<Authorize>,
        forward: Forward,
        profile: Profile,
    ) -> Self {
        let (service, counted) = (layer.layer(AsReal), forward.counted.clone());
        let permits = Arc::new(Semaphore::new(WATCHED_MAX));
        Self { layer, service, authorize, forward, profile, counted, permits }
    }

    /// Forwards a request, and watches it.
    pub(super) async fn watch(&self, parts: Parts, body: Payload) -> Result<Response<Payload>, Broken> {
        self.counted.request("upstream");
        let inspected = self.layer.inspect(&parts);
        let operation = match &inspected {
            Inspection::Passes => return self.forward.clone().send(Request::from_parts(parts, body)).await,
            Inspection::Guarded(intent) => intent.operation().as_str().to_owned(),
            Inspection::Refused | Inspection::NoScope => parts.method.to_string(),
        };
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            self.counted.shadow(&operation, "not_watched");
            return self.forward.clone().send(Request::from_parts(parts, body)).await;
        };
        let (copied, copy) = oneshot::channel();
        let (answered, answer) = oneshot::channel();
        let key_hash = match &inspected {
            Inspection::Guarded(intent) => Some(intent.key().short_hash()),
            _ => None,
        };
        let watching = Watching {
            service: self.service.clone(),
            authorize: self.authorize.clone(),
            profile: self.profile,
            counted: self.counted.clone(),
            operation,
            key_hash,
            parts: parts.clone(),
            pending: PendingAnswer(Arc::new(Mutex::new(Some(answer)))),
        };
        tokio::spawn(async move {
            watching.run(copy).await;
            drop(permit);
        });
        let body = Copying::new(body, move |copy| drop(copied.send(copy))).boxed_unsync();
        match self.forward.clone().send(Request::from_parts(parts, body)).await {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                let head = parts.clone();
                let on_copied = move |copy| drop(answered.send(Some(Response::from_parts(head, copy))));
                Ok(Response::from_parts(parts, Copying::new(body, on_copied).boxed_unsync()))
            }
            Err(broken) => {
                let _ = answered.send(None);
                Err(broken)
            }
        }
    }
}

struct Watching {
    service: IdempotencyService<AsReal, AnyStore>,
    authorize: Option<Authorize>,
    profile: Profile,
    counted: Counted,
    operation: String,
    key_hash: Option<String>,
    parts: Parts,
    pending: PendingAnswer,
}

impl Watching {
    async fn run(mut self, copy: oneshot::Receiver<Copied>) {
        let body = match copy.await {
            Ok(Copied::Whole(body)) => body,
            Ok(Copied::TooLong) => return self.report("body_too_large", None),
            Ok(Copied::Broken) | Err(_) => return self.report("body_unreadable", None),
        };
        if let Some(authorize) = &self.authorize {
            match Box::pin(authorize.ask(&self.parts)).await {
                Allowed::Yes(principal) => {
                    if let Some(principal) = principal {
                        self.parts.extensions.insert(principal);
                    }
                }
                Allowed::No(_) => return self.report("unauthorised", None),
                Allowed::Failed(_) => return self.report("authorize_failed", None),
            }
        }
        self.parts.extensions.insert(self.pending.clone());
        let request = Request::from_parts(self.parts.clone(), whole(body));
        let Ok(response) = self.service.call(request).await else {
            return self.report("uncertain", None);
        };
        if let Some(code) = response.headers().get(headers::IDEMPOTENCY_PROBLEM) {
            let verdict = verdict(code.as_bytes());
            return self.report(verdict, None);
        }
        if !response.headers().contains_key(self.profile.replayed()) {
            return self.report("run", None);
        }
        // Upstream has run it twice; would the client have seen a difference?
        let status = response.status();
        let replayed = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let same = match self.pending.wait().await {
            Some(real) => {
                real.status() == status && matches!(real.body(), Copied::Whole(body) if *body == replayed)
            }
            None => false,
        };
        self.report("replay", Some(same));
    }

    fn report(&self, verdict: &'static str, same_answer: Option<bool>) {
        self.counted.shadow(&self.operation, verdict);
        tracing::info!(
            operation = self.operation,
            method = %self.parts.method,
            key_hash = self.key_hash,
            verdict,
            same_answer,
            "shadow mode: this is what the guard would have done"
        );
    }
}

fn verdict(code: &[u8]) -> &'static str {
    let code = Code::ALL.into_iter().find(|known| known.as_str().as_bytes() == code);
    match code {
        Some(Code::KeyMissing) => "key_missing",
        Some(Code::KeyInvalid) => "key_invalid",
        Some(Code::Reused) => "mismatch",
        Some(Code::InProgress) => "in_flight",
        Some(Code::Uncertain) => "uncertain",
        Some(Code::KeyExpired | Code::KeyFromFuture) => "key_expired",
        Some(Code::ScopeMissing) => "scope_missing",
        Some(Code::BodyTooLarge) => "body_too_large",
        Some(Code::BodyUnreadable) => "body_unreadable",
        Some(Code::StoreUnavailable) => "store_unavailable",
        // Upstream may have a semel of its own, which sent this code.
        _ => "run",
    }
}

/// The shadow's service: returns upstream's answer to the real request.
#[derive(Clone, Copy)]
struct AsReal;

impl Service<Request<BufferedBody<Payload>>> for AsReal {
    type Response = Response<Payload>;
    type Error = ();
    type Future = Pin<Box<dyn Future<Output = Result<Response<Payload>, ()>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<BufferedBody<Payload>>) -> Self::Future {
        let pending = request.extensions().get::<PendingAnswer>().cloned();
        Box::pin(async move {
            let real = pending.ok_or(())?.wait().await.ok_or(())?;
            Ok(real.map(|copy| match copy {
                Copied::Whole(body) => whole(body),
                Copied::TooLong | Copied::Broken => whole(""),
            }))
        })
    }
}

/// The result of copying a body.
#[derive(Debug)]
enum Copied {
    Whole(Bytes),
    TooLong,
    Broken,
}

/// A body that hands over a copy of itself when it ends.
struct Copying<F: FnOnce(Copied)> {
    body: Payload,
    copy: Option<BytesMut>,
    ended: bool,
    on_copied: Option<F>,
}

impl<F: FnOnce(Copied)> Copying<F> {
    fn new(body: Payload, on_copied: F) -> Self {
        let copy = Some(BytesMut::new());
        Self { ended: body.is_end_stream(), body, copy, on_copied: Some(on_copied) }
    }
}

impl<F: FnOnce(Copied) + Unpin> Body for Copying<F> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let next = Pin::new(&mut this.body).poll_frame(cx);
        match &next {
            Poll::Ready(Some(Ok(frame))) => {
                let data = frame.data_ref().map_or(&[][..], |data| data);
                let fits = this.copy.as_ref().is_some_and(|copy| copy.len() + data.len() <= COPY_BYTES_MAX);
                match &mut this.copy {
                    Some(copy) if fits => copy.extend_from_slice(data),
                    _ => this.copy = None,
                }
                this.ended = this.body.is_end_stream();
            }
            Poll::Ready(None) => this.ended = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        if this.ended {
            this.hand_over();
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<F: FnOnce(Copied)> Copying<F> {
    fn hand_over(&mut self) {
        let Some(on_copied) = self.on_copied.take() else { return };
        on_copied(match self.copy.take() {
            Some(copy) if self.ended => Copied::Whole(copy.freeze()),
            Some(_) => Copied::Broken,
            None => Copied::TooLong,
        });
    }
}

impl<F: FnOnce(Copied)> Drop for Copying<F> {
    fn drop(&mut self) {
        self.hand_over();
    }
}
