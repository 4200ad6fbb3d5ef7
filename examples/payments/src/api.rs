//! The wire format, and what is refused.

use axum::Json;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use semel::outbox::{AppendError, EventError};
use semel::tx::ledger::{Account, LedgerError, Posting, PostingReceipt};
use semel::tx::reference::ReferenceError;
use semel::{Intent, Key};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// All money here is in cents of this.
pub const CURRENCY: &str = "EUR";
/// Where payments go.
pub const REVENUE: &str = "revenue";
/// The largest payment, in cents.
const AMOUNT_MAX: i64 = 100_000_000;

/// Body of `POST /api/v1/payments`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// In cents.
    pub amount: i64,
    /// The customer whose account pays.
    #[serde(default = "guest")]
    pub customer: String,
    /// The payment method.
    #[serde(default)]
    pub method: Method,
}

/// How a payment is made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// From the customer's account here: one commit.
    #[default]
    Account,
    /// From a card, by a provider elsewhere: phases around its call.
    Card,
}

/// Body of `POST /api/v1/payments/{id}/refunds`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefundOrder {
    /// In cents.
    pub amount: i64,
}

/// A payment that was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Payment {
    /// Its id.
    pub id: String,
    /// The client's key.
    pub key: String,
    /// The customer whose account paid.
    pub customer: String,
    /// In cents.
    pub amount: i64,
    /// How much of it was refunded.
    pub refunded: i64,
    /// [`CURRENCY`].
    pub currency: String,
}

/// A refund that was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refund {
    /// Its id.
    pub id: String,
    /// The payment it belongs to.
    pub payment: String,
    /// In cents.
    pub amount: i64,
    /// [`CURRENCY`].
    pub currency: String,
}

/// The balance of an account.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Balance {
    /// The account, as the merchant calls it.
    pub account: String,
    /// In cents; negative for a customer who has paid.
    pub balance: i64,
    /// [`CURRENCY`].
    pub currency: String,
}

fn guest() -> String {
    "guest".to_owned()
}

impl Order {
    /// The payment to be booked for an intent. Its id is a new one for every attempt: only what is committed counts.
    pub fn payment(self, intent: &Intent) -> Result<Payment, Refused> {
        check_amount(self.amount)?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if self.customer.is_empty() || self.customer.len() > 64 || !self.customer.bytes().all(plain) {
            return Err(Refused::Invalid("a customer is 1 to 64 letters, digits, '-', '_' and '.'"));
        }
        Ok(Payment {
            id: format!("pay_{}", Key::random().as_str()),
            key: intent.key().as_str().to_owned(),
            customer: self.customer,
            amount: self.amount,
            refunded: 0,
            currency: CURRENCY.to_owned(),
        })
    }
}

impl RefundOrder {
    /// The refund to be booked.
    pub fn refund(self, payment: &str) -> Result<Refund, Refused> {
        check_amount(self.amount)?;
        let (id, payment) = (format!("ref_{}", Key::random().as_str()), payment.to_owned());
        Ok(Refund { id, payment, amount: self.amount, currency: CURRENCY.to_owned() })
    }
}

fn check_amount(amount: i64) -> Result<(), Refused> {
    if (1..=AMOUNT_MAX).contains(&amount) {
        return Ok(());
    }
    Err(Refused::Invalid("an amount is 1 to 100000000 cents"))
}

/// The name of a merchant's account in the ledger. Accounts have no slash in their names, so no merchant can reach
/// another's.
pub fn account(merchant: &str, name: &str) -> String {
    format!("{merchant}/{name}")
}

/// The two accounts between which a customer's money moves.
pub fn accounts(merchant: &str, customer: &str) -> Result<[Account; 2], LedgerError> {
    let open = |name| Account::new(&account(merchant, name), CURRENCY);
    Ok([open(REVENUE)?, open(customer)?])
}

/// From the customer to the merchant; a refund is a negative amount. Named by the intent, so that the ledger itself
/// refuses a second one: also when the answer to the first is no longer kept.
pub fn posting(intent: &Intent, customer: &str, amount: i64) -> Result<Posting, LedgerError> {
    let merchant = intent.scope().as_str();
    Posting::of(intent).line(&account(merchant, customer), -amount)?.line(&account(merchant, REVENUE), amount)
}

/// Refuses a payment or refund that the ledger has posted before: no money would move with it.
pub fn moved(receipt: PostingReceipt) -> Result<(), Refused> {
    if receipt.already { Err(Refused::Booked) } else { Ok(()) }
}

/// Why nothing was booked. Nothing is remembered either: the same key may be used again.
#[derive(Debug)]
pub enum Refused {
    /// The request is invalid.
    Invalid(&'static str),
    /// There is no such payment of this merchant.
    NotFound,
    /// More than was paid, or than is left of it.
    TooMuch,
    /// The ledger knows this key from longer ago than answers are kept.
    Booked,
    /// The database failed, or the outcome of the commit is unknown. The retry finds out.
    Database(String),
}

impl From<LedgerError> for Refused {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::AccountName(_) => Self::Invalid("this merchant cannot have accounts"),
            // Posted under this key, with other lines.
            LedgerError::Mismatch => Self::Booked,
            error => Self::Database(error.to_string()),
        }
    }
}

impl From<sqlx::Error> for Refused {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.to_string())
    }
}

impl From<ReferenceError> for Refused {
    fn from(error: ReferenceError) -> Self {
        Self::Database(error.to_string())
    }
}

impl From<EventError> for Refused {
    fn from(error: EventError) -> Self {
        Self::Database(error.to_string())
    }
}

impl From<AppendError> for Refused {
    fn from(error: AppendError) -> Self {
        Self::Database(error.to_string())
    }
}

impl From<rusqlite::Error> for Refused {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error.to_string())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> axum::response::Response {
        let (status, error) = match self {
            Self::Invalid(why) => (StatusCode::BAD_REQUEST, why),
            Self::NotFound => (StatusCode::NOT_FOUND, "there is no such payment"),
            Self::TooMuch => (StatusCode::UNPROCESSABLE_ENTITY, "that is more than is left of the payment"),
            Self::Booked => {
                let error = "this key was booked before, and its answer is no longer kept; nothing was booked now. \
                             See /api/v1/payments/by-key/{key}, or use a new key for something new";
                let body = json!({ "error": error, "code": "ALREADY_BOOKED" });
                return (StatusCode::CONFLICT, Json(body)).into_response();
            }
            Self::Database(why) => {
                eprintln!("payments: {why}");
                (StatusCode::SERVICE_UNAVAILABLE, "the outcome is unknown; try again with the same key")
            }
        };
        (status, Json(json!({ "error": error }))).into_response()
    }
}

/// `201 Created`, as it is stored by the commit.
pub fn created(what: &impl Serialize) -> Result<Response<Bytes>, Refused> {
    let body = serde_json::to_vec(what).map_err(|error| Refused::Database(error.to_string()))?;
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = StatusCode::CREATED;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    Ok(response)
}
