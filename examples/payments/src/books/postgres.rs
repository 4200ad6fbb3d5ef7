//! On PostgreSQL, over a pool of `sqlx`.

use semel::Intent;
use semel::http::ClaimHandle;
use semel::outbox::{self, Duplicates};
use semel::tx::driver::Dialect;
use semel::tx::ledger::{self, AccountId, LedgerError};
use semel::tx::{Started, TxError, reference};
use sqlx::postgres::{PgPool, PgRow};
use sqlx::{PgConnection, Row};

use super::{Booked, Books};
use crate::Failed;
use crate::api::{self, CURRENCY, Order, Payment, RefundOrder, Refused};
use crate::card;
use crate::events::{self, Trace};
use crate::provider::{Charged, Provider};

const TABLES: &str = include_str!("postgres.sql");
const NO_OUTBOX: &str = "SELECT to_regclass('semel_outbox') IS NULL";
const BY_ID: &str = "SELECT id, key, customer, amount, refunded FROM payment WHERE merchant = $1 AND id = $2";
const BY_KEY: &str =
    "SELECT id, key, customer, amount, refunded FROM payment WHERE merchant = $1 AND key = $2";

/// The books in a PostgreSQL database.
#[derive(Clone, Debug)]
pub struct PostgresBooks(PgPool);

impl PostgresBooks {
    /// The books in this database; their tables are created if they are missing.
    pub async fn open(pool: PgPool) -> Result<Self, Failed> {
        let mut tx = pool.begin().await?;
        // Two services that start at once would both create them.
        sqlx::query("SELECT pg_advisory_xact_lock(7075)").execute(&mut *tx).await?;
        sqlx::raw_sql(ledger::schema(Dialect::Postgres)).execute(&mut *tx).await?;
        sqlx::raw_sql(reference::schema(Dialect::Postgres)).execute(&mut *tx).await?;
        sqlx::raw_sql(TABLES).execute(&mut *tx).await?;
        if sqlx::query_scalar::<_, bool>(NO_OUTBOX).fetch_one(&mut *tx).await? {
            sqlx::raw_sql(outbox::schema(Dialect::Postgres)).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(Self(pool))
    }

    async fn begin(&self) -> Result<sqlx::Transaction<'static, sqlx::Postgres>, TxError<Refused>> {
        self.0.begin().await.map_err(|error| TxError::Work(error.into()))
    }
}

impl Books for PostgresBooks {
    async fn pay(&self, claim: &ClaimHandle, trace: Trace, order: Order) -> Booked {
        let intent = claim.intent();
        let mut tx = self.begin().await?;
        let answer = claim
            .once_tx(&mut tx, async |tx| {
                let payment = order.payment(intent)?;
                book(tx, intent, &trace, &payment).await?;
                api::created(&payment)
            })
            .await?;
        committed(tx).await?;
        Ok(answer)
    }

    async fn pay_by_card(
        &self,
        claim: &ClaimHandle,
        trace: Trace,
        order: Order,
        provider: &Provider,
    ) -> Booked {
        let intent = claim.intent();
        let mut tx = self.begin().await?;
        let mut run = match card::phases(claim)?.start_tx(&mut tx).await.map_err(TxError::or_work)? {
            Started::Run(run) => run,
            Started::Replay(answer) => return Ok(claim.response(answer)),
        };
        let reserved = run.phase_tx(&mut tx, card::RESERVE, async |tx| {
            let payment = order.payment(intent)?;
            reserve(tx, intent, &payment).await?;
            Ok(payment)
        });
        let payment = reserved.await?.value;
        committed(tx).await?;

        // No transaction is open here, and no connection is held.
        let charged = card::charge(provider, card::key(&run), payment.amount).await?;

        let mut tx = self.begin().await?;
        let booked = run.phase_tx(&mut tx, card::BOOK, async |tx| {
            sqlx::query("DELETE FROM reserved WHERE payment = $1")
                .bind(&payment.id)
                .execute(&mut *tx)
                .await?;
            if let Charged::Paid(charge) = &charged {
                reference::record(tx, intent, card::PROVIDER, charge).await?;
                book(tx, intent, &trace, &payment).await?;
            }
            Ok(claim.remembered(card::answer(&charged, &payment)?))
        });
        let booked = booked.await?;
        committed(tx).await?;
        Ok(claim.response(booked.value))
    }

