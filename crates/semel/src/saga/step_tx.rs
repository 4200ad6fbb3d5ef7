//! The transaction of an atomic step.

#[cfg(feature = "_sql")]
use crate::database::AnyTx;
#[cfg(feature = "_sql")]
use crate::tx::driver::{Dialect, DriverError, DriverErrorKind, Lend, Rows, Statement, Tx};

/// The transaction of an atomic step: what it writes is committed together with the journal, or not at all.
///
/// Ask it for the driver's own transaction, or hand it to what takes any [`Tx`](crate::tx::driver::Tx):
/// [`append_tx`](crate::outbox::append_tx), [`ledger::post`](crate::tx::ledger::post), [`once_tx`](crate::tx::once_tx()).
/// Never commit it or roll it back.
#[derive(Debug)]
pub struct StepTx<'a>(pub(super) StepTxKind<'a>);

#[derive(Debug)]
pub(super) enum StepTxKind<'a> {
    #[cfg(feature = "_sql")]
    Sql(AnyTx<'a>),
    Memory(&'a mut MemoryRows),
}

/// What atomic steps write where the journal is in memory.
#[derive(Debug, Default)]
pub struct MemoryRows {
    pub(super) written: Vec<String>,
}

impl MemoryRows {
    /// Writes a row: it is there when the step has committed.
    pub fn write(&mut self, row: impl Into<String>) {
        self.written.push(row.into());
    }
}

impl StepTx<'_> {
    /// On PostgreSQL: the transaction, over `tokio_postgres`.
    #[cfg(feature = "postgres")]
    pub fn postgres(&mut self) -> Option<&tokio_postgres::Transaction<'_>> {
        match &self.0 {
            StepTxKind::Sql(AnyTx::Postgres(tx)) => Some(tx),
            _ => None,
        }
    }

    /// On PostgreSQL where [`steps_over`](super::sql::SqlJournal::steps_over) was given a pool: the connection, with the
    /// transaction open.
    #[cfg(feature = "sqlx-postgres")]
    pub fn sqlx_postgres(&mut self) -> Option<&mut sqlx::PgConnection> {
        match &mut self.0 {
            StepTxKind::Sql(AnyTx::SqlxPostgres(connection)) => Some(connection),
            _ => None,
        }
    }

    /// On MySQL and MariaDB: the connection, with the transaction open.
    #[cfg(feature = "mysql")]
    pub fn mysql(&mut self) -> Option<&mut sqlx::MySqlConnection> {
        match &mut self.0 {
            StepTxKind::Sql(AnyTx::Mysql(connection)) => Some(connection),
            _ => None,
        }
    }

    /// On SQLite: the connection, with the transaction open. The step must not wait for anything but the database.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(&mut self) -> Option<&rusqlite::Connection> {
        match &self.0 {
            StepTxKind::Sql(AnyTx::Sqlite(connection)) => Some(connection),
            _ => None,
        }
    }

    /// Where the journal is in memory, for tests.
    pub fn memory(&mut self) -> Option<&mut MemoryRows> {
        match &mut self.0 {
            StepTxKind::Memory(rows) => Some(rows),
            #[cfg(feature = "_sql")]
            StepTxKind::Sql(_) => None,
        }
    }
}

#[cfg(feature = "_sql")]
impl Lend for StepTx<'_> {
    type Lent<'l> = ();
}

#[cfg(feature = "_sql")]
impl Tx for StepTx<'_> {
    fn dialect(&self) -> Dialect {
        match &self.0 {
            StepTxKind::Sql(tx) => tx.dialect(),
            StepTxKind::Memory(_) => Dialect::Sqlite,
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.0, StepTxKind::Sql(_))
    }

    fn lend(&mut self) -> Self::Lent<'_> {}

    async fn run(&mut self, statement: Statement) -> Result<Rows, DriverError> {
        match &mut self.0 {
            StepTxKind::Sql(tx) => tx.run(statement).await,
            StepTxKind::Memory(_) => {
                Err(DriverError::new(DriverErrorKind::Other, "a journal in memory has no database"))
            }
        }
    }
}
