//! The caller's transaction, found open.

use std::time::Duration;

use super::{Dialect, DriverError, DriverErrorKind, Rows, Sql, Statement, Tx, Value};

/// A transaction that was open when the call began. Outside of one, each statement would commit by itself.
pub(crate) struct OpenTx<'t, X> {
    tx: &'t mut X,
}

impl<'t, X: Tx> OpenTx<'t, X> {
    pub(crate) fn new(tx: &'t mut X) -> Result<Self, DriverError> {
        if tx.is_open() {
            return Ok(Self { tx });
        }
        let message = match tx.dialect() {
            Dialect::Postgres | Dialect::Mysql => {
                "no transaction is open on this connection; begin one with the driver's own `begin`"
            }
            Dialect::Sqlite => {
                "no transaction is open on this connection; begin one, best with TransactionBehavior::Immediate"
            }
        };
        Err(DriverError::new(DriverErrorKind::NoTransaction, message))
    }

    /// The transaction itself.
    #[cfg(feature = "saga")]
    pub(crate) fn inner(&mut self) -> &mut X {
        self.tx
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.tx.dialect()
    }

    /// Runs a statement in its text for this dialect.
    pub(crate) async fn run(&mut self, sql: &Sql, values: Vec<Value>) -> Result<Rows, DriverError> {
        let text = sql.text(self.dialect());
        self.tx.run(Statement { text, values }).await
    }

    /// Waits without touching the database.
    pub(crate) async fn pause(&mut self, pause: Duration) {
        self.tx.pause(pause).await;
    }
}