    async fn refund(&self, claim: &ClaimHandle, trace: Trace, payment: &str, order: RefundOrder) -> Booked {
        let intent = claim.intent();
        let merchant = intent.scope().as_str();
        let mut tx = self.begin().await?;
        let answer = claim
            .once_tx(&mut tx, async |tx| {
                let refund = order.refund(payment)?;
                let of = find(tx, BY_ID, merchant, payment).await?.ok_or(Refused::NotFound)?;
                let posting = api::posting(intent, &of.customer, -refund.amount)?;
                api::moved(ledger::post(tx, &posting).await?)?;
                // The row's lock lets refunds of one payment in one by one, so no two share what is left.
                let take =
                    "UPDATE payment SET refunded = refunded + $1 WHERE id = $2 AND refunded + $1 <= amount";
                let taken = sqlx::query(take).bind(refund.amount).bind(payment).execute(&mut *tx).await?;
                if taken.rows_affected() == 0 {
                    return Err(Refused::TooMuch);
                }
                sqlx::query("INSERT INTO refund (id, payment, amount) VALUES ($1, $2, $3)")
                    .bind(&refund.id)
                    .bind(payment)
                    .bind(refund.amount)
                    .execute(&mut *tx)
                    .await?;
                let refund_events = events::refunded(intent, &trace, &refund)?;
                outbox::append_all_tx(tx, &refund_events, Duplicates::Refuse).await?;
                api::created(&refund)
            })
            .await?;
        committed(tx).await?;
        Ok(answer)
    }

    async fn payment(&self, merchant: &str, id: &str) -> Result<Option<Payment>, Refused> {
        find(&mut *self.0.acquire().await?, BY_ID, merchant, id).await
    }

    async fn payment_by_key(&self, merchant: &str, key: &str) -> Result<Option<Payment>, Refused> {
        find(&mut *self.0.acquire().await?, BY_KEY, merchant, key).await
    }

    async fn balance(&self, merchant: &str, account: &str) -> Result<Option<i64>, Refused> {
        let account = AccountId::new(&api::account(merchant, account))?;
        let mut tx = self.0.begin().await?;
        match ledger::balance(&mut tx, &account).await {
            Ok(balance) => Ok(Some(balance)),
            Err(LedgerError::NoAccount(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Books the payment, its posting and its events. The ledger decides first: no payment without money that moves.
async fn book(
    tx: &mut PgConnection,
    intent: &Intent,
    trace: &Trace,
    payment: &Payment,
) -> Result<(), Refused> {
    let merchant = intent.scope().as_str();
    for account in api::accounts(merchant, &payment.customer)? {
        ledger::open(&mut *tx, &account).await?;
    }
    let posting = api::posting(intent, &payment.customer, payment.amount)?;
    api::moved(ledger::post(&mut *tx, &posting).await?)?;
    let insert = "INSERT INTO payment (id, merchant, key, customer, amount) VALUES ($1, $2, $3, $4, $5)";
    sqlx::query(insert)
        .bind(&payment.id)
        .bind(merchant)
        .bind(&payment.key)
        .bind(&payment.customer)
        .bind(payment.amount)
        .execute(&mut *tx)
        .await?;
    outbox::append_all_tx(tx, &events::paid(intent, trace, payment)?, Duplicates::Refuse).await?;
    Ok(())
}

/// Records what is about to be charged, unless it was paid for longer ago than answers are kept.
async fn reserve(tx: &mut PgConnection, intent: &Intent, payment: &Payment) -> Result<(), Refused> {
    if find(&mut *tx, BY_KEY, intent.scope().as_str(), &payment.key).await?.is_some() {
        return Err(Refused::Booked);
    }
    sqlx::query("INSERT INTO reserved (payment, merchant, key, amount) VALUES ($1, $2, $3, $4)")
        .bind(&payment.id)
        .bind(intent.scope().as_str())
        .bind(&payment.key)
        .bind(payment.amount)
        .execute(tx)
        .await?;
    Ok(())
}

/// A commit whose answer is lost may have happened. The retry will find out: it is replayed, or it runs.
async fn committed(tx: sqlx::Transaction<'_, sqlx::Postgres>) -> Result<(), TxError<Refused>> {
    tx.commit().await.map_err(|error| TxError::Work(error.into()))
}

async fn find(
    connection: &mut PgConnection,
    select: &'static str,
    merchant: &str,
    value: &str,
) -> Result<Option<Payment>, Refused> {
    let row = sqlx::query(select).bind(merchant).bind(value).fetch_optional(connection).await?;
    row.map(|row| read(&row)).transpose()
}

fn read(row: &PgRow) -> Result<Payment, Refused> {
    Ok(Payment {
        id: row.try_get("id")?,
        key: row.try_get("key")?,
        customer: row.try_get("customer")?,
        amount: row.try_get("amount")?,
        refunded: row.try_get("refunded")?,
        currency: CURRENCY.to_owned(),
    })
}
