//! What is remembered, what may run again, and what is unknown.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{Request, Response};
use semel::guard::WorkResult;
use semel::http::{BufferedBody, ClaimHandle, On5xx};
use semel::{Effect, Preset, State};
use tower::{Service, ServiceExt};

use crate::world::{Clock, Effects, app, call, charged, layer, payment, payments, state, status};

#[tokio::test]
async fn each_status_is_remembered_repeated_or_held() {
    use State::{Completed, FailedFinal, FailedRetryable, Uncertain};
    for (code, left) in [
        (200, Completed),
        (303, Completed),
        (404, FailedFinal),
        (422, FailedFinal),
        (401, FailedRetryable),
        (403, FailedRetryable),
        (408, FailedRetryable),
        (425, FailedRetryable),
        (429, FailedRetryable),
        (500, FailedRetryable),
        (501, FailedRetryable),
        (503, Uncertain),
        (504, Uncertain),
        (522, Uncertain),
    ] {
        let (store, effects) = (Clock::new().store(), Effects::default());
        let app = app(layer(store.clone(), payments()), &effects, move |_| status(code));
        let first = call(&app, payment("k", "{}")).await;
        assert_eq!((first.status, first.body), (code, format!("status {code}").into()), "the answer passes");
        assert_eq!(state(&store, "k").await, Some(left), "{code}");
        let again = call(&app, payment("k", "{}")).await;
        let (status, replayed, count) = match left {
            Completed | FailedFinal => (code, true, 1),
            FailedRetryable => (code, false, 2),
            _ => (409, false, 1),
        };
        assert_eq!((again.status, again.replayed(), effects.count()), (status, replayed, count), "{code}");
    }
}

#[tokio::test]
async fn a_5xx_is_what_the_operation_says() {
    for (rule, left) in [
        (payments().on_5xx(On5xx::Hold), State::Uncertain),
        (payments().on_5xx(On5xx::Replay), State::FailedFinal),
        (payments().preset(Preset::Payment), State::Uncertain),
        (payments().preset(Preset::Order), State::FailedRetryable),
        (payments().failures(|_| WorkResult::Completed), State::Completed),
        (payments().on_5xx(On5xx::Hold).effect(Effect::Keyed), State::Uncertain),
    ] {
        let (store, effects) = (Clock::new().store(), Effects::default());
        let app = app(layer(store.clone(), rule), &effects, |_| status(500));
        call(&app, payment("k", "{}")).await;
        assert_eq!(state(&store, "k").await, Some(left));
    }
}

#[tokio::test]
async fn a_keyed_effect_runs_again_where_an_opaque_one_is_uncertain() {
    for (effect, count) in [(Effect::Opaque, 1), (Effect::Keyed, 2)] {
        let effects = Effects::default();
        let answer = |n| if n == 1 { status(502) } else { charged(n) };
        let app = app(layer(Clock::new().store(), payments().effect(effect)), &effects, answer);
        call(&app, payment("k", "{}")).await;
        call(&app, payment("k", "{}")).await;
        assert_eq!(effects.count(), count);
    }
}

#[tokio::test]
async fn a_panic_is_a_500_and_leaves_an_opaque_effect_uncertain() {
    for (effect, left, code, retry) in [
        (Effect::Opaque, State::Uncertain, "IDEMPOTENCY_OUTCOME_UNCERTAIN", "false"),
        (Effect::Keyed, State::FailedRetryable, "IDEMPOTENCY_ATTEMPT_FAILED", "true"),
    ] {
        let (store, effects) = (Clock::new().store(), Effects::default());
        let app =
            app(layer(store.clone(), payments().effect(effect)), &effects, |_| panic!("at the worst moment"));
        let got = call(&app, payment("k", "{}")).await;
        assert_eq!((got.status, got.code().as_str(), got.header("x-should-retry")), (500, code, retry));
        assert_eq!(state(&store, "k").await, Some(left));
    }
}

#[tokio::test(start_paused = true)]
async fn work_beyond_its_time_is_a_504_and_uncertain() {
    let store = Clock::new().store();
    let rule = payments().timeout(std::time::Duration::from_secs(3));
    let never = || std::future::pending::<&'static str>();
    let app = Router::new().route("/payments", post(never)).layer(layer(store.clone(), rule));
    let got = call(&app, payment("k", "{}")).await;
    assert_eq!((got.status, got.code().as_str()), (504, "IDEMPOTENCY_OUTCOME_UNCERTAIN"));
    assert_eq!(state(&store, "k").await, Some(State::Uncertain));
}

/// What the handler does after it has said what it knows.
#[derive(Clone, Copy, Debug)]
enum Then {
    Answers(u16),
    Panics,
}

