//! The admin listener, on an address of its own: health, metrics and JSON documents for operators.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use semel::observe::{self, Registry};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::failure::Failed;

/// Most connections at once.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection may last; a scraper simply connects again.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);
const HEADER_READ: Duration = Duration::from_secs(5);

/// A path, and the JSON served there.
pub(crate) type Document = (&'static str, fn() -> Bytes);

/// What an admin listener serves.
pub(crate) trait Pages: Clone + Send + Sync + 'static {
    /// Whether the command is working, and if not, why.
    fn ready(&self) -> impl Future<Output = Result<(), String>> + Send;

    /// Registers the metrics to serve.
    fn register(&self, registry: &mut Registry);

    /// Further JSON documents.
    fn documents(&self) -> &'static [Document] {
        &[]
    }
}

/// The admin listener asks for no password, so only loopback is allowed unless `--admin-insecure` is given.
pub(crate) fn require_loopback(address: SocketAddr, insecure: bool) -> Result<(), Failed> {
    if address.ip().is_loopback() || insecure {
        return Ok(());
    }
    Err(Failed::usage(format!(
        "the admin address {address} can be reached from other machines and asks for no password; use 127.0.0.1, or \
         add --admin-insecure if the network keeps strangers out"
    )))
}

pub(crate) async fn bind(what: &str, address: SocketAddr) -> Result<TcpListener, Failed> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| Failed::not_done(format!("cannot listen on {address} ({what}): {error}")))
}

/// Answers until the process ends. A command that is `stopping` is not ready.
pub(crate) async fn listen(listener: TcpListener, pages: impl Pages, stopping: watch::Receiver<bool>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let serving = serve(stream, pages.clone(), stopping.clone());
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(CONNECTION_TIME_MAX, serving).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept an admin connection; will retry");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, pages: impl Pages, stopping: watch::Receiver<bool>) -> hyper::Result<()> {
    let respond = service_fn(move |request: Request<Incoming>| {
        let (pages, stopping) = (pages.clone(), *stopping.borrow());
        async move { Ok::<_, Infallible>(answer(&pages, &request, stopping).await.map(Full::new)) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_READ);
    builder.serve_connection(TokioIo::new(stream), respond).await
}

async fn answer(pages: &impl Pages, request: &Request<Incoming>, stopping: bool) -> Response<Bytes> {
    const TEXT: &str = "text/plain; charset=utf-8";
    const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = of(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
        refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match request.uri().path() {
        "/healthz" => of(StatusCode::OK, TEXT, "ok\n"),
        "/readyz" if stopping => of(StatusCode::SERVICE_UNAVAILABLE, TEXT, "stopping\n"),
        "/readyz" => match pages.ready().await {
            Ok(()) => of(StatusCode::OK, TEXT, "ready\n"),
            Err(why) => of(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
        },
        "/metrics" => of(StatusCode::OK, METRICS, observe::render(|registry| pages.register(registry))),
        path => match pages.documents().iter().find(|(at, _)| *at == path) {
            Some((_, document)) => of(StatusCode::OK, "application/json", document()),
            None => {
                let mut all = vec!["/healthz", "/readyz", "/metrics"];
                all.extend(pages.documents().iter().map(|(at, _)| *at));
                of(StatusCode::NOT_FOUND, TEXT, format!("{}\n", all.join(", ")))
            }
        },
    }
}

fn of(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
