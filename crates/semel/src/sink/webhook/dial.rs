//! Connects to an endpoint, having looked at the address it really has.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use super::address::is_public;

/// Checks every address at the moment of connecting: a name that was harmless when it was configured, or a moment ago, may
/// mean another machine now.
#[derive(Clone, Debug)]
pub(super) struct Dial {
    pub(super) allow_private: bool,
    pub(super) timeout: Duration,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dial = self.clone();
        Box::pin(async move {
            match tokio::time::timeout(dial.timeout, dial.connect(&uri)).await {
                Ok(connected) => connected,
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no connection in time")),
            }
        })
    }
}

impl Dial {
    async fn connect(&self, uri: &Uri) -> io::Result<TokioIo<TcpStream>> {
        let host = uri.host().ok_or(io::ErrorKind::InvalidInput)?.trim_matches(['[', ']']);
        let found = tokio::net::lookup_host((host, uri.port_u16().unwrap_or(80))).await?;
        let mut last = None;
        for address in found.take(8) {
            match self.try_address(host, address).await {
                Ok(stream) => return Ok(TokioIo::new(stream)),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"))))
    }

    async fn try_address(&self, host: &str, address: SocketAddr) -> io::Result<TcpStream> {
        if !self.allow_private && !is_public(address.ip()) {
            let told =
                format!("{host} is {}, an address inside: not connected to unless allowed", address.ip());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, told));
        }
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