#[tokio::test]
async fn a_handler_is_believed_about_its_effect() {
    for (applied, then, left, first, again) in [
        (true, Then::Answers(500), State::Completed, 500, 500),
        (true, Then::Answers(502), State::Completed, 502, 502),
        (true, Then::Panics, State::Completed, 500, 500),
        (false, Then::Answers(502), State::FailedRetryable, 502, 502),
        (false, Then::Answers(422), State::FailedRetryable, 422, 422),
        (false, Then::Panics, State::FailedRetryable, 500, 500),
    ] {
        let (store, effects) = (Clock::new().store(), Effects::default());
        let happened = effects.clone();
        let handler = move |request: Request<Body>| async move {
            happened.happen();
            let claim = request.extensions().get::<ClaimHandle>().cloned().unwrap();
            if applied {
                claim.mark_applied()
            } else {
                claim.mark_not_applied()
            }
            match then {
                Then::Answers(code) => status(code),
                Then::Panics => panic!("after the mark"),
            }
        };
        let app = Router::new().route("/payments", post(handler)).layer(layer(store.clone(), payments()));
        let got = call(&app, payment("k", "{}")).await;
        assert_eq!((got.status, state(&store, "k").await), (first, Some(left)), "{applied} {then:?}");
        let retry = call(&app, payment("k", "{}")).await;
        assert_eq!(
            (retry.status, retry.replayed(), effects.count()),
            (again, applied, if applied { 1 } else { 2 })
        );
        if let (true, Then::Panics) = (applied, then) {
            assert_eq!(
                (retry.header("idempotency-problem"), retry.header("x-should-retry")),
                ("IDEMPOTENCY_ANSWER_LOST", "false")
            );
            assert_eq!(retry.body, got.body);
        }
    }
}

#[tokio::test]
async fn a_service_may_say_it_in_a_header_that_clients_do_not_see() {
    for (said, left) in [
        ("applied", State::Completed),
        ("not-applied", State::FailedRetryable),
        ("perhaps", State::Uncertain),
    ] {
        let (store, effects) = (Clock::new().store(), Effects::default());
        let answer = move |_| {
            let mut response = status(504);
            response.headers_mut().insert("idempotency-effect", said.parse().unwrap());
            response
        };
        let app = app(layer(store.clone(), payments()), &effects, answer);
        let got = call(&app, payment("k", "{}")).await;
        assert_eq!((got.status, got.header("idempotency-effect")), (504, ""));
        assert_eq!(state(&store, "k").await, Some(left), "{said}");
    }
}

#[tokio::test]
async fn the_refusal_of_another_semel_further_in_is_not_remembered() {
    let (store, effects) = (Clock::new().store(), Effects::default());
    let inner_store = Clock::new().store();
    let happened = effects.clone();
    // The inner one is uncertain; an operator decides there; then the outer one must not stand in the way.
    let handler = move || async move { if happened.happen() == 1 { status(502) } else { charged(2) } };
    let inner = Router::new().route("/payments", post(handler)).layer(layer(inner_store.clone(), payments()));
    let outer = inner.layer(layer(store.clone(), payments().effect(Effect::Keyed)));
    assert_eq!(call(&outer, payment("k", "{}")).await.status, 502);
    for _ in 0..2 {
        let got = call(&outer, payment("k", "{}")).await;
        assert_eq!((got.code().as_str(), got.replayed()), ("IDEMPOTENCY_OUTCOME_UNCERTAIN", false));
    }
    use semel::store::{Decide, Store};
    let record = crate::world::record(&inner_store, "k").await.unwrap();
    let (ruling, retention) = (semel::intent::state::Ruling::NotApplied, semel::Retention::DAY);
    let (by, why) = ("ada".to_owned(), "looked".to_owned());
    let decide = Decide { seen: record.head.epoch, ruling, outcome: None, retention, by, why };
    inner_store.decide(record.intent.id(), decide).await.unwrap();
    assert_eq!(call(&outer, payment("k", "{}")).await.body, "charged 2");
    assert!(call(&outer, payment("k", "{}")).await.replayed());
}

#[tokio::test]
async fn an_error_of_the_service_passes_and_its_fate_is_unknown() {
    #[derive(Clone)]
    struct Breaks;
    impl Service<Request<BufferedBody<Body>>> for Breaks {
        type Response = Response<Body>;
        type Error = &'static str;
        type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, &'static str>> + Send>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, request: Request<BufferedBody<Body>>) -> Self::Future {
            let claim = request.extensions().get::<ClaimHandle>().cloned().unwrap();
            Box::pin(async move {
                if claim.intent().key().as_str() == "refused" {
                    claim.mark_not_applied();
                }
                Err("connection reset")
            })
        }
    }
    let store = Clock::new().store();
    let service = tower::Layer::layer(&layer(store.clone(), payments()), Breaks);
    for (key, left) in [("k", State::Uncertain), ("refused", State::FailedRetryable)] {
        let error = service.clone().oneshot(payment(key, "{}")).await.unwrap_err();
        assert_eq!((error, state(&store, key).await), ("connection reset", Some(left)));
    }
    let again = crate::world::read(service.oneshot(payment("k", "{}")).await.unwrap()).await;
    assert_eq!(again.code(), "IDEMPOTENCY_OUTCOME_UNCERTAIN");
}

#[tokio::test]
async fn a_handler_knows_its_attempt_and_has_the_same_keys_on_every_one() {
    let (seen, mut attempts) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |request: Request<Body>| async move {
        let claim = request.extensions().get::<ClaimHandle>().cloned().unwrap();
        let attempt = claim.attempt();
        seen.send((attempt, claim.child("charge"), claim.epoch().unwrap())).unwrap();
        if attempt == 1 { status(500) } else { charged(attempt) }
    };
    let app = Router::new().route("/payments", post(handler)).layer(layer(Clock::new().store(), payments()));
    for code in [500, 201] {
        assert_eq!(call(&app, payment("k", "{}")).await.status, code);
    }
    let (one, two) = (attempts.recv().await.unwrap(), attempts.recv().await.unwrap());
    assert_eq!((one.0, two.0), (1, 2));
    assert!(one.1 == two.1 && one.2 < two.2);
}
