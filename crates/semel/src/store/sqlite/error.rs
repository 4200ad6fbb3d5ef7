//! Translates SQLite's errors into store errors that say what to do.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::store::{ErrorKind, Fate, StoreError};

/// An error on a connection, before it is known which requests it concerns.
#[derive(Debug)]
pub(crate) enum SqliteError {
    /// SQLite's own error, or a row we cannot read.
    Sqlite(rusqlite::Error),
    /// We refuse this file; the text continues a sentence that begins with its path.
    Refused(String),
}

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

pub(crate) fn refused(why: String) -> SqliteError {
    SqliteError::Refused(why)
}

/// A stored value that semel never writes.
pub(crate) fn unreadable(column: usize, why: impl Into<String>) -> rusqlite::Error {
    let why: Box<dyn std::error::Error + Send + Sync> = why.into().into();
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Blob, why)
}

impl SqliteError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Sqlite(error) => error.sqlite_error_code(),
            Self::Refused(_) => None,
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
    }

    pub(crate) fn is_cannot_open(&self) -> bool {
        self.code() == Some(ErrorCode::CannotOpen)
    }

    pub(super) fn is_full(&self) -> bool {
        self.code() == Some(ErrorCode::DiskFull)
    }

    /// It concerns one row or one value; the transaction can go on.
    pub(super) fn is_of_one_request(&self) -> bool {
        match self {
            Self::Sqlite(rusqlite::Error::SqliteFailure(error, _)) => {
                matches!(error.code, ErrorCode::ConstraintViolation | ErrorCode::TooBig)
            }
            Self::Sqlite(_) => true,
            Self::Refused(_) => false,
        }
    }

    /// After this the connection's view of the file cannot be trusted.
    pub(super) fn needs_new_connection(&self) -> bool {
        !self.is_of_one_request() && !self.is_busy() && !self.is_full()
    }

    /// The error for the caller.
    pub(crate) fn explain(&self, path: &Path, fate: Fate) -> StoreError {
        let path = path.display();
        let error = match self {
            Self::Sqlite(error) => error,
            Self::Refused(why) => {
                return StoreError::new(ErrorKind::Misconfigured, fate, format!("{path} {why}"));
            }
        };
        let (kind, message) = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
                ErrorKind::Unavailable,
                format!("{path} is locked by another process; retry, or stop that process"),
            ),
            Some(ErrorCode::DiskFull) => (
                ErrorKind::Full,
                format!("the disk is full, and {path} cannot grow; free some space, then retry"),
            ),
            Some(ErrorCode::NotADatabase) => (
                ErrorKind::Corrupt,
                format!("{path} is not an SQLite database; name another path, or restore it from a backup"),
            ),
            Some(ErrorCode::DatabaseCorrupt) => (
                ErrorKind::Corrupt,
                format!(
                    "{path} is damaged; stop the service, keep a copy of the file, and restore it from a backup"
                ),
            ),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => (
                ErrorKind::Misconfigured,
                format!("{path} cannot be written; make it and its directory writable for this user"),
            ),
            Some(ErrorCode::CannotOpen) => (
                ErrorKind::Unavailable,
                format!("{path} cannot be opened; check that its directory exists and is writable"),
            ),
            Some(ErrorCode::TooBig) => (ErrorKind::TooLarge, format!("the record is too large for {path}")),
            // Our statements violate no constraint, and rows we wrote can be read: the file was changed by someone
            // else.
            Some(ErrorCode::ConstraintViolation) | None => {
                (ErrorKind::Corrupt, format!("a record in {path} cannot be read; inspect it with sqlite3"))
            }
            Some(_) => (
                ErrorKind::Unavailable,
                format!("{path} cannot be read or written; check its disk, then retry"),
            ),
        };
        // As text: the driver's types are not part of our API, and one failed commit has many callers.
        StoreError::new(kind, fate, message).with_source(error.to_string())
    }
}

/// The path now leads to another file than the one that was opened.
pub(super) fn moved(path: &Path) -> StoreError {
    let message = format!(
        "{} was moved or replaced while in use; put it back, or restart to use the file that is there now",
        path.display()
    );
    StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message)
}
