//! A transaction on whichever database it is.

use futures_util::future::BoxFuture;

use crate::tx::driver::{Dialect, DriverError, Lend, OpenTx, Rows, Statement, Tx};

/// One type for all drivers: an operation is a closure, and a closure cannot be generic.
pub(crate) enum AnyTx<'c> {
    #[cfg(feature = "postgres")]
    Postgres(&'c tokio_postgres::Transaction<'c>),
    #[cfg(all(feature = "sqlx-postgres", feature = "saga"))]
    SqlxPostgres(&'c mut sqlx::PgConnection),
    #[cfg(feature = "mysql")]
    Mysql(&'c mut sqlx::MySqlConnection),
    /// Not its `Transaction`: that cannot move between threads, and the others' futures must.
    #[cfg(feature = "sqlite")]
    Sqlite(&'c mut rusqlite::Connection),
}

pub(crate) type OwnTx<'t, 'c> = OpenTx<'t, AnyTx<'c>>;

/// What is done in one transaction.
pub(crate) trait TxOperation<T>:
    for<'a> FnOnce(&'a mut OwnTx<'_, '_>) -> BoxFuture<'a, Result<T, DriverError>> + Send + 'static
{
}

impl<T, F> TxOperation<T> for F where
    F: for<'a> FnOnce(&'a mut OwnTx<'_, '_>) -> BoxFuture<'a, Result<T, DriverError>> + Send + 'static
{
}

/// Runs an operation in a transaction that was begun for it.
pub(super) async fn in_tx<T>(tx: &mut AnyTx<'_>, operation: impl TxOperation<T>) -> Result<T, DriverError> {
    operation(&mut OpenTx::new(tx)?).await
}

#[cfg(feature = "saga")]
impl AnyTx<'_> {
    /// The same transaction, for a while.
    pub(crate) fn reborrow(&mut self) -> AnyTx<'_> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(tx) => AnyTx::Postgres(tx),
            #[cfg(feature = "sqlx-postgres")]
            Self::SqlxPostgres(connection) => AnyTx::SqlxPostgres(connection),
            #[cfg(feature = "mysql")]
            Self::Mysql(connection) => AnyTx::Mysql(connection),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(connection) => AnyTx::Sqlite(connection),
        }
    }
}

impl Lend for AnyTx<'_> {
    type Lent<'l> = ();
}

impl Tx for AnyTx<'_> {
    fn dialect(&self) -> Dialect {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Dialect::Postgres,
            #[cfg(all(feature = "sqlx-postgres", feature = "saga"))]
            Self::SqlxPostgres(_) => Dialect::Postgres,
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => Dialect::Mysql,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => Dialect::Sqlite,
        }
    }

    fn lend(&mut self) -> Self::Lent<'_> {}

    async fn run(&mut self, statement: Statement) -> Result<Rows, DriverError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(tx) => crate::tx::driver::run_tokio_postgres(tx, statement).await,
            #[cfg(all(feature = "sqlx-postgres", feature = "saga"))]
            Self::SqlxPostgres(connection) => connection.run(statement).await,
            #[cfg(feature = "mysql")]
            Self::Mysql(connection) => connection.run(statement).await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(connection) => crate::tx::driver::run_rusqlite(connection, &statement),
        }
    }
}

impl std::fmt::Debug for AnyTx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AnyTx({:?})", self.dialect())
    }
}
