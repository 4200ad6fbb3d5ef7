//! The route of orders: the same key is the same order, and gets the same answer.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use semel::saga::sql::SqlJournal;
use semel::saga::{Registered, SagaEnd, SagaError, SagaOptions, Sagas, SagasBuilder};
use semel::{Key, Scope};
use serde_json::{Value, json};

use super::participants::KEY;
use super::saga::{Shop, place_order};
use super::{Purchase, Receipt, tables};
use crate::Failed;
use crate::app::MERCHANT;

/// How often the journal is asked for sagas that other processes left.
const POLL: Duration = Duration::from_millis(250);

/// The orders of one process.
#[derive(Clone, Debug)]
pub struct Orders {
    sagas: Sagas<Shop>,
    registered: Registered<Purchase, Receipt>,
}

impl Orders {
    /// Opens the database, and starts this process as a worker of its sagas.
    pub async fn open(url: &str, shop: Shop) -> Result<Self, Failed> {
        tables::migrate(url).await?;
        let mut options = SagaOptions::default();
        options.poll_interval = POLL;
        let mut sagas = SagasBuilder::new(SqlJournal::open(url).await?, shop).options(options);
        let registered = sagas.register(place_order)?;
        Ok(Self { sagas: sagas.start(), registered })
    }

    /// The route.
    pub fn router(&self) -> Router {
        Router::new().route("/api/v1/orders", post(place)).with_state(Arc::new(self.clone()))
    }

    /// Before the process ends: others go on at once with what this one has begun.
    pub async fn drain(&self) {
        self.sagas.drain(Duration::from_secs(10)).await;
    }

    async fn place(&self, merchant: &str, key: &str, purchase: &Purchase) -> Result<Answer, Failed> {
        let (scope, key) = (Scope::tenant(merchant)?, Key::new(key)?);
        Ok(answer(self.sagas.once(&self.registered, &scope, &key, purchase).await))
    }
}

type Answer = (StatusCode, Json<Value>);

/// What a client is answered.
fn answer(end: Result<SagaEnd<Receipt>, SagaError>) -> Answer {
    let (status, body) = match end {
        Ok(SagaEnd::Completed(receipt)) => (StatusCode::CREATED, json!(receipt)),
        Ok(SagaEnd::Undone { why, .. }) => (StatusCode::UNPROCESSABLE_ENTITY, json!({ "error": why })),
        Ok(SagaEnd::Abandoned) => (StatusCode::GONE, json!({ "error": "the order was ended by hand" })),
        Err(error @ SagaError::Mismatch) => (StatusCode::CONFLICT, json!({ "error": error.to_string() })),
        Err(error @ SagaError::TooLarge { .. }) => {
            (StatusCode::PAYLOAD_TOO_LARGE, json!({ "error": error.to_string() }))
        }
        // The order is in the journal and comes to its end. The same key asks for it again.
        Err(error @ (SagaError::Parked { .. } | SagaError::UnderWay { .. })) => {
            (StatusCode::ACCEPTED, json!({ "status": error.to_string() }))
        }
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, json!({ "error": error.to_string() })),
    };
    (status, Json(body))
}

async fn place(State(orders): State<Arc<Orders>>, headers: HeaderMap, purchase: Json<Purchase>) -> Answer {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let placed = orders.place(header(MERCHANT.as_str()), header(KEY), &purchase).await;
    placed.unwrap_or_else(|error| (StatusCode::BAD_REQUEST, Json(json!({ "error": error.to_string() }))))
}
