//! The effect: rows in a table, in the transaction of their marks.

use semel::inbox::consumer::{DeadLetter, DeadLetters, Handler, HandlerError, Message};
use semel::inbox::{self, Inbox};
use semel::tx::driver::Dialect;
use serde::Deserialize;
use sqlx::postgres::PgPool;

const TABLES: &str = include_str!("notifications.sql");
const NO_INBOX: &str = "SELECT to_regclass('semel_inbox') IS NULL";
const TELL: &str = "INSERT INTO notifications (event, kind, payment, refund, merchant, amount)
                    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[])";
const KEEP: &str = "INSERT INTO unreadable (place, event, error, payload) VALUES ($1, $2, $3, $4)
                    ON CONFLICT (place) DO NOTHING";

/// What an event of the topic `payments` says, as far as a customer is told of it.
#[derive(Debug, Deserialize)]
struct Told {
    payment: String,
    refund: Option<String>,
    merchant: String,
    amount: i64,
}

/// Writes notifications, each event's once.
#[derive(Clone, Debug)]
pub struct Notifications {
    pool: PgPool,
    inbox: Inbox,
}

impl Notifications {
    /// The table in this database, and the inbox beside it; both are made if they are not there.
    pub async fn open(pool: PgPool, inbox: Inbox) -> Result<Self, crate::Failed> {
        let mut tx = pool.begin().await?;
        // As the service does it: two that start at once would both make them.
        sqlx::query("SELECT pg_advisory_xact_lock(7075)").execute(&mut *tx).await?;
        sqlx::raw_sql(TABLES).execute(&mut *tx).await?;
        if sqlx::query_scalar::<_, bool>(NO_INBOX).fetch_one(&mut *tx).await? {
            sqlx::raw_sql(inbox::schema(Dialect::Postgres)).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(Self { pool, inbox })
    }

    /// Forgets what is older than the window, bite by bite.
    pub async fn prune(&self) -> Result<u64, crate::Failed> {
        let mut forgotten = 0;
        loop {
            let mut tx = self.pool.begin().await?;
            let bite = self.inbox.prune_tx(&mut tx).await?;
            tx.commit().await?;
            if bite == 0 {
                return Ok(forgotten);
            }
            forgotten += bite;
        }
    }
}

impl Handler for Notifications {
    async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
        let read = |message: &Message| serde_json::from_slice::<Told>(message.payload());
        let told =
            messages.iter().map(read).collect::<Result<Vec<_>, _>>().map_err(HandlerError::permanent)?;
        let mut tx = self.pool.begin().await.map_err(HandlerError::transient)?;
        let marked = self.inbox.mark_all_tx(&mut tx, messages).await?;
        let fresh: Vec<(&Message, &Told)> = marked.fresh().map(|at| (&messages[at], &told[at])).collect();
        if !fresh.is_empty() {
            let texts = |of: fn(&Message, &Told) -> String| -> Vec<String> {
                fresh.iter().map(|(message, told)| of(message, told)).collect()
            };
            let tell = sqlx::query(TELL)
                .bind(texts(|message, _| message.identity().id()))
                .bind(texts(|message, _| message.kind().unwrap_or_default().to_owned()))
                .bind(texts(|_, told| told.payment.clone()))
                .bind(fresh.iter().map(|(_, told)| told.refund.clone()).collect::<Vec<_>>())
                .bind(texts(|_, told| told.merchant.clone()))
                .bind(fresh.iter().map(|(_, told)| told.amount).collect::<Vec<_>>());
            tell.execute(&mut *tx).await.map_err(|error| match error.as_database_error() {
                // The server's word against these rows, or no word at all.
                Some(_) => HandlerError::retry(error),
                None => HandlerError::transient(error),
            })?;
        }
        marked.end_tx(&mut tx).await?;
        // In doubt, it is later: the marks tell when they come again.
        tx.commit().await.map_err(HandlerError::transient)
    }
}

/// What nobody can read stands in the way of nobody.
impl DeadLetters for Notifications {
    async fn dead_letter(&self, _: &str, buried: &DeadLetter<'_>) -> Result<(), HandlerError> {
        let keep = sqlx::query(KEEP)
            .bind(&buried.delivery.place)
            .bind(&buried.id)
            .bind(buried.error)
            .bind(&buried.delivery.payload[..]);
        keep.execute(&self.pool).await.map(drop).map_err(HandlerError::transient)
    }
}
