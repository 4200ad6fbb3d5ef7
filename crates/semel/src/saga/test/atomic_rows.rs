//! The database of atomic steps: SQLite in memory, one transaction for each attempt.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rusqlite::Connection;

use super::world::World;
use crate::database::{AnyTx, install_guard};
use crate::saga::journal::{AtomicEnd, AtomicWork};
use crate::saga::sql::run_on_sqlite;
use crate::saga::step::{StepError, StepResult};
use crate::saga::step_tx::StepTx;

/// Makes the tables of one history.
pub(super) type Tables = Arc<dyn Fn(&Connection) -> rusqlite::Result<()> + Send + Sync>;

/// The database of one history.
#[derive(Clone)]
pub(super) struct AtomicRows(Arc<Mutex<Connection>>);

impl AtomicRows {
    pub(super) fn new(tables: &Tables) -> rusqlite::Result<Self> {
        let mut connection = Connection::open_in_memory()?;
        tables(&connection)?;
        install_guard(&mut connection)?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same work, in a transaction here.
    pub(super) fn around(&self, work: Arc<dyn AtomicWork>) -> Arc<dyn AtomicWork> {
        Arc::new(OnSqlite { rows: self.clone(), work })
    }

    /// What the journal decided about the transaction.
    pub(super) fn end(&self, end: Option<&AtomicEnd>) -> rusqlite::Result<()> {
        let connection = self.connection();
        if connection.is_autocommit() {
            return Ok(());
        }
        let done = matches!(end, Some(AtomicEnd::Done { .. }));
        connection.execute_batch(if done { "COMMIT" } else { "ROLLBACK" })
    }
}

struct OnSqlite {
    rows: AtomicRows,
    work: Arc<dyn AtomicWork>,
}

impl AtomicWork for OnSqlite {
    fn run<'t>(
        &'t self,
        _: &'t mut StepTx<'_>,
    ) -> Pin<Box<dyn Future<Output = StepResult<Bytes>> + Send + 't>> {
        Box::pin(async move {
            let mut connection = self.rows.connection();
            let begun = connection.execute_batch("BEGIN IMMEDIATE");
            begun.map_err(|error| StepError::not_applied(format!("no transaction: {error}")))?;
            run_on_sqlite(&mut AnyTx::Sqlite(&mut connection), &*self.work)
        })
    }
}

impl<App: ?Sized> World<'_, App> {
    /// Asks the database of the atomic steps; `None` without [`Everywhere::sqlite`](super::Everywhere::sqlite).
    pub fn sqlite<T>(&self, ask: impl FnOnce(&Connection) -> T) -> Option<T> {
        self.rows.map(|rows| ask(&rows.connection()))
    }
}

impl fmt::Debug for AtomicRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtomicRows").finish_non_exhaustive()
    }
}
