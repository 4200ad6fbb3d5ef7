//! reqwest as the transport. Its client is a tower service too, but over types of its own.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use reqwest::Body;
use tower_service::Service;

use super::service::IdempotentClient;

/// A [`reqwest::Client`] over the types of the `http` crate.
#[derive(Clone, Debug)]
pub struct ReqwestTransport(reqwest::Client);

impl IdempotentClient<ReqwestTransport> {
    /// Over reqwest, with its TLS, proxies and timeouts.
    ///
    /// Disable its redirects: a 307 would send the request, and the key, elsewhere.
    ///
    /// ```
    /// use semel::http::client::IdempotentClient;
    ///
    /// let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
    /// let client = IdempotentClient::reqwest(http);
    /// # let _ = client;
    /// # Ok::<(), reqwest::Error>(())
    /// ```
    pub fn reqwest(client: reqwest::Client) -> Self {
        Self::new(ReqwestTransport(client))
    }
}

impl Service<Request<Full<Bytes>>> for ReqwestTransport {
    type Response = Response<Body>;
    type Error = reqwest::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, reqwest::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), reqwest::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let client = self.0.clone();
        Box::pin(async move {
            let request = reqwest::Request::try_from(request.map(Body::wrap))?;
            client.execute(request).await.map(Response::from)
        })
    }
}
