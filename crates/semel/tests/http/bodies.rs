//! Bodies at their bounds, and responses that are not kept.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::stream;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use semel::http::{IdempotencyLayer, Rule};
use semel::store::Store;
use semel::store::faulty::{Fault, Faulty, StoreCall};
use semel::store::memory::MemoryStore;
use semel::{Effect, Guard, State};
use tokio::sync::{Notify, mpsc};
use tower::ServiceExt;

use crate::world::{
    Clock, Effects, Got, app, call, charged, client, layer, payment, payments, read, record, serve, state,
};

#[tokio::test]
async fn a_request_body_is_taken_up_to_its_bound_and_handed_on_untouched() {
    let handler = |headers: HeaderMap, body: Bytes| async move {
        (StatusCode::OK, [("x-length", headers["content-length"].clone())], body)
    };
    let store = Clock::new().store();
    let rule = payments().body_bytes_max(1_000);
    let app = Router::new().route("/payments", post(handler)).layer(layer(store.clone(), rule));
    let to = serve(app).await;
    for (bytes, expected) in [(1, 200), (999, 200), (1_000, 200), (1_001, 413), (100_000, 413)] {
        let body: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
        let key = format!("k{bytes}");
        let request = Request::post(format!("http://{to}/payments"))
            .header("x-tenant-id", "acme")
            .header("idempotency-key", &key)
            .body(Full::new(Bytes::from(body.clone())))
            .unwrap();
        let got = read(client().request(request).await.unwrap()).await;
        assert_eq!(got.status, expected, "{bytes}");
        if expected == 200 {
            assert_eq!((got.header("x-length"), &*got.body), (bytes.to_string().as_str(), &*body));
        } else {
            assert_eq!(
                (got.code().as_str(), got.header("x-should-retry")),
                ("IDEMPOTENCY_BODY_TOO_LARGE", "false")
            );
            assert!(record(&store, &key).await.is_none());
        }
    }
}

#[tokio::test]
async fn a_chunked_request_is_bounded_while_it_comes_and_keeps_its_trailers() {
    let handler = |request: Request<Body>| async move {
        let collected = request.into_body().collect().await.unwrap();
        let trailer =
            collected.trailers().map_or("none".to_owned(), |trailers| format!("{:?}", trailers["x-sum"]));
        format!("{:?} {trailer}", collected.to_bytes())
    };
    let app = Router::new()
        .route("/payments", post(handler))
        .layer(layer(Clock::new().store(), payments().body_bytes_max(8)));
    let chunked = |chunks: &'static [&'static str], trailers: bool| {
        let data = chunks.iter().map(|chunk| http_body::Frame::data(Bytes::from_static(chunk.as_bytes())));
        let last = trailers.then(|| {
            http_body::Frame::trailers(HeaderMap::from_iter([("x-sum".parse().unwrap(), 7.into())]))
        });
        let frames: Vec<Result<_, Infallible>> = data.chain(last).map(Ok).collect();
        Body::new(StreamBody::new(stream::iter(frames)))
    };
    let got = call(&app, payment("k1", chunked(&["abcd", "efgh"], true))).await;
    assert!(got.body == "b\"abcdefgh\" \"7\"", "{got:?}");
    assert_eq!(call(&app, payment("k2", chunked(&["abcd", "efgh", "i"], false))).await.status, 413);
}

#[tokio::test]
async fn a_request_body_that_breaks_claims_nothing() {
    let (store, effects) = (Clock::new().store(), Effects::default());
    let app = app(layer(store.clone(), payments()), &effects, charged);
    let broken = stream::iter([Ok(Bytes::from("{")), Err(std::io::Error::other("gone"))]);
    let got = call(&app, payment("k", Body::from_stream(broken))).await;
    assert_eq!((got.status, got.code().as_str()), (400, "IDEMPOTENCY_BODY_UNREADABLE"));
    assert!(record(&store, "k").await.is_none() && effects.count() == 0);
}

