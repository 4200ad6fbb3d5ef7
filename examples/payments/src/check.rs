//! What `cargo run -p payments` shows: the same requests again and again, and what the books say.

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use semel::Key;
use serde_json::Value;
use tower::ServiceExt;

use crate::Failed;
use crate::app::MERCHANT;

/// Three orders, less one refund, and one payment by card.
const TAKEN: i64 = 3 * 4200 - 1000 + 2000;

/// What came back.
struct Answer {
    status: StatusCode,
    replayed: bool,
    body: Value,
}

/// A merchant's client. Each is a new merchant, so that it may be run again on the same database.
struct Client<'a> {
    app: &'a Router,
    merchant: String,
}

/// Asks for everything several times over and checks what comes back. Prints what it does.
pub async fn check(app: &Router) -> Result<(), Failed> {
    let client = Client { app, merchant: format!("check-{}", Key::random().as_str()) };
    println!("three orders of 42 EUR, each asked for three times, twice at once:");
    let mut last = String::new();
    for order in ["order-1001", "order-1002", "order-1003"] {
        let pay = || client.post("/api/v1/payments", order, r#"{"amount": 4200, "customer": "ana"}"#);
        let (one, two) = tokio::join!(pay(), pay());
        let answers = [one?, two?, pay().await?];
        for Answer { status, replayed, body } in &answers {
            println!("  {order}: {status} {}{}", body["id"], if *replayed { " (again)" } else { "" });
            ensure(*status == StatusCode::CREATED, "every request is answered")?;
            ensure(body == &answers[0].body, "every answer names the same payment")?;
        }
        ensure(answers.iter().filter(|answer| !answer.replayed).count() == 1, "it was booked once")?;
        last = answers[0].body["id"].as_str().unwrap_or_default().to_owned();
    }

    println!("the same key for another amount:");
    let other =
        client.post("/api/v1/payments", "order-1001", r#"{"amount": 9900, "customer": "ana"}"#).await?;
    println!("  order-1001: {}", other.status);
    ensure(other.status == StatusCode::CONFLICT, "a key stands for one request")?;

    println!("10 EUR of the last one back, asked for twice; then more than is left:");
    let refunds = format!("/api/v1/payments/{last}/refunds");
    for (key, body, wanted) in [
        ("refund-1", r#"{"amount": 1000}"#, StatusCode::CREATED),
        ("refund-1", r#"{"amount": 1000}"#, StatusCode::CREATED),
        ("refund-2", r#"{"amount": 3201}"#, StatusCode::UNPROCESSABLE_ENTITY),
    ] {
        let answer = client.post(&refunds, key, body).await?;
        println!("  {key}: {}{}", answer.status, if answer.replayed { " (again)" } else { "" });
        ensure(answer.status == wanted, "a refund is booked once, and never more than was paid")?;
    }

    println!("20 EUR by card, asked for twice; then more than the card is good for, twice:");
    for (key, body, wanted) in [
        ("card-1", r#"{"amount": 2000, "customer": "ana", "method": "card"}"#, StatusCode::CREATED),
        (
            "card-2",
            r#"{"amount": 2000000, "customer": "ana", "method": "card"}"#,
            StatusCode::PAYMENT_REQUIRED,
        ),
    ] {
        for again in [false, true] {
            let answer = client.post("/api/v1/payments", key, body).await?;
            println!("  {key}: {}{}", answer.status, if answer.replayed { " (again)" } else { "" });
            ensure(answer.status == wanted && answer.replayed == again, "a card is asked once")?;
        }
    }

    let found = client.get("/api/v1/payments/by-key/order-1003").await?;
    ensure(found.body["id"] == last.as_str() && found.body["refunded"] == 1000, "it is found by its key")?;
    let [revenue, ana] = ["revenue", "ana"].map(|name| format!("/api/v1/accounts/{name}/balance"));
    let (revenue, ana) = (client.get(&revenue).await?.body, client.get(&ana).await?.body);
    println!("balances: revenue {}, ana {}", revenue["balance"], ana["balance"]);
    ensure(revenue["balance"] == TAKEN && ana["balance"] == -TAKEN, "the books are right")
}

impl Client<'_> {
    async fn post(&self, path: &str, key: &str, body: &'static str) -> Result<Answer, Failed> {
        let request = Request::post(path)
            .header("idempotency-key", key)
            .header("content-type", "application/json")
            .body(Body::from(body))?;
        self.send(request).await
    }

    async fn get(&self, path: &str) -> Result<Answer, Failed> {
        self.send(Request::builder().method(Method::GET).uri(path).body(Body::empty())?).await
    }

    async fn send(&self, mut request: Request<Body>) -> Result<Answer, Failed> {
        request.headers_mut().insert(MERCHANT, self.merchant.parse()?);
        let (parts, body) = self.app.clone().oneshot(request).await?.into_parts();
        let body = serde_json::from_slice(&body.collect().await?.to_bytes())?;
        let replayed = parts.headers.contains_key("idempotency-replayed");
        Ok(Answer { status: parts.status, replayed, body })
    }
}

fn ensure(holds: bool, what: &str) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(format!("does not hold: {what}").into()) }
}
