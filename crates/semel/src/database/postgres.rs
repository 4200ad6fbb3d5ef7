//! Over `tokio_postgres`.

use super::any_tx::{AnyTx, TxOperation, in_tx};
use super::pool::Pool;
use crate::store::postgres::PostgresOptions;
use crate::store::postgres::connect::{Connections, Session};
use crate::store::postgres::error::PostgresError;
use crate::store::{ErrorKind, Fate, StoreError};
use crate::tx::driver::DriverError;

pub(super) struct Postgres {
    connections: Connections,
    sessions: Pool<Session>,
}

impl Postgres {
    pub(super) fn new(url: &str, sessions: usize) -> Result<Self, StoreError> {
        let connections =
            Connections::new(PostgresOptions::from_url(url)?).map_err(|error| error.not_applied())?;
        Ok(Self { connections, sessions: Pool::new(sessions) })
    }

    #[cfg(all(feature = "sqlx-postgres", feature = "saga"))]
    pub(super) fn options(&self) -> &PostgresOptions {
        &self.connections.options
    }

    pub(super) async fn run<T>(
        &self,
        operation: impl TxOperation<T>,
        explain: impl FnOnce(DriverError) -> StoreError,
    ) -> Result<T, StoreError> {
        let place = self.sessions.place().await;
        let mut session = match place.take().filter(Session::is_open) {
            Some(session) => session,
            None => self.connections.session().await.map_err(|error| error.not_applied())?.0,
        };
        let raise = session.raise();
        let begun = session.client.transaction().await;
        let tx = begun.map_err(|error| PostgresError::from(error).not_applied())?;
        if let Some(raise) = raise {
            tx.batch_execute(raise).await.map_err(|error| PostgresError::from(error).not_applied())?;
        }
        let value = in_tx(&mut AnyTx::Postgres(&tx), operation).await.map_err(explain)?;
        tx.commit().await.map_err(|error| {
            let code = error.code().map_or("", |state| state.code());
            refused_at_commit(code, &error).unwrap_or_else(|| PostgresError::from(error).explain())
        })?;
        place.put_back(session);
        Ok(value)
    }
}

/// A constraint that is checked at the commit refuses what was written: the same work is refused again.
pub(super) fn refused_at_commit(code: &str, error: &dyn std::error::Error) -> Option<StoreError> {
    code.starts_with("23").then(|| {
        let mut message = format!("a constraint that is checked at the commit was violated: {error}");
        if let Some(cause) = error.source() {
            message.push_str(&format!(": {cause}"));
        }
        StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
    })
}
