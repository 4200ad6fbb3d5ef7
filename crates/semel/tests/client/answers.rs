//! What is tried again over real connections, and what comes of it.

use std::time::{Duration, SystemTime};

use semel::Key;
use semel::http::Code;
use semel::http::client::decide::Why;
use semel::http::client::{ClientError, FirstSent, ResponseClass};

use crate::script::*;

#[tokio::test]
async fn what_passes_is_tried_again_until_there_is_an_answer() {
    let in_progress = "IDEMPOTENCY_REQUEST_IN_PROGRESS";
    let by_body = Step::Answer(
        409,
        vec![("content-type", "application/problem+json".into())],
        r#"{"code":"IDEMPOTENCY_REQUEST_IN_PROGRESS"}"#,
    );
    for step in [
        Step::CloseAtOnce,
        Step::ReadAndClose,
        Step::HalfAnswer,
        answer(408),
        answer(425),
        answer(429),
        answer(500),
        answer(502),
        Step::Answer(503, vec![("retry-after", "0".into())], "busy"),
        Step::Answer(503, vec![("retry-after", httpdate::fmt_http_date(SystemTime::now()))], "busy"),
        problem(409, in_progress),
        by_body,
        problem(409, "IDEMPOTENCY_ATTEMPT_FAILED"),
        Step::Answer(409, vec![("stripe-should-retry", "true".into())], ""),
        Step::Answer(404, vec![("x-should-retry", "true".into())], ""),
    ] {
        let script = Script::start([step.clone(), step, answer(201)]).await;
        let response = client(policy()).send(payment(script.uri(), "order-1")).await.unwrap();
        assert_eq!((response.status().as_u16(), attempts(&response)), (201, 3));
        assert_eq!(text(response).await, "done");
        script.assert_one_intent("order-1");
    }
}

#[tokio::test]
async fn what_does_not_pass_is_asked_once() {
    for step in [
        answer(200),
        answer(400),
        answer(404),
        answer(409),
        answer(422),
        Step::Answer(501, vec![("x-should-retry", "false".into())], ""),
        Step::Answer(500, vec![("idempotency-replayed", "true".into())], ""),
    ] {
        let script = Script::start([step, answer(299)]).await;
        let response = client(policy()).send(payment(script.uri(), "order-1")).await.unwrap();
        assert_ne!(response.status().as_u16(), 299);
        assert_eq!((attempts(&response), script.arrived().len()), (1, 1));
    }
}

#[tokio::test]
async fn a_mismatch_and_a_doubt_are_not_tried_again() {
    for status in [409, 422, 400] {
        let script = Script::start([problem(status, Code::Reused.as_str()), answer(299)]).await;
        let error = client(policy()).send(payment(script.uri(), "order-1")).await.unwrap_err();
        let ClientError::Refused(gave_up) = error else { panic!("{error}") };
        assert_eq!(gave_up.response.unwrap().status().as_u16(), status);
        assert_eq!((gave_up.why, gave_up.attempts.count()), (Why::Mismatch, 1));
    }
    let script = Script::start([problem(409, Code::Uncertain.as_str()), answer(299)]).await;
    let error = client(policy()).send(payment(script.uri(), "order-1")).await.unwrap_err();
    let ClientError::InDoubt(gave_up) = error else { panic!("{error}") };
    assert_eq!((gave_up.why, script.arrived().len()), (Why::Uncertain, 1));
}

#[tokio::test]
async fn done_with_its_answer_lost_is_no_refusal() {
    let script =
        Script::start([Step::ReadAndClose, problem(500, Code::AnswerLost.as_str()), answer(299)]).await;
    let error = client(policy()).send(payment(script.uri(), "order-1")).await.unwrap_err();
    assert!(error.to_string().contains("took effect"), "{error}");
    let ClientError::AnswerLost(gave_up) = error else { panic!("{error}") };
    assert_eq!((gave_up.why, gave_up.attempts.count()), (Why::AnswerLost, 2));
    assert_eq!(gave_up.response.unwrap().status(), 500);
}

#[tokio::test]
async fn giving_up_says_what_is_known() {
    let (_kept, gone) = closed_port();
    let error = client(policy()).send(payment(format!("http://{gone}/"), "order-1")).await.unwrap_err();
    let ClientError::NotSent(gave_up) = error else { panic!("{error}") };
    assert!(gave_up.attempts.iter().all(|attempt| attempt.seen == ResponseClass::NotSent));
    assert_eq!((gave_up.why, gave_up.attempts.count()), (Why::Attempts, 5));

    let script = Script::start([Step::ReadAndClose]).await;
    let error = client(policy()).send(payment(script.uri(), "order-1")).await.unwrap_err();
    assert!(error.to_string().contains("may have taken effect"), "{error}");
    let ClientError::InDoubt(gave_up) = error else { panic!("{error}") };
    assert_eq!(gave_up.key, Key::new("order-1").unwrap());
    assert!(gave_up.response.is_none() && gave_up.source.is_some());
    script.assert_one_intent("order-1");

    let script = Script::start([answer(429)]).await;
    let error = client(policy()).send(payment(script.uri(), "order-1")).await.unwrap_err();
    let ClientError::Refused(gave_up) = error else { panic!("{error}") };
    assert_eq!(gave_up.response.unwrap().body(), "done");

    // The token ran out between two attempts: the second says nothing about the first.
    let script = Script::start([Step::ReadAndClose, answer(401)]).await;
    let error = client(policy()).send(payment(script.uri(), "order-1")).await.unwrap_err();
    let ClientError::InDoubt(gave_up) = error else { panic!("{error}") };
    assert_eq!(gave_up.response.unwrap().status(), 401);
}

#[tokio::test]
async fn an_attempt_without_an_answer_is_cut_off_and_repeated() {
    let script = Script::start([Step::Hang, answer(200)]).await;
    let policy = policy().attempt_timeout(Duration::from_secs(10));
    let response = client(policy).send(payment(script.uri(), "order-1")).await.unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (200, 2));
    script.assert_one_intent("order-1");
}

#[tokio::test]
async fn going_on_later_keeps_the_key_and_the_doubt() {
    let script = Script::start([Step::ReadAndClose, answer(403)]).await;
    let once = client(policy().attempts_max(1));
    let ClientError::InDoubt(gave_up) = once.send(payment(script.uri(), "order-1")).await.unwrap_err() else {
        panic!()
    };
    let again = |since: SystemTime| {
        let mut request = payment(script.uri(), gave_up.key.as_str());
        request.extensions_mut().insert(FirstSent(since));
        request
    };
    let error = once.send(again(SystemTime::now())).await.unwrap_err();
    assert!(matches!(error, ClientError::InDoubt(_)), "{error}");
    assert_eq!(script.arrived().len(), 2);
    script.assert_one_intent("order-1");

    // So late that the server may have forgotten: not one more.
    let error = once.send(again(SystemTime::now() - Duration::from_secs(24 * 3_600))).await.unwrap_err();
    let ClientError::InDoubt(gave_up) = error else { panic!("{error}") };
    assert_eq!((gave_up.why, gave_up.attempts.count()), (Why::Retention, 0));
    assert_eq!(script.arrived().len(), 2);
}
