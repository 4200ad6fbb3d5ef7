//! The effect: rows in a table, in the transaction of their marks.

use semel::inbox::consumer::{DeadLetter, DeadLetters, Handler, HandlerError, Message};
use semel::inbox::{self, Inbox};
use semel::tx::driver::Dialect;
use serde::Deserialize;
use sqlx::postgres::PgPool;

const TABLES: &str = include_str!("notifications.sql");
const NO_INBOX: &str = "SELECT to_regclass('semel_inbox') IS NULL";
const NOTIFY: &str = "INSERT INTO notifications (event, kind, payment, refund, merchant, amount)
                    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[])";
const KEEP: &str = "INSERT INTO unreadable (place, event, error, payload) VALUES ($1, $2, $3, $4)
                    ON CONFLICT (place) DO NOTHING";

/// The fields of an event of the topic `payments` that a notification needs.
#[derive(Debug, Deserialize)]
struct PaymentEvent {
    payment: String,
    refund: Option<String>,
    merchant: String,
    amount: i64,
}

/// Writes notifications, one for each event.
#[derive(Clone, Debug)]
pub struct Notifications {
    pool: PgPool,
    inbox: Inbox,
}

impl Notifications {
    /// The table in this database, and the inbox beside it; both are created if they are missing.
    pub async fn open(pool: PgPool, inbox: Inbox) -> Result<Self, crate::Failed> {
        let mut tx = pool.begin().await?;
        // As the service does it: two that start at once would both create them.
        sqlx::query("SELECT pg_advisory_xact_lock(7075)").execute(&mut *tx).await?;
        sqlx::raw_sql(TABLES).execute(&mut *tx).await?;
        if sqlx::query_scalar::<_, bool>(NO_INBOX).fetch_one(&mut *tx).await? {
            sqlx::raw_sql(inbox::schema(Dialect::Postgres)).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(Self { pool, inbox })
    }

    /// Deletes marks older than the window, chunk by chunk.
    pub async fn prune(&self) -> Result<u64, crate::Failed> {
        let mut deleted = 0;
        loop {
            let mut tx = self.pool.begin().await?;
            let chunk = self.inbox.prune_tx(&mut tx).await?;
            tx.commit().await?;
            if chunk == 0 {
                return Ok(deleted);
            }
            deleted += chunk;
        }
    }
}

impl Handler for Notifications {
    async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
        let read = |message: &Message| serde_json::from_slice::<PaymentEvent>(message.payload());
        let events =
            messages.iter().map(read).collect::<Result<Vec<_>, _>>().map_err(HandlerError::permanent)?;
        let mut tx = self.pool.begin().await.map_err(HandlerError::transient)?;
        let marked = self.inbox.mark_all_tx(&mut tx, messages).await?;
        let fresh: Vec<(&Message, &PaymentEvent)> =
            marked.fresh().map(|at| (&messages[at], &events[at])).collect();
        if !fresh.is_empty() {
            let texts = |of: fn(&Message, &PaymentEvent) -> String| -> Vec<String> {
                fresh.iter().map(|(message, event)| of(message, event)).collect()
            };
            let notify = sqlx::query(NOTIFY)
                .bind(texts(|message, _| message.identity().id()))
                .bind(texts(|message, _| message.kind().unwrap_or_default().to_owned()))
                .bind(texts(|_, event| event.payment.clone()))
                .bind(fresh.iter().map(|(_, event)| event.refund.clone()).collect::<Vec<_>>())
                .bind(texts(|_, event| event.merchant.clone()))
                .bind(fresh.iter().map(|(_, event)| event.amount).collect::<Vec<_>>());
            notify.execute(&mut *tx).await.map_err(|error| match error.as_database_error() {
                // The server refused these rows, or there was no answer.
                Some(_) => HandlerError::retry(error),
                None => HandlerError::transient(error),
            })?;
        }
        marked.end_tx(&mut tx).await?;
        // If the commit is in doubt, retry later: the marks recognise a redelivery.
        tx.commit().await.map_err(HandlerError::transient)
    }
}

/// A message that cannot be read does not block the others.
impl DeadLetters for Notifications {
    async fn dead_letter(&self, _: &str, dead: &DeadLetter<'_>) -> Result<(), HandlerError> {
        let keep = sqlx::query(KEEP)
            .bind(&dead.delivery.place)
            .bind(&dead.id)
            .bind(dead.error)
            .bind(&dead.delivery.payload[..]);
        keep.execute(&self.pool).await.map(drop).map_err(HandlerError::transient)
    }
}
