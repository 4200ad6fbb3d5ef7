//! The books: payments, refunds, the ledger and their events, in the same database as the answers.

use axum::http::Response;
use bytes::Bytes;
use semel::http::ClaimHandle;
use semel::tx::TxError;

use crate::api::{Order, Payment, RefundOrder, Refused};
use crate::events::Trace;
use crate::provider::Provider;

mod postgres;
mod sqlite;

pub use postgres::PostgresBooks;
pub use sqlite::SqliteBooks;

/// The answer, booked now or before; or why there is none.
pub type Booked = Result<Response<Bytes>, TxError<Refused>>;

/// What the service needs of a database. Cheap to clone.
///
/// `pay` and `refund` are one transaction each, `pay_by_card` is two with the provider's call in between. When they
/// return an answer, it is committed.
pub trait Books: Clone + Send + Sync + 'static {
    /// Books a payment.
    fn pay(&self, claim: &ClaimHandle, trace: Trace, order: Order) -> impl Future<Output = Booked> + Send;

    /// Charges a card and books the payment.
    fn pay_by_card(
        &self,
        claim: &ClaimHandle,
        trace: Trace,
        order: Order,
        provider: &Provider,
    ) -> impl Future<Output = Booked> + Send;

    /// Books a refund, of at most what is left of the payment.
    fn refund(
        &self,
        claim: &ClaimHandle,
        trace: Trace,
        payment: &str,
        order: RefundOrder,
    ) -> impl Future<Output = Booked> + Send;

    /// A merchant's payment.
    fn payment(
        &self,
        merchant: &str,
        id: &str,
    ) -> impl Future<Output = Result<Option<Payment>, Refused>> + Send;

    /// A merchant's payment under a key.
    fn payment_by_key(
        &self,
        merchant: &str,
        key: &str,
    ) -> impl Future<Output = Result<Option<Payment>, Refused>> + Send;

    /// The balance of a merchant's account, if it exists.
    fn balance(
        &self,
        merchant: &str,
        account: &str,
    ) -> impl Future<Output = Result<Option<i64>, Refused>> + Send;
}
