//! Time is virtual here: whatever a transport does, the budget holds.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use proptest::prelude::*;
use semel::http::client::decide::Why;
use semel::http::client::{ClientError, RetryLayer, RetryPolicy};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};

/// What a transport may do to one attempt.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Fail { after_ms: u64 },
    Hang,
    Answer { after_ms: u64, status: u16, retry_after: Option<u64> },
    Mismatch,
}

fn any_deed() -> impl Strategy<Value = Deed> {
    let status = prop::sample::select(vec![408, 425, 429, 500, 502, 503, 504]);
    prop_oneof![
        8 => (0..40_000u64).prop_map(|after_ms| Deed::Fail { after_ms }),
        2 => Just(Deed::Hang),
        8 => (0..40_000u64, status, prop::option::of(0..100u64))
            .prop_map(|(after_ms, status, retry_after)| Deed::Answer { after_ms, status, retry_after }),
        1 => Just(Deed::Mismatch),
    ]
}

async fn deed(deed: Deed) -> Result<Response<String>, std::io::Error> {
    match deed {
        Deed::Hang => std::future::pending().await,
        Deed::Fail { after_ms } => {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
        Deed::Answer { after_ms, status, retry_after } => {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            let response = Response::builder().status(status);
            let response = match retry_after {
                Some(seconds) => response.header("retry-after", seconds),
                None => response,
            };
            Ok(response.body(String::new()).unwrap())
        }
        Deed::Mismatch => Ok(Response::builder()
            .status(409)
            .header("idempotency-problem", "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST")
            .header("x-should-retry", "true")
            .body(String::new())
            .unwrap()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn budget_key_and_mismatch_hold_whatever_the_transport_does(
        deeds in prop::collection::vec(any_deed(), 1..12),
        attempts_max in 1..12u32,
        time_s in 1..120u64,
        retention_s in 1..200u64,
        seed: u64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let (result, sent, took) = runtime.block_on(async {
            let sent = Arc::new(Mutex::new(Vec::new()));
            let transport = service_fn({
                let (sent, deeds) = (sent.clone(), deeds.clone());
                let begin = Instant::now();
                move |request: Request<Full<Bytes>>| {
                    let mut sent = sent.lock().unwrap();
                    let next = deeds[sent.len() % deeds.len()];
                    sent.push((request.headers()["idempotency-key"].clone(), begin.elapsed(), next));
                    deed(next)
                }
            });
            let policy = RetryPolicy::default()
                .attempts_max(attempts_max)
                .time_max(Duration::from_secs(time_s))
                .retention(Duration::from_secs(retention_s));
            let chance = Mutex::new(fastrand::Rng::with_seed(seed));
            let client = RetryLayer::new(policy).random(move || chance.lock().unwrap().u64(..)).layer(transport);
            let begin = Instant::now();
            let request = Request::post("http://api/payments").body("x".to_owned()).unwrap();
            let result = client.oneshot(request).await;
            let sent = sent.lock().unwrap().clone();
            (result.map(|_| ()), sent, begin.elapsed())
        });
        // The clock of tokio's timers has whole milliseconds.
        let tick = Duration::from_millis(1) * (2 * attempts_max + 1);
        prop_assert!(took <= Duration::from_secs(time_s) + tick, "{took:?}");
        prop_assert!(sent.len() <= attempts_max as usize);
        prop_assert!(sent.iter().all(|(key, ..)| *key == sent[0].0));
        prop_assert!(sent.iter().all(|(_, at, _)| *at < Duration::from_secs(retention_s)));
        for (_, _, before) in sent.iter().rev().skip(1) {
            prop_assert!(!matches!(before, Deed::Mismatch), "a mismatch was retried");
        }
        let known = match result.unwrap_err() {
            ClientError::Refused(gave_up) => gave_up,
            ClientError::InDoubt(gave_up) => gave_up,
            other => return Err(TestCaseError::fail(other.to_string())),
        };
        prop_assert_eq!(known.attempts.len(), sent.len());
        prop_assert_ne!(known.why, Why::Answered);
    }
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_is_never_ready_was_never_sent_anything() {
    #[derive(Clone)]
    struct Full_;
    impl tower::Service<Request<Full<Bytes>>> for Full_ {
        type Response = Response<String>;
        type Error = std::io::Error;
        type Future = std::future::Ready<Result<Response<String>, std::io::Error>>;
        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Pending
        }
        fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
            panic!("called without being ready")
        }
    }
    let client = RetryLayer::default().layer(Full_);
    let error = client.send(Request::post("http://api/").body(String::new()).unwrap()).await.unwrap_err();
    assert!(matches!(error, ClientError::NotSent(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_large_answer_comes_whole_and_a_stream_at_once() {
    let large = "x".repeat(5_000);
    let policy = RetryPolicy::default().answer_bytes_max(1_000);
    let layer = RetryLayer::new(policy);
    let body = large.clone();
    let transport = service_fn(move |_: Request<Full<Bytes>>| {
        let body = body.clone();
        async { Ok::<_, std::io::Error>(Response::new(body)) }
    });
    let request = || Request::post("http://api/").body(String::new()).unwrap();
    let response = layer.layer(transport).send(request()).await.unwrap();
    assert_eq!(crate::script::text(response).await, large);

    // A stream whose end never comes is handed on at its beginning.
    let endless = service_fn(|_: Request<Full<Bytes>>| async {
        let body =
            axum::body::Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        Ok::<_, std::io::Error>(
            Response::builder().header("content-type", "text/event-stream").body(body).unwrap(),
        )
    });
    let response = layer.layer(endless).send(request()).await.unwrap();
    assert_eq!(crate::script::attempts(&response), 1);
}
