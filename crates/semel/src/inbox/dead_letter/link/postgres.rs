//! Over `tokio_postgres`.

use std::future::Future;

use tokio::sync::Mutex;

use super::explain;
use crate::store::StoreError;
use crate::store::postgres::PostgresOptions;
use crate::store::postgres::connect::{Connections, Session};
use crate::store::postgres::error::PostgresError;
use crate::tx::driver::DriverError;
use crate::tx::script::{Port, play};

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

    pub(super) async fn play<T, F>(&self, script: impl FnOnce(Port) -> F + Send) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, DriverError>> + Send,
    {
        let mut idle = self.idle.lock().await;
        let mut session = match idle.take().filter(Session::is_open) {
            Some(session) => session,
            None => self.connections.session().await.map_err(|error| error.not_applied())?.0,
        };
        let raise = session.raise();
        let begun = session.client.transaction().await;
        let mut tx = begun.map_err(|error| PostgresError::from(error).not_applied())?;
        if let Some(raise) = raise {
            tx.batch_execute(raise).await.map_err(|error| PostgresError::from(error).not_applied())?;
        }
        let value = play(&mut tx, script).await.and_then(|result| result).map_err(explain)?;
        tx.commit().await.map_err(|error| PostgresError::from(error).explain())?;
        *idle = Some(session);
        Ok(value)
    }
}
