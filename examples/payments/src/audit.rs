//! What the tables hold, read without the service: plain SQL on a separate connection.

use sqlx::Row;

use crate::Failed;
use crate::place;

/// What is in the books.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// Each payment: its id, the client's key, and cents.
    pub payments: Vec<(String, String, i64)>,
    /// Postings of the ledger.
    pub postings: i64,
    /// The sum of all entries of the ledger, which must be 0.
    pub entries_sum: i64,
    /// The balance of the merchants' revenue accounts.
    pub revenue: i64,
    /// The sum of all payments, less refunds.
    pub paid: i64,
    /// Events in the outbox.
    pub events: i64,
    /// Answers kept for retries.
    pub answers: i64,
    /// Intents that are neither answered nor gone.
    pub open: i64,
}

const NUMBERS: &str = "
    SELECT (SELECT count(*) FROM semel_posting),
           (SELECT coalesce(sum(amount), 0)::bigint FROM semel_entry),
           (SELECT coalesce(sum(amount), 0)::bigint FROM semel_entry WHERE account LIKE '%/revenue'),
           (SELECT coalesce(sum(amount - refunded), 0)::bigint FROM payment),
           (SELECT count(*) FROM semel_outbox),
           (SELECT count(*) FROM semel_intent WHERE state = 2),
           (SELECT count(*) FROM semel_intent WHERE state <> 2)";

impl Audit {
    /// Reads the books in the PostgreSQL database a URL names.
    pub async fn read(url: &str) -> Result<Self, Failed> {
        let pool = place::pool(url).await?;
        let mut tx = pool.begin().await?;
        // All of it from one snapshot.
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY").execute(&mut *tx).await?;
        let payments = sqlx::query_as("SELECT id, key, amount FROM payment").fetch_all(&mut *tx).await?;
        let row = sqlx::query(NUMBERS).fetch_one(&mut *tx).await?;
        Ok(Self {
            payments,
            postings: row.try_get(0)?,
            entries_sum: row.try_get(1)?,
            revenue: row.try_get(2)?,
            paid: row.try_get(3)?,
            events: row.try_get(4)?,
            answers: row.try_get(5)?,
            open: row.try_get(6)?,
        })
    }

    /// What is wrong with books that have seen payments only; empty when all is well.
    pub fn wrong(&self) -> Vec<String> {
        let payments = self.payments.len() as i64;
        [
            ("postings of the ledger", self.postings, payments),
            ("events in the outbox", self.events, 2 * payments),
            ("answers kept", self.answers, payments),
            ("intents left open", self.open, 0),
            ("cents that all entries sum up to", self.entries_sum, 0),
            ("cents in the revenue accounts", self.revenue, self.paid),
        ]
        .into_iter()
        .filter(|(_, is, wanted)| is != wanted)
        .map(|(what, is, wanted)| format!("{what}: {is} instead of {wanted}"))
        .collect()
    }
}
