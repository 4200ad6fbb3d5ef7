//! The service: reads, verifies, identifies, handles and answers a request, in this order.

use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::FutureExt;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response};
use http_body::Body;
use tower_service::Service;

use super::answer::{ReceiverBody, WebhookEnd};
use super::received::{Done, Received};
use super::receiver::{Settings, Tenants, WebhookReceiver};
use super::verifier::{Verifier, VerifyError};
use crate::crash;
use crate::http::body::{BufferedBody, Extent};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl<H, F, E, B> Service<Request<B>> for WebhookReceiver<H>
where
    H: Fn(Received) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Done, E>> + Send,
    E: Into<BoxError> + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    type Response = Response<ReceiverBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { handler, settings } = self.clone();
        Box::pin(async move {
            // If the application's verifier or handler panics, the provider is asked to retry.
            let received = AssertUnwindSafe(settings.receive(handler, request)).catch_unwind();
            let ended = received.await.unwrap_or(WebhookEnd::Panicked);
            settings.counters.count(ended.result());
            settings.log(ended);
            if let WebhookEnd::Done(_) = ended {
                crash::point(crash::BEFORE_ANSWER);
            }
            Ok(ended.response(settings.retry_after))
        })
    }
}

impl Settings {
    async fn receive<H, F, E, B>(&self, handler: Arc<H>, request: Request<B>) -> WebhookEnd
    where
        H: Fn(Received) -> F,
        F: Future<Output = Result<Done, E>>,
        E: Into<BoxError>,
        B: Body<Data = Bytes>,
    {
        let (parts, body) = request.into_parts();
        let received = match self.authenticate(parts, body).await {
            Ok(received) => received,
            Err(ended) => return ended,
        };
        // Only now: forged requests must not take the permits of authentic ones.
        let Ok(_permit) = self.in_flight.try_acquire() else { return WebhookEnd::Busy };
        let id = received.id().to_owned();
        let handled = async { handler(received).await };
        match tokio::time::timeout(self.handler_time_max, handled).await {
            Ok(Ok(done)) => WebhookEnd::Done(done),
            Ok(Err(error)) => {
                let error: BoxError = error.into();
                tracing::error!(
                    provider = &*self.provider,
                    event = id,
                    %error,
                    "the handler of a webhook failed; the provider is asked to retry"
                );
                WebhookEnd::Failed
            }
            Err(_) => {
                tracing::error!(
                    provider = &*self.provider,
                    event = id,
                    "the handler of a webhook timed out; the provider is asked to retry"
                );
                WebhookEnd::TimedOut
            }
        }
    }

    /// The request as an event, if it is authentic.
    async fn authenticate<B: Body<Data = Bytes>>(
        &self,
        parts: Parts,
        body: B,
    ) -> Result<Received, WebhookEnd> {
        if parts.method != Method::POST {
            return Err(WebhookEnd::Method);
        }
        let (tenant, verifier) = match &self.tenants {
            Tenants::One(verifier) => (None, Arc::clone(verifier)),
            Tenants::Many(find) => {
                let tenant = find(&parts).ok_or(WebhookEnd::UnknownTenant)?;
                (Some(tenant.name), tenant.verifier)
            }
        };
        // A request being verified has its body in memory, so it has a limit too; it does not use a permit of the
        // handler.
        let Ok(_permit) = self.in_check.try_acquire() else { return Err(WebhookEnd::Busy) };
        let body = self.read(body).await?;
        let verified = verify(&*verifier, &parts.headers, &body)?;
        // The id or the tenant is too long for an identity.
        Received::new(Arc::clone(&self.provider), tenant, verified, parts.headers, body)
            .map_err(|_| WebhookEnd::MissingId)
    }

    async fn read<B: Body<Data = Bytes>>(&self, body: B) -> Result<Bytes, WebhookEnd> {
        let mut body = BufferedBody::untouched(body);
        match body.fill(self.body_bytes_max, Some(self.body_time_max)).await {
            Extent::Whole | Extent::Trailers if body.data().len() <= self.body_bytes_max => {
                Ok(body.data().clone())
            }
            Extent::Error => Err(WebhookEnd::Broken),
            // Either the body is known to be too large, or the time was up.
            _ if body.size_hint().lower() > self.body_bytes_max as u64 => Err(WebhookEnd::TooLarge),
            _ => Err(WebhookEnd::Slow),
        }
    }

    /// Logs loudly only what we have to fix: strangers must not fill the log.
    fn log(&self, ended: WebhookEnd) {
        let (provider, result) = (&*self.provider, ended.result().as_str());
        match ended {
            WebhookEnd::Panicked => tracing::error!(
                provider,
                "the verifier or handler of a webhook panicked; the provider is asked to retry"
            ),
            WebhookEnd::MissingId => tracing::error!(
                provider,
                "a webhook with a valid signature has no event id; check where the verifier looks for it"
            ),
            WebhookEnd::Stale => {
                tracing::warn!(
                    provider,
                    "a webhook's timestamp is outside the tolerance: a replay, or a clock is wrong"
                );
            }
            _ => tracing::debug!(provider, result, "webhook answered"),
        }
    }
}

fn verify(
    verifier: &dyn Verifier,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<super::verifier::Verified, WebhookEnd> {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    verifier.verify(headers, body, now_s).map_err(|error| match error {
        VerifyError::Malformed(why) => {
            tracing::debug!(why, "a webhook is malformed");
            WebhookEnd::Malformed
        }
        VerifyError::Forged => WebhookEnd::Forged,
        VerifyError::Stale => WebhookEnd::Stale,
        VerifyError::MissingId => WebhookEnd::MissingId,
    })
}
