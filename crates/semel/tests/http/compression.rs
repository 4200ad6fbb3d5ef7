//! Compression outside and inside of the layer: what is stored is for every retry, whatever it accepts.

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::Request;
use semel::store::memory::MemoryStore;
use tower_http::compression::CompressionLayer;

use crate::world::{Clock, Got, call, layer, payment, payments};

const TEXT: &str = "charged, and again and again and again and again and again and again and again and again";

fn accepting(encoding: Option<&str>) -> Request<Body> {
    let mut request = payment("k", "{}");
    if let Some(encoding) = encoding {
        request.headers_mut().insert("accept-encoding", encoding.parse().unwrap());
    }
    request
}

fn is_gzip(got: &Got) -> bool {
    assert_eq!(got.status, 200);
    let gzip = got.header("content-encoding") == "gzip";
    assert_eq!(gzip, got.body.starts_with(&[0x1f, 0x8b]), "what is said of the bytes is true");
    assert!(gzip || got.body == TEXT);
    gzip
}

fn service(store: MemoryStore, outside: bool) -> Router {
    let router = Router::new().route("/payments", post(|| async { TEXT }));
    let guard = layer(store, payments());
    let compress = CompressionLayer::new().gzip(true);
    // In axum the layer added last is outermost.
    if outside { router.layer(guard).layer(compress) } else { router.layer(compress).layer(guard) }
}

#[tokio::test]
async fn outside_of_the_layer_each_caller_gets_what_it_accepts() {
    for (first, gzip) in [(Some("gzip"), true), (None, false)] {
        let app = service(Clock::new().store(), true);
        assert_eq!(is_gzip(&call(&app, accepting(first)).await), gzip);
        for (again, gzip) in [(None, false), (Some("gzip"), true), (Some("identity"), false)] {
            let got = call(&app, accepting(again)).await;
            assert!(got.replayed() && is_gzip(&got) == gzip, "{again:?}");
        }
    }
}

#[tokio::test]
async fn inside_of_the_layer_nothing_is_compressed_so_that_every_caller_can_read_it() {
    let app = service(Clock::new().store(), false);
    for (accept, replayed) in [(Some("gzip"), false), (None, true), (Some("gzip;q=1.0, *;q=0.5"), true)] {
        let got = call(&app, accepting(accept)).await;
        assert_eq!((got.replayed(), is_gzip(&got)), (replayed, false), "{accept:?}");
    }
}

#[tokio::test]
async fn inside_of_the_layer_what_is_not_guarded_is_compressed_as_ever() {
    let router = Router::new().route("/payments", post(|| async { TEXT }));
    let optional = payments().key(semel::http::KeyRule::Optional);
    let app = router.layer(CompressionLayer::new().gzip(true)).layer(layer(Clock::new().store(), optional));
    let mut request = payment("", "{}");
    request.headers_mut().insert("accept-encoding", "gzip".parse().unwrap());
    assert!(is_gzip(&call(&app, request).await));
}

#[tokio::test]
async fn a_service_that_encodes_whatever_is_asked_for_is_replayed_as_it_said() {
    let encoded = || async { ([("content-encoding", "br"), ("vary", "accept-encoding")], "brotli, say") };
    let app = Router::new().route("/payments", post(encoded)).layer(layer(Clock::new().store(), payments()));
    call(&app, accepting(Some("br"))).await;
    let again = call(&app, accepting(None)).await;
    assert_eq!((again.header("content-encoding"), again.header("vary")), ("br", "accept-encoding"));
    assert_eq!(again.body, "brotli, say");
}
