//! The routes, and the layer in front of them that replays earlier answers.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::header::HeaderName;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use semel::http::{ClaimHandle, IdempotencyLayer, Rule};
use semel::store::Store;
use semel::tx::TxError;
use semel::{Effect, Guard, InFlight, Preset, Scope};

use crate::Failed;
use crate::api::{Balance, CURRENCY, Method, Order, Payment, RefundOrder, Refused};
use crate::books::{Booked, Books};
use crate::events::Trace;
use crate::provider::Provider;

/// The merchant of a request. Checked by the authentication in front of this service; keys and payments of two
/// merchants never mix.
pub const MERCHANT: HeaderName = HeaderName::from_static("x-merchant-id");

/// How long a second request waits for the first one's transaction before it gets "in progress".
const IN_FLIGHT: Duration = Duration::from_secs(2);

/// The service over its books. The guard's store is the database the books are in: the layer only reads there what
/// the handlers' transactions committed.
pub fn app<B: Books, S: Store>(
    books: B,
    guard: Guard<S>,
    provider: Option<Provider>,
) -> Result<Router, Failed> {
    let atomic = |route: &str, name: &str| {
        Rule::on(route)
            .name(name)
            .preset(Preset::Payment)
            // A cache may answer for what is committed: a commit here is never taken back.
            .verify(false)
            .effect(Effect::Atomic)
            .in_flight(InFlight::Wait(IN_FLIGHT))
    };
    let layer = IdempotencyLayer::builder(guard)
        .scope_header(MERCHANT)
        .rule(atomic("POST /api/v1/payments", "payment.create"))
        .rule(atomic("POST /api/v1/payments/{id}/refunds", "payment.refund"))
        .build()?;
    Ok(Router::new()
        .route("/api/v1/payments", post(pay::<B>))
        .route("/api/v1/payments/{id}", get(show::<B>))
        .route("/api/v1/payments/{id}/refunds", post(refund::<B>))
        .route("/api/v1/payments/by-key/{key}", get(show_by_key::<B>))
        .route("/api/v1/accounts/{id}/balance", get(balance::<B>))
        .with_state(AppState { books, provider })
        .layer(layer))
}

/// What the handlers share.
#[derive(Clone)]
struct AppState<B> {
    books: B,
    /// Without one, card payments are refused.
    provider: Option<Provider>,
}

async fn pay<B: Books>(
    State(state): State<AppState<B>>,
    claim: ClaimHandle,
    trace: Trace,
    Json(order): Json<Order>,
) -> Response {
    let booked = match (order.method, &state.provider) {
        (Method::Account, _) => state.books.pay(&claim, trace, order).await,
        (Method::Card, Some(provider)) => state.books.pay_by_card(&claim, trace, order, provider).await,
        (Method::Card, None) => Err(TxError::Work(Refused::Invalid("card payments are not enabled here"))),
    };
    answer(&claim, booked)
}

async fn refund<B: Books>(
    State(state): State<AppState<B>>,
    Path(payment): Path<String>,
    claim: ClaimHandle,
    trace: Trace,
    Json(order): Json<RefundOrder>,
) -> Response {
    answer(&claim, state.books.refund(&claim, trace, &payment, order).await)
}

/// What was booked now or before; or why not, by the HTTP contract where it is about the key.
fn answer(claim: &ClaimHandle, booked: Booked) -> Response {
    let whole = |response: axum::http::Response<Bytes>| response.map(Body::from);
    match booked {
        Ok(response) => whole(response),
        Err(TxError::Work(refused)) => refused.into_response(),
        Err(error) => match claim.refusal(&error) {
            Some(refusal) => whole(refusal),
            None => Refused::Database(format!("{error:?}")).into_response(),
        },
    }
}

async fn show<B: Books>(
    State(state): State<AppState<B>>,
    merchant: Merchant,
    Path(id): Path<String>,
) -> Result<Json<Payment>, Refused> {
    state.books.payment(&merchant.0, &id).await?.map(Json).ok_or(Refused::NotFound)
}

async fn show_by_key<B: Books>(
    State(state): State<AppState<B>>,
    merchant: Merchant,
    Path(key): Path<String>,
) -> Result<Json<Payment>, Refused> {
    state.books.payment_by_key(&merchant.0, &key).await?.map(Json).ok_or(Refused::NotFound)
}

async fn balance<B: Books>(
    State(state): State<AppState<B>>,
    merchant: Merchant,
    Path(account): Path<String>,
) -> Result<Json<Balance>, Refused> {
    let balance = state.books.balance(&merchant.0, &account).await?.ok_or(Refused::NotFound)?;
    Ok(Json(Balance { account, balance, currency: CURRENCY.to_owned() }))
}

/// The merchant, named as in the layer.
struct Merchant(String);

impl<S: Sync> FromRequestParts<S> for Merchant {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        let named = parts.headers.get(MERCHANT).and_then(|value| value.to_str().ok());
        let scope = named.and_then(|name| Scope::tenant(name).ok());
        scope.map(|scope| Self(scope.as_str().to_owned())).ok_or(Refused::Invalid("send x-merchant-id"))
    }
}
