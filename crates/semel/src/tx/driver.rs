//! The seam to the caller's transaction: run a statement, read rows back.
//!
//! Everything in [`tx`](super) is written once, over this seam, with one text per SQL dialect. A driver is one
//! implementation of [`Tx`].
//!
//! | module | what it decides |
//! |---|---|
//! | `open_tx` | the caller's transaction, found open |
//! | `over_rusqlite`, `over_tokio_postgres`, `over_sqlx_postgres`, `over_sqlx_mysql` | the drivers |
//! | `error` | what the caller can do about a database error |

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

mod error;
mod open_tx;
#[cfg(feature = "sqlite")]
mod over_rusqlite;
#[cfg(feature = "mysql")]
mod over_sqlx_mysql;
#[cfg(feature = "sqlx-postgres")]
mod over_sqlx_postgres;
#[cfg(feature = "postgres")]
mod over_tokio_postgres;

pub use error::{DriverError, DriverErrorKind};
pub(crate) use open_tx::OpenTx;
#[cfg(feature = "sqlite")]
pub(crate) use over_rusqlite::{explain as explain_rusqlite, run as run_rusqlite};
#[cfg(feature = "mysql")]
pub(crate) use over_sqlx_mysql::fill as fill_mysql;
#[cfg(all(feature = "mysql", feature = "saga"))]
pub(crate) use over_sqlx_mysql::run_text as run_mysql;
#[cfg(all(feature = "sqlx-postgres", feature = "saga"))]
pub(crate) use over_sqlx_postgres::{explain as explain_sqlx_postgres, run as run_sqlx_postgres};
#[cfg(all(feature = "postgres", feature = "saga"))]
pub(crate) use over_tokio_postgres::{Typed as TypedPostgres, run_typed as run_tokio_postgres_typed};
#[cfg(feature = "postgres")]
pub(crate) use over_tokio_postgres::{bound as bound_postgres, run as run_tokio_postgres};

/// The SQL a transaction understands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dialect {
    /// PostgreSQL: parameters are `$1`, `$2` …
    Postgres,
    /// MySQL and MariaDB: parameters are `?1`, `?2` …, or `?` one after the other; several statements may be
    /// one text.
    Mysql,
    /// SQLite: parameters are `?1`, `?2` …
    Sqlite,
}

/// One statement in each dialect.
#[derive(Clone, Copy, Debug)]
pub struct Sql {
    /// For PostgreSQL.
    pub postgres: &'static str,
    /// For MySQL and MariaDB.
    pub mysql: &'static str,
    /// For SQLite.
    pub sqlite: &'static str,
}

impl Sql {
    /// The same text everywhere: only for statements without parameters.
    pub const fn same(text: &'static str) -> Self {
        Self { postgres: text, mysql: text, sqlite: text }
    }

    /// The text for one dialect.
    pub fn text(&self, dialect: Dialect) -> &'static str {
        match dialect {
            Dialect::Postgres => self.postgres,
            Dialect::Mysql => self.mysql,
            Dialect::Sqlite => self.sqlite,
        }
    }
}

/// A parameter or a column. NULL keeps its type, because PostgreSQL wants to know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// `bigint`, `INTEGER`; smaller integers and booleans are read as one too.
    Int(Option<i64>),
    /// `bytea`, `BLOB`.
    Bytes(Option<Bytes>),
    /// `text`, `TEXT`.
    Text(Option<String>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(Some(value))
    }
}

impl From<Option<i64>> for Value {
    fn from(value: Option<i64>) -> Self {
        Self::Int(value)
    }
}

impl From<Bytes> for Value {
    fn from(value: Bytes) -> Self {
        Self::Bytes(Some(value))
    }
}

impl From<Option<Bytes>> for Value {
    fn from(value: Option<Bytes>) -> Self {
        Self::Bytes(value)
    }
}

impl From<&[u8]> for Value {
    fn from(value: &[u8]) -> Self {
        Self::Bytes(Some(Bytes::copy_from_slice(value)))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(Some(value.to_owned()))
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(Some(value))
    }
}

impl From<Option<String>> for Value {
    fn from(value: Option<String>) -> Self {
        Self::Text(value)
    }
}

/// One row that came back.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Row(pub Vec<Value>);

