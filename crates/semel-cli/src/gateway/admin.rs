//! For those who run the gateway, on an address of its own: health, metrics, the description of what it adds.

use std::convert::Infallible;
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
use semel::store::{AnyStore, Store};
use semel::{Guard, IntentId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::metrics::Counted;
use super::openapi;

/// Connections at once.
const CONNECTIONS_MAX: usize = 64;
/// How long one may last: whoever scrapes comes again.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);
const HEADER_READ: Duration = Duration::from_secs(5);
/// How long the store may take to say that it is there.
const READY_TIME_MAX: Duration = Duration::from_secs(2);

/// What the admin listener knows.
#[derive(Clone)]
pub(super) struct Admin {
    pub(super) guard: Guard<AnyStore>,
    pub(super) counted: Counted,
    pub(super) stopping: watch::Receiver<bool>,
}

/// Answers until the process ends.
pub(super) async fn listen(listener: TcpListener, admin: Admin) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let admin = admin.clone();
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(CONNECTION_TIME_MAX, serve(stream, admin)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "an admin connection could not be taken");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, admin: Admin) -> hyper::Result<()> {
    let answer = service_fn(move |request: Request<Incoming>| {
        let admin = admin.clone();
        async move { Ok::<_, Infallible>(admin.answer(&request).await.map(Full::new)) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_READ);
    builder.serve_connection(TokioIo::new(stream), answer).await
}

impl Admin {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Bytes> {
        const TEXT: &str = "text/plain; charset=utf-8";
        const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut refused = of(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
            refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match request.uri().path() {
            "/healthz" => of(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" => match self.ready().await {
                Ok(()) => of(StatusCode::OK, TEXT, "ready\n"),
                Err(why) => of(StatusCode::SERVICE_UNAVAILABLE, TEXT, why),
            },
            "/metrics" => {
                of(StatusCode::OK, METRICS, self.counted.render_after(&self.guard.metrics().render()))
            }
            "/openapi.json" => of(StatusCode::OK, "application/json", openapi::text()),
            _ => of(StatusCode::NOT_FOUND, TEXT, "/healthz, /readyz, /metrics, /openapi.json\n"),
        }
    }

    /// Requests should come here: the store answers, and nothing is about to end.
    async fn ready(&self) -> Result<(), String> {
        if *self.stopping.borrow() {
            return Err("stopping\n".to_owned());
        }
        // An id that no intent has: a real read that finds nothing.
        let nobody: IntentId = "0".repeat(64).parse().map_err(|_| "no id\n")?;
        match tokio::time::timeout(READY_TIME_MAX, self.guard.store().get(nobody)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("the store cannot be asked: {error}\n")),
            Err(_) => Err(format!("the store did not answer within {READY_TIME_MAX:?}\n")),
        }
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
