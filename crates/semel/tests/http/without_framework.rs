//! The layer on a bare hyper server: no router, no framework.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use semel::http::BufferedBody;
use tokio::net::TcpListener;
use tower::{Layer, service_fn};

use crate::world::{Clock, Effects, client, layer, payments, send};

#[tokio::test]
async fn a_service_over_hypers_own_bodies_is_guarded_all_the_same() {
    let effects = Effects::default();
    let happened = effects.clone();
    let echo = service_fn(move |request: Request<BufferedBody<Incoming>>| {
        let n = happened.happen();
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let answer = format!("{n}: {}", String::from_utf8_lossy(&body));
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(answer))))
        }
    });
    let service = layer(Clock::new().store(), payments()).layer(echo);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service),
            );
        }
    });
    for replayed in [false, true] {
        let got = send(&client(), to, "k", "[1]").await;
        assert_eq!((got.status, &*got.body, got.replayed()), (200, &b"1: [1]"[..], replayed));
        assert_eq!(got.header("content-length"), "6");
    }
    assert_eq!(send(&client(), to, "k", "[2]").await.status, 409);
    assert_eq!(effects.count(), 1);
}
