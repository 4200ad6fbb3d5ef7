//! Over `sqlx` on MySQL and MariaDB.

use sqlx::Connection;
use tokio::sync::Mutex;

use super::explain;
use crate::inbox::dead_letter::any_tx::{AnyTx, LetterOperation, in_tx};
use crate::store::mysql::MysqlStore;
use crate::store::mysql::error::MysqlError;
use crate::store::mysql::session::{Dial, Session};
use crate::store::{Fate, StoreError};

pub(in crate::inbox::dead_letter) struct Mysql {
    dial: Dial,
    server: String,
    /// The idle session. It is not put back after an error, because its state is unknown then.
    idle: Mutex<Option<Session>>,
}

impl Mysql {
    pub(super) fn new(url: &str) -> Result<Self, StoreError> {
        let (_, dial, server) = MysqlStore::options().with_url(url)?;
        Ok(Self { dial, server, idle: Mutex::default() })
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    pub(super) async fn run<T>(&self, operation: impl LetterOperation<T>) -> Result<T, StoreError> {
        let mut idle = self.idle.lock().await;
        let not_begun = |error: MysqlError| error.explain(&self.server, Fate::NotApplied);
        let mut session = match idle.take() {
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
        *idle = Some(session);
        Ok(value)
    }
}
