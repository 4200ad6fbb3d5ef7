//! The events, appended in the transaction that books: an event exists exactly when its payment does.
//!
//! | topic | type | for |
//! |---|---|---|
//! | `payments` | `payment.completed`, `payment.refunded` | services that ship, mail or count |
//! | `audit` | `payment.recorded`, `refund.recorded` | people who ask later who did what under which key |
//!
//! All events of a payment have its id as their key, so a refund never overtakes its payment.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use semel::Intent;
use semel::outbox::{Event, EventError};
use serde_json::json;

use crate::api::{Payment, Refund};

/// The topic of payments and refunds.
pub const PAYMENTS: &str = "payments";
/// The topic of who asked for what.
pub const AUDIT: &str = "audit";

const TRACE_PARENT: &str = "traceparent";

/// The W3C trace context of a request, if it has one.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Trace(pub Option<String>);

impl<S: Sync> FromRequestParts<S> for Trace {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let given = parts.headers.get(TRACE_PARENT).and_then(|value| value.to_str().ok());
        Ok(Self(given.map(str::to_owned)))
    }
}

/// The events of a payment.
pub fn paid(intent: &Intent, trace: &Trace, payment: &Payment) -> Result<[Event; 2], EventError> {
    let Payment { id, customer, amount, currency, .. } = payment;
    let merchant = intent.scope().as_str();
    let payload = json!({
        "payment": id, "merchant": merchant, "customer": customer, "amount": amount, "currency": currency,
    });
    let completed = Event::new(PAYMENTS, "payment.completed", payload.to_string())?;
    let recorded = Event::new(AUDIT, "payment.recorded", asked(intent, id, *amount))?;
    Ok([caused(completed, id, intent, trace)?, caused(recorded, id, intent, trace)?])
}

/// The events of a refund.
pub fn refunded(intent: &Intent, trace: &Trace, refund: &Refund) -> Result<[Event; 2], EventError> {
    let Refund { id, payment, amount, currency } = refund;
    let merchant = intent.scope().as_str();
    let payload = json!({
        "refund": id, "payment": payment, "merchant": merchant, "amount": amount, "currency": currency,
    });
    let back = Event::new(PAYMENTS, "payment.refunded", payload.to_string())?;
    let recorded = Event::new(AUDIT, "refund.recorded", asked(intent, id, *amount))?;
    Ok([caused(back, payment, intent, trace)?, caused(recorded, payment, intent, trace)?])
}

/// Who asked for what, and under which key.
fn asked(intent: &Intent, made: &str, amount: i64) -> String {
    let (merchant, operation, key) =
        (intent.scope().as_str(), intent.operation().as_str(), intent.key().as_str());
    json!({ "merchant": merchant, "operation": operation, "key": key, "made": made, "amount": amount })
        .to_string()
}

fn caused(event: Event, payment: &str, intent: &Intent, trace: &Trace) -> Result<Event, EventError> {
    let event = event.key(payment)?.aggregate("payment", payment)?.caused_by(intent);
    Ok(match &trace.0 {
        // An unreadable trace is no reason to refuse a payment.
        Some(trace) => event.clone().trace_parent(trace).unwrap_or(event),
        None => event,
    })
}
