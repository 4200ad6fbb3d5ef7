//! Forwards one request to upstream, and marks its claim when nothing was sent.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http::header::{self, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, Uri, Version};
use http_body_util::BodyExt;
use semel::http::{BufferedBody, ClaimHandle};
use tower_service::Service;

use super::body::Payload;
use super::forwarded_headers;
use super::metrics::Counted;
use super::quota::Quotas;
use super::upstream::{Failed, Upstream};

/// The client of a connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// Its address, as a header value.
    pub(super) shown: HeaderValue,
    pub(super) trusted: bool,
}

impl Peer {
    pub(super) fn new(address: IpAddr, trusted: bool) -> Self {
        // The text of any address is a valid header value.
        let shown = HeaderValue::from_str(&address.to_canonical().to_string());
        Self { shown: shown.unwrap_or(HeaderValue::from_static("unknown")), trusted }
    }
}

/// Set when a request turns out to be the first attempt of its intent.
#[derive(Clone, Default, Debug)]
pub(super) struct FirstRun(Arc<AtomicBool>);

impl FirstRun {
    pub(super) fn happened(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Why there is no answer, and to which operation.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) failed: Failed,
    /// The operation, if the request was guarded.
    pub(super) operation: Option<String>,
}

/// Forwards requests to upstream.
#[derive(Clone)]
pub(super) struct Forward {
    pub(super) upstream: Upstream,
    pub(super) keep_host: bool,
    /// Headers that the gateway reads: a client cannot declare them hop-by-hop.
    pub(super) end_to_end: Arc<[HeaderName]>,
    pub(super) counted: Counted,
    pub(super) quotas: Quotas,
}

impl Forward {
    /// Prepares a request for upstream: removes hop-by-hop headers and adds the forwarded ones.
    pub(super) fn address<B>(&self, mut request: Request<B>) -> Request<B> {
        let peer = request.extensions().get::<Peer>().cloned();
        let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        *request.version_mut() = Version::HTTP_11;
        let headers = request.headers_mut();
        forwarded_headers::strip(headers, &self.end_to_end);
        // hyper has answered "100 Continue" by itself.
        headers.remove(header::EXPECT);
        let host = match authority {
            Some(authority) => HeaderValue::from_str(&authority).ok(),
            None => headers.get(header::HOST).cloned(),
        };
        if let Some(Peer { shown, trusted }) = peer {
            forwarded_headers::forwarded(headers, shown, trusted, host.as_ref());
        }
        let ours = || self.upstream.host().cloned();
        if let Some(host) = host.filter(|_| self.keep_host).or_else(ours) {
            headers.insert(header::HOST, host);
        }
        request
    }

    /// Forwards a request, under its claim if it has one.
    pub(super) async fn send(self, request: Request<Payload>) -> Result<Response<Payload>, Broken> {
        let claim = request.extensions().get::<ClaimHandle>().cloned();
        if let (Some(claim), Some(first)) = (&claim, request.extensions().get::<FirstRun>())
            && claim.attempt() == 1
        {
            first.0.store(true, Ordering::SeqCst);
        }
        match self.upstream.send(self.address(request)).await {
            Ok(mut response) => {
                forwarded_headers::strip(response.headers_mut(), &[]);
                *response.version_mut() = Version::HTTP_11;
                Ok(match &claim {
                    Some(claim) => self.quotas.counting(claim.intent(), response),
                    None => response,
                })
            }
            Err(failed) => {
                if let (Some(claim), Failed::NotSent(_)) = (&claim, &failed) {
                    claim.mark_not_applied();
                }
                let kind = if matches!(failed, Failed::NotSent(_)) { "not_sent" } else { "unknown" };
                self.counted.upstream_failed(kind);
                let operation = claim.map(|claim| claim.intent().operation().as_str().to_owned());
                tracing::warn!(
                    %failed, operation,
                    "no answer from upstream; `failed` says whether the request was sent"
                );
                Err(Broken { failed, operation })
            }
        }
    }
}

impl Service<Request<BufferedBody<Payload>>> for Forward {
    type Response = Response<Payload>;
    type Error = Broken;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Payload>, Broken>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<BufferedBody<Payload>>) -> Self::Future {
        Box::pin(self.clone().send(request.map(BodyExt::boxed_unsync)))
    }
}
