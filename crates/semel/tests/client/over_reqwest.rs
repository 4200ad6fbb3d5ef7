//! The same over reqwest.

use semel::http::client::{ClientError, IdempotentClient, ResponseClass};

use crate::script::*;

#[tokio::test]
async fn retries_and_what_is_known_are_the_same_over_reqwest() {
    let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let client = IdempotentClient::reqwest(http).with_policy(policy());

    let steps = [Step::ReadAndClose, Step::HalfAnswer, answer(503), answer(201)];
    let script = Script::start(steps).await;
    let response = client.send(payment(script.uri(), "order-1")).await.unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (201, 4));
    assert_eq!(text(response).await, "done");
    script.assert_one_intent("order-1");

    let (_kept, gone) = closed_port();
    let error = client.send(payment(format!("http://{gone}/"), "order-1")).await.unwrap_err();
    let ClientError::NotSent(gave_up) = error else { panic!("{error}") };
    assert!(gave_up.attempts.iter().all(|attempt| attempt.seen == ResponseClass::NotSent));

    let script = Script::start([Step::ReadAndClose]).await;
    let error = client.send(payment(script.uri(), "order-1")).await.unwrap_err();
    assert!(matches!(error, ClientError::InDoubt(_)), "{error}");
}
