//! The ready-made transport, and which transport errors mean "not sent".

use std::error::Error;
use std::io;

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// hyper's pooling client, without TLS.
pub type HttpTransport = Client<HttpConnector, Full<Bytes>>;

pub(super) fn http() -> HttpTransport {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Whether certainly nothing has reached the server. In doubt this is false: a wrong "not sent" would report a payment
/// as failed that was made.
pub(super) fn never_sent(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<hyper_util::client::legacy::Error>().is_some_and(|e| e.is_connect()) {
            return true;
        }
        // Only connecting can be refused.
        if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    #[test]
    fn only_what_is_certain_counts_as_not_sent() {
        use io::ErrorKind::*;
        for (kind, never) in
            [(ConnectionRefused, true), (ConnectionReset, false), (TimedOut, false), (BrokenPipe, false)]
        {
            assert_eq!(never_sent(&io::Error::from(kind)), never, "{kind}");
            assert_eq!(never_sent(&Outer(io::Error::from(kind))), never, "{kind}");
        }
    }
}