impl Row {
    /// An integer that may be NULL.
    pub fn int_or_null(&self, column: usize) -> Result<Option<i64>, DriverError> {
        match self.0.get(column) {
            Some(Value::Int(value)) => Ok(*value),
            // A NULL whose type the database did not report.
            Some(Value::Bytes(None) | Value::Text(None)) => Ok(None),
            other => Err(DriverError::unexpected(column, "an integer", other)),
        }
    }

    /// An integer.
    pub fn int(&self, column: usize) -> Result<i64, DriverError> {
        self.int_or_null(column)?.ok_or_else(|| DriverError::unexpected(column, "an integer", None))
    }

    /// Bytes that may be NULL.
    pub fn bytes_or_null(&self, column: usize) -> Result<Option<Bytes>, DriverError> {
        match self.0.get(column) {
            Some(Value::Bytes(value)) => Ok(value.clone()),
            Some(Value::Int(None) | Value::Text(None)) => Ok(None),
            other => Err(DriverError::unexpected(column, "bytes", other)),
        }
    }

    /// Bytes.
    pub fn bytes(&self, column: usize) -> Result<Bytes, DriverError> {
        self.bytes_or_null(column)?.ok_or_else(|| DriverError::unexpected(column, "bytes", None))
    }

    /// Text that may be NULL.
    pub fn text_or_null(&self, column: usize) -> Result<Option<&str>, DriverError> {
        match self.0.get(column) {
            Some(Value::Text(value)) => Ok(value.as_deref()),
            Some(Value::Int(None) | Value::Bytes(None)) => Ok(None),
            other => Err(DriverError::unexpected(column, "text", other)),
        }
    }

    /// Text.
    pub fn text(&self, column: usize) -> Result<&str, DriverError> {
        self.text_or_null(column)?.ok_or_else(|| DriverError::unexpected(column, "text", None))
    }
}

/// What a statement returned.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rows {
    /// The rows, in order.
    pub rows: Vec<Row>,
    /// How many rows it changed, as the database counts them.
    pub changed: u64,
}

impl Rows {
    /// The first row, if there is one.
    pub fn first(&self) -> Option<&Row> {
        self.rows.first()
    }
}

/// A statement with its parameters in order. The text is always one of ours, never built from input.
#[derive(Clone, Debug)]
pub struct Statement {
    /// The text, in the dialect of the transaction.
    pub text: &'static str,
    /// The parameters.
    pub values: Vec<Value>,
}

/// What the work gets of a transaction.
///
/// A separate trait with a single lifetime: an `async` closure that takes it is then `Send` where its parts are, and
/// a web framework accepts the handler around it.
pub trait Lend {
    /// `&mut PgConnection` of sqlx, `&Transaction` of tokio_postgres, `&Connection` of rusqlite.
    type Lent<'l>;
}

/// The caller's transaction, as semel uses it.
///
/// Implemented for `sqlx::Transaction<'_, Postgres>` and `sqlx::PgConnection` (feature `sqlx-postgres`), for
/// `sqlx::Transaction<'_, MySql>` and `sqlx::MySqlConnection` (feature `mysql`), for
/// `tokio_postgres::Transaction` (feature `postgres`) and for `&rusqlite::Connection` (feature `sqlite`; see
/// `semel::blocking`). Pools that wrap one of them lend it by `&mut *tx`.
///
/// A future over a transaction can move between threads if the transaction can: all but rusqlite's.
///
/// Laws of an implementation:
/// - A statement runs inside the transaction the caller has open, in order, and nowhere else. Nothing here ever
///   begins, commits or rolls back; the caller does.
/// - An error's [kind](DriverErrorKind) says what the database reported.
/// - Dropping the future leaves the transaction to be rolled back.
pub trait Tx: Lend {
    /// Its SQL dialect.
    fn dialect(&self) -> Dialect;

    /// Whether a transaction is open, as far as the driver knows.
    fn is_open(&self) -> bool {
        true
    }

    /// Lends it to the work.
    fn lend(&mut self) -> Self::Lent<'_>;

    /// Runs one statement.
    fn run(&mut self, statement: Statement) -> impl Future<Output = Result<Rows, DriverError>>;

    /// Waits without touching the database.
    fn pause(&mut self, pause: Duration) -> impl Future<Output = ()> {
        tokio::time::sleep(pause)
    }
}
