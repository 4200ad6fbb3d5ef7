//! Over `tokio_postgres`.

use tokio::sync::Mutex;

use super::explain;
use crate::inbox::dead_letter::any_tx::{AnyTx, LetterOperation, in_tx};
use crate::store::StoreError;
use crate::store::postgres::PostgresOptions;
use crate::store::postgres::connect::{Connections, Session};
use crate::store::postgres::error::PostgresError;

pub(in crate::inbox::dead_letter) struct Postgres {
    connections: Connections,
    /// The idle session. It is not put back after an error, because its state is unknown then.
    idle: Mutex<Option<Session>>,
}

impl Postgres {
    pub(super) fn new(url: &str) -> Result<Self, StoreError> {
        let connections =
            Connections::new(PostgresOptions::from_url(url)?).map_err(|error| error.not_applied())?;
        Ok(Self { connections, idle: Mutex::default() })
    }

    pub(super) async fn run<T>(&self, operation: impl LetterOperation<T>) -> Result<T, StoreError> {
        let mut idle = self.idle.lock().await;
        let mut session = match idle.take().filter(Session::is_open) {
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
        *idle = Some(session);
        Ok(value)
    }
}
