//! A payment by card: two phases, and the remote call between them.
//!
//! ```text
//!  begin ─▶ claim, reserve ─▶ commit    provider.charge(derived key)    begin ─▶ book, answer ─▶ commit
//!                                 └──────── killed here: resumes here ────────┘
//! ```
//!
//! A retry after a crash resumes behind the last phase that was committed, and calls the provider with the same key.

use std::time::Duration;

use axum::http::{Response, StatusCode, header};
use bytes::Bytes;
use semel::Key;
use semel::http::ClaimHandle;
use semel::tx::{PhaseRun, Phases, TxError};
use serde_json::json;

use crate::api::{self, Payment, Refused};
use crate::provider::{Charged, Provider};

/// Records what is about to be charged.
pub const RESERVE: &str = "reserve";
/// Books what was charged.
pub const BOOK: &str = "book";
/// The provider's name in the references.
pub const PROVIDER: &str = "cards";

/// How long the provider may take.
const CHARGE_MAX: Duration = Duration::from_secs(3);
/// The lease of a run: longer than the provider may take.
const LEASE: Duration = Duration::from_secs(5);

/// The phases of a payment by card.
pub fn phases(claim: &ClaimHandle) -> Result<Phases, TxError<Refused>> {
    Ok(claim.phases(&[RESERVE, BOOK]).map_err(TxError::or_work)?.lease(LEASE))
}

/// The key of the charge: the same on every retry, and unique to this payment.
pub fn key(run: &PhaseRun) -> Key {
    run.child("charge")
}

/// Charges the card. An error on the way does not mean that it failed: the retry asks again with the same key.
pub async fn charge(provider: &Provider, key: Key, amount: i64) -> Result<Charged, TxError<Refused>> {
    let unknown = |why: String| TxError::Work(Refused::Database(format!("the card provider: {why}")));
    match tokio::time::timeout(CHARGE_MAX, provider.charge(key, amount)).await {
        Ok(charged) => charged.map_err(|error| unknown(error.to_string())),
        Err(_) => Err(unknown(format!("no answer within {CHARGE_MAX:?}"))),
    }
}

/// The answer of the last phase, for both books. Declined is an answer, too, and stays one.
pub fn answer(charged: &Charged, payment: &Payment) -> Result<Response<Bytes>, Refused> {
    match charged {
        Charged::Paid(_) => api::created(payment),
        Charged::Declined => {
            let mut response =
                Response::new(Bytes::from(json!({ "error": "the card was declined" }).to_string()));
            *response.status_mut() = StatusCode::PAYMENT_REQUIRED;
            let json = header::HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            Ok(response)
        }
    }
}
