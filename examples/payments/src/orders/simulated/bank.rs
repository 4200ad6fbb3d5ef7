//! The bank.

use std::path::Path;
use std::sync::Arc;

use axum::extract::{Path as Named, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;

use super::faults::Faults;
use super::ledger::{Ledger, find, write};
use crate::Failed;

/// No card is good for more, in cents.
pub const LIMIT: i64 = 1_000_000;

struct Bank {
    ledger: Ledger,
    faults: Faults,
}

#[derive(Deserialize)]
struct Charge {
    cents: i64,
    reference: String,
}

/// The bank, on this ledger, with the faults of this seed.
pub fn router(ledger: &Path, seed: Option<u64>) -> Result<Router, Failed> {
    let bank = Bank { ledger: Ledger::open(ledger)?, faults: Faults::new(seed) };
    Ok(Router::new()
        .route("/charges", post(charge))
        .route("/charges/{reference}", get(look_up))
        .with_state(Arc::new(bank)))
}

async fn charge(State(bank): State<Arc<Bank>>, Json(charge): Json<Charge>) -> Response {
    let Charge { cents, reference } = charge;
    let effect = async {
        if cents > LIMIT {
            return (StatusCode::PAYMENT_REQUIRED, "the card was declined").into_response();
        }
        match bank.ledger.run(move |tx| write(tx, "charged", &reference)).await {
            Ok(id) => (StatusCode::CREATED, format!("ch_{id}")).into_response(),
            Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
        }
    };
    bank.faults.of(&format!("charge {cents}")).around(effect).await
}

async fn look_up(State(bank): State<Arc<Bank>>, Named(reference): Named<String>) -> Response {
    match bank.ledger.run(move |tx| find(tx, "charged", &reference)).await {
        Ok(Some(id)) => (StatusCode::OK, format!("ch_{id}")).into_response(),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}