/// Each body is small enough; all of them together are not.
#[tokio::test]
async fn bodies_that_are_held_at_once_have_a_bound_together() {
    let (store, effects) = (Clock::new().store(), Effects::default());
    let bounded = || payments().body_bytes_max(1_000);
    let guard = Guard::new(store.clone());
    let layer = IdempotencyLayer::builder(guard.clone())
        .scope_header("x-tenant-id".parse().unwrap())
        .rule(bounded())
        .default_rule(Rule::default_rule().body_bytes_max(1_000))
        .buffered_bytes_max(1_500)
        .build()
        .unwrap();
    let metrics = guard.metrics().clone();
    let shows = |line: &str| {
        assert!(metrics.render().lines().any(|have| have == line), "{line}\n{}", metrics.render())
    };
    let app = app(layer, &effects, charged);
    let (sender, coming) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    let coming = stream::unfold(coming, |mut coming| async move { Some((coming.recv().await?, coming)) });
    let first = tokio::spawn({
        let (app, body) = (app.clone(), Body::from_stream(coming));
        async move { call(&app, payment("k1", body)).await }
    });
    // It is being read: its length is not known, so as much is taken as it may have.
    sender.send(Ok(Bytes::from("[1"))).await.unwrap();
    sender.send(Ok(Bytes::from(", 2"))).await.unwrap();
    while !metrics.render().contains("semel_http_buffered_bytes 1000") {
        tokio::task::yield_now().await;
    }
    let refused = call(&app, payment("k2", vec![b' '; 600])).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "IDEMPOTENCY_BUSY"));
    assert_eq!((refused.header("retry-after"), refused.header("x-should-retry")), ("1", "true"));
    assert!(record(&store, "k2").await.is_none());
    shows("semel_http_buffer_refused_total 1");
    assert_eq!(call(&app, payment("k3", vec![b' '; 400])).await.status, 201);
    assert_eq!(call(&app, payment("k4", "")).await.status, 201, "no body needs no room");
    sender.send(Ok(Bytes::from("]"))).await.unwrap();
    drop(sender);
    assert_eq!(first.await.unwrap().status, 201);
    shows("semel_http_buffered_bytes 0");
    assert_eq!(call(&app, payment("k2", vec![b' '; 600])).await.status, 201);
    assert_eq!(effects.count(), 4);
}

#[tokio::test]
async fn a_response_is_kept_up_to_its_bound_and_never_run_again_beyond_it() {
    for (bytes, kept) in [(99, true), (100, true), (101, false), (1_000_000, false)] {
        let effects = Effects::default();
        let answer = move |_| vec![7u8; bytes].into_response();
        let app = app(layer(Clock::new().store(), payments().response_bytes_max(100)), &effects, answer);
        let to = serve(app).await;
        let first = crate::world::send(&client(), to, "k", "{}").await;
        assert_eq!((first.body.len(), first.header("content-length")), (bytes, bytes.to_string().as_str()));
        let again = crate::world::send(&client(), to, "k", "{}").await;
        assert_eq!((again.status, again.replayed()), (200, true));
        assert_eq!(again.body.len(), if kept { bytes } else { 0 }, "{bytes}");
        assert_eq!(again.header("idempotency-body"), if kept { "" } else { "not-kept" });
        assert_eq!(effects.count(), 1);
    }
}

/// A service whose answer comes as the test sends it.
fn streaming<S: Store>(
    store: S,
    content_type: &'static str,
    rule: Rule,
) -> (Router, mpsc::Sender<&'static str>, Effects) {
    let (chunks, coming) = mpsc::channel::<&'static str>(1);
    let (coming, effects) = (Arc::new(tokio::sync::Mutex::new(Some(coming))), Effects::default());
    let happened = effects.clone();
    let handler = move || async move {
        happened.happen();
        let coming = coming.lock().await.take().unwrap();
        let chunks = stream::unfold(coming, |mut coming| async move {
            let chunk = coming.recv().await?;
            Some((Ok::<_, Infallible>(Bytes::from(chunk)), coming))
        });
        Response::builder().header("content-type", content_type).body(Body::from_stream(chunks)).unwrap()
    };
    (Router::new().route("/payments", post(handler)).layer(layer(store, rule)), chunks, effects)
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_is_recorded_as_done_before_its_first_byte_leaves() {
    for content_type in ["text/event-stream", "Text/Event-Stream; charset=utf-8"] {
        let store = Clock::new().store();
        // Known by what it says it is, not by how long it takes.
        let rule = payments().response_time_max(Duration::from_secs(3_600));
        let (app, chunks, effects) = streaming(store.clone(), content_type, rule);
        let head = tokio::time::timeout(Duration::from_secs(60), app.clone().oneshot(payment("k", "{}")));
        let mut body = head.await.expect("the head does not wait for the body").unwrap().into_body();
        // The head is here, no byte of the body is: and the store knows already.
        assert_eq!(state(&store, "k").await, Some(State::Completed));
        assert!(record(&store, "k").await.unwrap().outcome.unwrap().body_bytes().is_none());
        for chunk in ["data: 1\n\n", "data: 2\n\n"] {
            chunks.send(chunk).await.unwrap();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), chunk);
        }
        drop(chunks);
        assert!(body.frame().await.is_none());
        let again = call(&app, payment("k", "{}")).await;
        assert_eq!(
            (again.replayed(), again.header("idempotency-body"), effects.count()),
            (true, "not-kept", 1)
        );
    }
}

#[tokio::test]
async fn the_record_of_a_stream_is_there_before_its_first_byte_even_if_the_store_is_slow() {
    let store = MemoryStore::new();
    let finishing = Arc::new(Notify::new());
    let finishes = Arc::clone(&finishing);
    let faulty = Faulty::new(store.clone(), move |asked| {
        if asked != StoreCall::Finish {
            return Fault::None;
        }
        finishes.notify_one();
        Fault::Slow(Duration::from_millis(50))
    });
    let (app, chunks, _) = streaming(faulty, "text/event-stream", payments());
    chunks.send("data: 1\n\n").await.unwrap();
    let first = tokio::spawn(async move { app.oneshot(payment("k", "{}")).await.unwrap().into_body() });
    finishing.notified().await;
    assert_eq!(state(&store, "k").await, Some(State::InProgress));
    let mut body = first.await.unwrap();
    assert_eq!(state(&store, "k").await, Some(State::Completed));
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "data: 1\n\n");
}

