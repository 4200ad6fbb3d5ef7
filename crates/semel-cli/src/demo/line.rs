//! One connection of a client.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

const ANSWER_BYTES_MAX: usize = 64 << 10;

/// An answer of the server.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// A connection, opened on first use and again after a failure.
pub(super) struct Connection {
    to: SocketAddr,
    path: &'static str,
    open: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    pub(super) fn new(to: SocketAddr, path: &'static str) -> Self {
        Self { to, path, open: None }
    }

    /// Requests a payment. Dropping the future hangs up.
    pub(super) async fn pay(&mut self, key: &str, amount: u64) -> io::Result<Answer> {
        let mut sender = match self.open.take() {
            Some(sender) if sender.is_ready() => sender,
            _ => connect(self.to).await?,
        };
        let request = Request::post(self.path)
            .header(HOST, self.to.to_string())
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", key)
            .header("x-merchant-id", "demo")
            .body(Full::from(format!("{{\"amount\":{amount}}}")))
            .map_err(io::Error::other)?;
        let (parts, body) = sender.send_request(request).await.map_err(io::Error::other)?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(io::Error::other)?.to_bytes();
        self.open = Some(sender);
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }
}

async fn connect(to: SocketAddr) -> io::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(to).await?;
    let _ = stream.set_nodelay(true);
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // Ends with its sender.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}
