//! Connects to an endpoint after checking the address its name resolves to (SSRF protection).

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::address::is_public;
use super::wire::Wire;
use crate::timeout::bounded;

/// Checks every address when it connects: a name that was harmless when it was configured, or a moment ago, may
/// resolve to another machine now (DNS rebinding).
#[derive(Clone)]
pub(super) struct Dial {
    pub(super) allow_private: bool,
    pub(super) timeout: Duration,
    /// `Err`: why TLS certificates cannot be verified.
    pub(super) tls: Result<TlsConnector, String>,
}

impl std::fmt::Debug for Dial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dial").field("allow_private", &self.allow_private).finish_non_exhaustive()
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Wire>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dial = self.clone();
        Box::pin(async move {
            let late = || io::Error::new(io::ErrorKind::TimedOut, "connecting timed out");
            bounded(dial.timeout, dial.connect(&uri), late).await
        })
    }
}

impl Dial {
    async fn connect(&self, uri: &Uri) -> io::Result<TokioIo<Wire>> {
        let host = uri.host().ok_or(io::ErrorKind::InvalidInput)?.trim_matches(['[', ']']);
        let encrypted = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
        let found = tokio::net::lookup_host((host, port)).await?;
        let mut last = None;
        for address in found.take(8) {
            match self.try_address(host, address).await {
                Ok(stream) if encrypted => return self.encrypt(host, stream).await.map(TokioIo::new),
                Ok(stream) => return Ok(TokioIo::new(Wire::Plain(stream))),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"))))
    }

    async fn encrypt(&self, host: &str, stream: TcpStream) -> io::Result<Wire> {
        let tls = self.tls.as_ref().map_err(|why| io::Error::other(why.clone()))?;
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Wire::Encrypted(Box::new(tls.connect(name, stream).await?)))
    }

    async fn try_address(&self, host: &str, address: SocketAddr) -> io::Result<TcpStream> {
        if !self.allow_private && !is_public(address.ip()) {
            let why =
                format!("{host} resolves to the private address {}, which is not allowed", address.ip());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