#[tokio::test]
async fn a_response_that_outgrows_its_bound_while_it_comes_reaches_the_caller_whole() {
    let store = Clock::new().store();
    let (app, chunks, effects) = streaming(store.clone(), "text/plain", payments().response_bytes_max(8));
    let to = serve(app).await;
    let first = tokio::spawn(async move { crate::world::send(&client(), to, "k", "{}").await });
    for chunk in ["abcd", "efgh", "ijkl"] {
        // Within the bound nothing has left and nothing is recorded.
        assert_ne!(state(&store, "k").await, Some(State::Completed));
        chunks.send(chunk).await.unwrap();
    }
    crate::world::until(&store, "k", State::Completed).await;
    chunks.send("mnop").await.unwrap();
    drop(chunks);
    let first = first.await.unwrap();
    assert_eq!((first.status, &*first.body, effects.count()), (200, &b"abcdefghijklmnop"[..], 1));
    let again = crate::world::send(&client(), to, "k", "{}").await;
    assert_eq!((again.header("idempotency-body"), again.body.len()), ("not-kept", 0));
}

#[tokio::test(start_paused = true)]
async fn a_response_without_end_is_passed_on_when_its_time_is_up() {
    let store = Clock::new().store();
    let rule = payments().response_time_max(Duration::from_secs(3));
    let (app, chunks, _) = streaming(store.clone(), "application/x-ndjson", rule);
    chunks.send("1\n").await.unwrap();
    let mut body = app.oneshot(payment("k", "{}")).await.unwrap().into_body();
    assert_eq!(state(&store, "k").await, Some(State::Completed));
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "1\n");
    chunks.send("2\n").await.unwrap();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "2\n");
}

#[tokio::test]
async fn an_answer_that_breaks_off_half_way_says_what_is_known() {
    let (lost, uncertain) = ("IDEMPOTENCY_ANSWER_LOST", "IDEMPOTENCY_OUTCOME_UNCERTAIN");
    for (effect, said, code, retry, left) in [
        (Effect::Opaque, None, uncertain, "false", State::Uncertain),
        (Effect::Keyed, None, "IDEMPOTENCY_ATTEMPT_FAILED", "true", State::FailedRetryable),
        (Effect::Opaque, Some("applied"), lost, "false", State::Completed),
        (Effect::Keyed, Some("applied"), lost, "false", State::Completed),
    ] {
        let (store, effects) = (Clock::new().store(), Effects::default());
        let answer = move |_| {
            let half = stream::iter([Ok(Bytes::from("half of")), Err(std::io::Error::other("broke"))]);
            let response = Response::builder().status(201).header("location", "/payments/1");
            let response =
                said.into_iter().fold(response, |response, said| response.header("idempotency-effect", said));
            response.body(Body::from_stream(half)).unwrap()
        };
        let app = app(layer(store.clone(), payments().effect(effect)), &effects, answer);
        let first = app.clone().oneshot(payment("k", "{}")).await.unwrap();
        let (parts, body) = first.into_parts();
        let body =
            body.collect().await.unwrap_or_else(|error| panic!("{effect:?} {said:?}: {error}")).to_bytes();
        let first = Got { status: parts.status.as_u16(), headers: parts.headers, body };
        assert_eq!((first.status, first.code().as_str()), (502, code), "{effect:?} {said:?}");
        assert_eq!(first.header("x-should-retry"), retry);
        assert_eq!(state(&store, "k").await, Some(left), "{effect:?} {said:?}");
        if left == State::FailedRetryable {
            continue;
        }
        let again = call(&app, payment("k", "{}")).await;
        match left {
            // What it said is remembered, as far as it came.
            State::Completed => {
                assert_eq!((again.status, again.replayed(), again.body.len()), (201, true, 0));
                assert_eq!(
                    (again.header("idempotency-body"), again.header("location")),
                    ("not-kept", "/payments/1")
                );
            }
            _ => assert_eq!((again.status, again.code().as_str()), (409, uncertain)),
        }
        assert_eq!(effects.count(), 1);
    }
}

#[tokio::test]
async fn a_response_with_trailers_is_passed_on_and_not_kept() {
    let effects = Effects::default();
    let answer = |_| {
        let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), 0.into())]);
        let frames = [
            Ok::<_, Infallible>(http_body::Frame::data(Bytes::from("m"))),
            Ok(http_body::Frame::trailers(trailers)),
        ];
        Response::new(Body::new(StreamBody::new(stream::iter(frames))))
    };
    let app = app(layer(Clock::new().store(), payments()), &effects, answer);
    let first = app.clone().oneshot(payment("k", "{}")).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(first.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(first.to_bytes(), "m");
    assert_eq!(call(&app, payment("k", "{}")).await.header("idempotency-body"), "not-kept");
}
