//! Over `tokio_postgres`.

use super::any_tx::{AnyTx, TxOperation, in_tx};
use super::pool::Pool;
use crate::store::StoreError;
use crate::store::postgres::PostgresOptions;
use crate::store::postgres::connect::{Connections, Session};
use crate::store::postgres::error::PostgresError;
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
        tx.commit().await.map_err(|error| PostgresError::from(error).explain())?;
        place.put_back(session);
        Ok(value)
    }
}
