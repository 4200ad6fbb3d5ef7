//! Over a pool of `sqlx` on PostgreSQL: the application's own connections.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection, PgPool, Postgres};

use super::any_tx::{AnyTx, TxOperation, in_tx};
use super::postgres::refused_at_commit;
use crate::store::postgres::PostgresOptions;
use crate::store::postgres::connect::IDLE_MS;
use crate::store::postgres::error::ends_connection;
use crate::store::{ErrorKind, Fate, StoreError};
use crate::timeout::bounded;
use crate::tx::driver::{DriverError, explain_sqlx_postgres};

pub(super) struct SqlxPostgres {
    pool: PgPool,
    begin: String,
    timeout: Duration,
}

/// A connection of the pool. It goes back only when its transaction is known to have ended.
struct Lent {
    connection: PoolConnection<Postgres>,
    has_ended: bool,
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The work may have begun savepoints that were never ended.
        if !self.has_ended || self.connection.is_in_transaction() {
            self.connection.close_on_drop();
        }
    }
}

impl SqlxPostgres {
    pub(super) fn new(pool: PgPool, options: &PostgresOptions, table: Option<(&str, i64)>) -> Self {
        Self { pool, begin: begin(options.statement_timeout, table), timeout: options.connect_timeout() }
    }

    pub(super) async fn run<T>(
        &self,
        operation: impl TxOperation<T>,
        explain: impl Fn(DriverError) -> StoreError,
    ) -> Result<T, StoreError> {
        let mut lent = self.lend().await?;
        let begin = async {
            let begun = lent.connection.begin_with(AssertSqlSafe(self.begin.clone())).await;
            begun.map_err(|error| explain(explain_sqlx_postgres(error)))
        };
        let mut tx = bounded(self.timeout, begin, || self.late("did not begin a transaction")).await?;
        match in_tx(&mut AnyTx::SqlxPostgres(&mut tx), operation).await {
            Ok(value) => {
                tx.commit().await.map_err(not_committed)?;
                lent.has_ended = true;
                Ok(value)
            }
            Err(error) => {
                let ended = tokio::time::timeout(self.timeout, tx.rollback()).await;
                lent.has_ended = ended.is_ok_and(|ended| ended.is_ok());
                Err(explain(error))
            }
        }
    }

    async fn lend(&self) -> Result<Lent, StoreError> {
        let acquire = async {
            let connection = self.pool.acquire().await.map_err(|error| {
                let message = format!("the pool for atomic steps gives no connection: {error}");
                StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message).with_source(error)
            })?;
            Ok(Lent { connection, has_ended: false })
        };
        bounded(self.timeout, acquire, || {
            self.late(
                "has no connection to give; raise max_connections, or hold connections for a shorter time",
            )
        })
        .await
    }

    fn late(&self, what: &str) -> StoreError {
        let message = format!("after {:?} the pool for atomic steps {what}", self.timeout);
        StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message)
    }
}

/// Begins a transaction under the limits of our own sessions, in one round trip; they end with it. A connection whose
/// `search_path` finds another table would commit a step apart from its journal.
fn begin(statement_timeout: Duration, table: Option<(&str, i64)>) -> String {
    let ms = statement_timeout.as_millis();
    let mut text = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = {ms}; \
         SET LOCAL lock_timeout = {ms}; SET LOCAL idle_in_transaction_session_timeout = {IDLE_MS}; \
         SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
    );
    if let Some((name, number)) = table {
        text.push_str(&format!(
            "; DO $$ BEGIN IF to_regclass('{name}')::oid::bigint IS DISTINCT FROM {number} THEN \
             RAISE EXCEPTION 'this connection finds another table {name} than the journal''s, or none; do not change \
             the search_path of the pool''s connections'; END IF; END $$"
        ));
    }
    text
}

/// An answer of the server says that it was rolled back, unless the connection ended with it.
fn not_committed(error: sqlx::Error) -> StoreError {
    let code = error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
    if let Some(refused) = code.as_deref().and_then(|code| refused_at_commit(code, &error)) {
        return refused;
    }
    let fate = match code {
        Some(code) if !ends_connection(&code) => Fate::NotApplied,
        _ => Fate::InDoubt,
    };
    StoreError::new(ErrorKind::Unavailable, fate, format!("PostgreSQL did not commit: {error}"))
        .with_source(error)
}
