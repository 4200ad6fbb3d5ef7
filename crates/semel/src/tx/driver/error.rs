//! Database errors, classified by what the caller can do about them.

use std::error::Error;
use std::fmt;

use super::Value;

/// What the caller can do about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DriverErrorKind {
    /// Two transactions conflicted (40001, 40P01, 1213, SQLITE_BUSY_SNAPSHOT): roll back and run the whole
    /// transaction again.
    Serialization,
    /// Another transaction holds the lock: the same statement may succeed a little later, in the same transaction.
    Busy,
    /// An earlier statement failed and the transaction can only be rolled back (25P02).
    Aborted,
    /// The transaction or the database is read-only.
    ReadOnly,
    /// A unique constraint was violated.
    Unique,
    /// semel's tables do not exist.
    NoTables,
    /// No transaction is open: each statement would commit by itself.
    NoTransaction,
    /// The connection is gone. Nothing was committed by it unless a commit was under way.
    Lost,
    /// The database's answer cannot be decoded.
    Unreadable,
    /// Anything else.
    Other,
}

/// An error of the caller's database in plain words, with the driver's own as its source.
#[derive(Debug)]
pub struct DriverError {
    kind: DriverErrorKind,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl DriverError {
    /// An error whose message says what to do next.
    pub fn new(kind: DriverErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// A driver's error, with the usual message for its kind.
    pub fn of(kind: DriverErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let message = match kind {
            DriverErrorKind::Serialization => {
                "conflict with another transaction; roll back and run the whole transaction again"
            }
            DriverErrorKind::Busy => "another transaction holds the lock; try again a little later",
            DriverErrorKind::Aborted => {
                "an earlier statement of this transaction failed; roll it back, nothing more can run in it"
            }
            DriverErrorKind::ReadOnly => {
                "the transaction is read-only, so nothing can be recorded in it; begin a read-write transaction"
            }
            DriverErrorKind::Unique => "a row with that key exists already",
            DriverErrorKind::NoTables => {
                "semel's tables are not in this database; create them with `semel migrate` or `semel::tx::schema`"
            }
            DriverErrorKind::NoTransaction => "no transaction is open; begin one first",
            DriverErrorKind::Lost => "the connection to the database is gone; begin again on another one",
            DriverErrorKind::Unreadable => "the database's answer cannot be decoded",
            DriverErrorKind::Other => "the database refused a statement",
        };
        Self { kind, message: message.to_owned(), source: Some(source.into()) }
    }

    /// A driver's error, with its own message.
    #[cfg(feature = "sqlx-postgres")]
    pub(super) fn because(
        message: &str,
        kind: DriverErrorKind,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { kind, message: message.to_owned(), source: Some(source.into()) }
    }

    pub(super) fn unexpected(column: usize, wanted: &str, found: Option<&Value>) -> Self {
        let found = match found {
            None => "nothing",
            Some(Value::Int(_)) => "an integer",
            Some(Value::Bytes(_)) => "bytes",
            Some(Value::Text(_)) => "text",
        };
        let message = format!("column {column} of the result should be {wanted}, but is {found}");
        Self::new(DriverErrorKind::Unreadable, message)
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> DriverErrorKind {
        self.kind
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

impl Error for DriverError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

/// Classifies an SQLSTATE of PostgreSQL.
#[cfg(feature = "postgres")]
pub(super) fn kind_of_sqlstate(code: &str) -> DriverErrorKind {
    match code {
        "40001" | "40P01" => DriverErrorKind::Serialization,
        "55P03" => DriverErrorKind::Busy,
        "25P02" => DriverErrorKind::Aborted,
        "25006" => DriverErrorKind::ReadOnly,
        "23505" => DriverErrorKind::Unique,
        // Undefined table, function, column, schema.
        "42P01" | "42883" | "42703" | "3F000" => DriverErrorKind::NoTables,
        "25P01" => DriverErrorKind::NoTransaction,
        // Connection exceptions, and a server that goes down.
        code if code.starts_with("08") || code.starts_with("57P") => DriverErrorKind::Lost,
        _ => DriverErrorKind::Other,
    }
}
