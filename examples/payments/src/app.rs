//! The service: two routes, and the layer that makes the first one happen once.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::HeaderName;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use semel::http::{ClaimHandle, IdempotencyLayer, Rule};
use semel::store::sqlite::SqliteStore;
use semel::{Found, Guard, Outcome, Preset};
use serde::Deserialize;

use crate::Failed;
use crate::bank::{Bank, Charge};

/// Whose request it is. Checked by whatever authenticates in front of this; keys of two merchants never meet.
pub(crate) const MERCHANT: HeaderName = HeaderName::from_static("x-merchant-id");

#[derive(Deserialize)]
struct Order {
    amount: i64,
}

/// `POST /payments` and `GET /payments/{id}`.
pub(crate) fn app(bank: Bank, guard: Guard<SqliteStore>) -> Result<Router, Failed> {
    let payment = Rule::on("POST /payments").name("payment.create").preset(Preset::Payment);
    let layer = IdempotencyLayer::builder(guard)
        .scope_header(MERCHANT)
        // The bank writes a charge down before it answers or breaks off, so its book may be believed at once.
        .rule(payment.lookup(look_up(bank.clone()), Duration::ZERO))
        .build()?;
    Ok(Router::new()
        .route("/payments", post(pay))
        .route("/payments/{id}", get(show))
        .with_state(bank)
        .layer(layer))
}

async fn pay(State(bank): State<Bank>, claim: ClaimHandle, Json(order): Json<Order>) -> Response {
    // The same reference on every attempt, so that the bank can be asked about it later.
    match bank.charge(claim.child("charge").as_str(), order.amount).await {
        Ok(charge) => (StatusCode::CREATED, Json(charge)).into_response(),
        // It may have happened: 502 says so, and the intent is in doubt from here on.
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

async fn show(State(bank): State<Bank>, Path(id): Path<i64>) -> Result<Json<Charge>, StatusCode> {
    let found = bank.get(id).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    found.map(Json).ok_or(StatusCode::NOT_FOUND)
}

/// What became of a payment nobody knows about: the bank's book says.
fn look_up(bank: Bank) -> impl semel::guard::Lookup {
    move |record: semel::store::Record| {
        let bank = bank.clone();
        async move {
            match bank.find(record.intent.child("charge").as_str()).await {
                Ok(Some(charge)) => match serde_json::to_vec(&charge) {
                    Ok(body) => {
                        Found::Applied(Outcome::new(201, body).header("content-type", "application/json"))
                    }
                    Err(_) => Found::Unknown,
                },
                Ok(None) => Found::NotApplied,
                Err(_) => Found::Unknown,
            }
        }
    }
}
