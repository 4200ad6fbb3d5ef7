//! The stock service.

use std::path::Path;
use std::sync::Arc;

use axum::extract::{Path as Named, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, post};
use axum::{Json, Router};
use serde::Deserialize;

use super::faults::Faults;
use super::ledger::{Ledger, find, write};
use crate::Failed;
use crate::orders::participants::KEY;

/// Out of stock.
pub const SOLD_OUT: &str = "unicorn";

struct Stock {
    ledger: Ledger,
    faults: Faults,
}

#[derive(Deserialize)]
struct Hold {
    sku: String,
}

/// The service, on this ledger, with the faults of this seed.
pub fn router(ledger: &Path, seed: Option<u64>) -> Result<Router, Failed> {
    let stock = Stock { ledger: Ledger::open(ledger)?, faults: Faults::new(seed) };
    Ok(Router::new()
        .route("/holds", post(hold))
        .route("/holds/{key}", delete(release))
        .with_state(Arc::new(stock)))
}

async fn hold(State(stock): State<Arc<Stock>>, headers: HeaderMap, Json(hold): Json<Hold>) -> Response {
    let Some(key) = headers.get(KEY).and_then(|key| key.to_str().ok()).map(str::to_owned) else {
        return (StatusCode::BAD_REQUEST, "a hold needs an idempotency-key").into_response();
    };
    let effect = async {
        if hold.sku == SOLD_OUT {
            return (StatusCode::CONFLICT, "out of stock").into_response();
        }
        let held = stock.ledger.run(move |tx| {
            Ok(match (find(tx, "held", &key)?, find(tx, "released", &key)?) {
                (_, Some(_)) => None,
                (Some(id), None) => Some(id),
                (None, None) => Some(write(tx, "held", &key)?),
            })
        });
        match held.await {
            Ok(Some(id)) => (StatusCode::CREATED, format!("hold-{id}")).into_response(),
            Ok(None) => (StatusCode::CONFLICT, "this key was released before").into_response(),
            Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
        }
    };
    stock.faults.of(&format!("hold {}", hold.sku)).around(effect).await
}

async fn release(State(stock): State<Arc<Stock>>, Named(key): Named<String>) -> Response {
    let effect = async {
        // Also where nothing was held: then nothing ever is.
        let released = stock.ledger.run(move |tx| match find(tx, "released", &key)? {
            Some(id) => Ok(id),
            None => write(tx, "released", &key),
        });
        match released.await {
            Ok(_) => StatusCode::OK.into_response(),
            Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
        }
    };
    stock.faults.of("release").around(effect).await
}
