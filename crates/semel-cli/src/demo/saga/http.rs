//! Requests between the processes of the demo: JSON over HTTP/1, one connection for each.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const BODY_BYTES_MAX: usize = 64 << 10;
const CONNECTIONS_MAX: usize = 1_024;

/// What a request is answered with. An error closes the connection without an answer.
pub(super) type Answered = io::Result<(StatusCode, serde_json::Value)>;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// The request was never sent.
    #[error("not sent: {0}")]
    NotSent(io::Error),
    /// It was sent; what became of it is unknown.
    #[error("no answer: {0}")]
    Lost(io::Error),
}

/// Sends a request and returns the status and the body of the answer. Dropping the future hangs up.
pub(super) async fn call(
    to: SocketAddr,
    path: &str,
    body: &impl Serialize,
) -> Result<(StatusCode, Bytes), CallError> {
    let body = serde_json::to_vec(body).map_err(|error| CallError::NotSent(error.into()))?;
    let request = Request::post(path)
        .header(HOST, to.to_string())
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| CallError::NotSent(io::Error::other(error)))?;
    let stream = TcpStream::connect(to).await.map_err(CallError::NotSent)?;
    let _ = stream.set_nodelay(true);
    let lost = |error: hyper::Error| CallError::Lost(io::Error::other(error));
    let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await.map_err(lost)?;
    // Ends with its sender.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let (parts, body) = sender.send_request(request).await.map_err(lost)?.into_parts();
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
    Ok((parts.status, body.map_err(|error| CallError::Lost(io::Error::other(error)))?.to_bytes()))
}

/// Answers requests, each by its path and its body, until it is dropped.
pub(super) async fn serve<Ask, F, Fut>(listener: TcpListener, answer: F)
where
    Ask: DeserializeOwned + Send + 'static,
    F: Fn(String, Ask) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Answered> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else { continue };
        let answer = answer.clone();
        connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            let calls = service_fn(move |request| read_and_answer(request, answer.clone()));
            // Ends with an error whenever an answer is dropped on purpose.
            let _ = server::Builder::new().serve_connection(TokioIo::new(stream), calls).await;
            drop(permit);
        });
    }
}

async fn read_and_answer<Ask, F, Fut>(
    request: Request<Incoming>,
    answer: F,
) -> io::Result<Response<Full<Bytes>>>
where
    Ask: DeserializeOwned + Send + 'static,
    F: Fn(String, Ask) -> Fut,
    Fut: Future<Output = Answered> + Send + 'static,
{
    let path = request.uri().path().to_owned();
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await.map_err(io::Error::other)?;
    let (status, body) = match serde_json::from_slice::<Ask>(&body.to_bytes()) {
        // A task of its own: it goes on after its client has hung up.
        Ok(ask) => tokio::spawn(answer(path, ask)).await.map_err(io::Error::other)??,
        Err(error) => (StatusCode::BAD_REQUEST, serde_json::json!({ "error": error.to_string() })),
    };
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
