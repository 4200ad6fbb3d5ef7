//! Over `sqlx` on MySQL and MariaDB.

use std::time::Duration;

use sqlx::Connection;

use super::any_tx::{AnyTx, TxOperation, in_tx};
use super::pool::Pool;
use crate::store::mysql::MysqlStore;
use crate::store::mysql::error::MysqlError;
use crate::store::mysql::session::{Dial, Session};
use crate::store::{Fate, StoreError};
use crate::tx::driver::DriverError;

/// A process that is frozen within a transaction keeps its rows locked for so long. A session that was idle in the pool
/// is pinged before it is used, and opened again. As on PostgreSQL (`idle_in_transaction_session_timeout`).
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Mysql {
    dial: Dial,
    server: String,
    sessions: Pool<Session>,
}

impl Mysql {
    pub(super) fn new(url: &str, sessions: usize) -> Result<Self, StoreError> {
        let (_, dial, server) = MysqlStore::options().with_url(url)?;
        let dial = dial.idle_timeout(IDLE_TIMEOUT);
        Ok(Self { dial, server, sessions: Pool::new(sessions) })
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    pub(super) async fn run<T>(
        &self,
        operation: impl TxOperation<T>,
        explain: impl FnOnce(DriverError) -> StoreError,
    ) -> Result<T, StoreError> {
        let place = self.sessions.place().await;
        let not_begun = |error: MysqlError| error.explain(&self.server, Fate::NotApplied);
        let mut session = match place.take() {
            Some(mut session) => {
                session.ready().await.map_err(not_begun)?;
                session
            }
            None => self.dial.open().await.map_err(not_begun)?,
        };
        let begun = session.connection().begin().await;
        let mut tx = begun.map_err(|error| not_begun(error.into()))?;
        let value = in_tx(&mut AnyTx::Mysql(&mut tx), operation).await.map_err(explain)?;
        tx.commit().await.map_err(|error| MysqlError::from(error).explain(&self.server, Fate::InDoubt))?;
        place.put_back(session);
        Ok(value)
    }
}
