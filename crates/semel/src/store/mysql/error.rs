//! Translates the server's and the driver's errors into store errors that say what to do.

use sqlx::mysql::MySqlDatabaseError;

use crate::store::coalesce::Failure;
use crate::store::{ErrorKind, Fate, StoreError};

/// An error on a connection, before it is known which requests it concerns.
#[derive(Debug)]
pub(crate) enum MysqlError {
    /// The server refused a statement; the connection can still be used.
    Refused { number: u16, message: String },
    /// The connection broke, or the answer could not be parsed.
    Lost(String),
    /// Timeout: no answer for this many ms.
    Silent(u128),
    /// A row that semel never writes.
    Unreadable(String),
}

impl From<sqlx::Error> for MysqlError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(refused) => match refused.try_downcast_ref::<MySqlDatabaseError>() {
                Some(refused) => Self::refused(refused.number(), refused.message()),
                None => Self::Lost(error.to_string()),
            },
            sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnIndexOutOfBounds { .. }
            | sqlx::Error::ColumnNotFound(_) => Self::Unreadable(error.to_string()),
            _ => Self::Lost(error.to_string()),
        }
    }
}

impl MysqlError {
    fn refused(number: u16, message: &str) -> Self {
        match number {
            // The server ends the connection: shutting down, killed, or because a packet is too large.
            1053 | 1077 | 1078 | 1079 | 1153 | 1158..=1161 | 1184 | 1927 | 4031 => {
                Self::Lost(format!("{number}: {message}"))
            }
            _ => Self::Refused { number, message: message.to_owned() },
        }
    }

    /// The server's error number.
    pub(crate) fn number(&self) -> Option<u16> {
        match self {
            Self::Refused { number, .. } => Some(*number),
            _ => None,
        }
    }

    /// A lock conflict: a deadlock, a lock wait timeout, a lock not waited for (NOWAIT), or the counter was busy for
    /// too long (1467).
    pub(super) fn is_lock(&self) -> bool {
        matches!(self.number(), Some(1205 | 1213 | 1467 | 3572 | 3058))
    }

    /// Refused before anything could be committed, also where the statement commits by itself.
    pub(super) fn is_before_commit(&self) -> bool {
        self.is_lock()
            || matches!(
                self.number(),
                Some(
                    1044 | 1045
                        | 1049
                        | 1054
                        | 1142
                        | 1143
                        | 1146
                        | 1227
                        | 1264
                        | 1265
                        | 1290
                        | 1292
                        | 1366
                        | 1370
                        | 1406
                        | 1665
                        | 1690
                        | 1792
                        | 1836
                )
            )
    }

    /// After this the connection cannot be used.
    pub(super) fn needs_new_connection(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Silent(_))
    }

    /// One request of the batch may be the cause.
    pub(super) fn may_be_of_one_request(&self) -> bool {
        match self {
            Self::Unreadable(_) => true,
            Self::Refused { number, .. } => {
                matches!(number, 1054 | 1264 | 1265 | 1292 | 1366 | 1406 | 1690 | 3140) || self.is_lock()
            }
            Self::Lost(_) | Self::Silent(_) => false,
        }
    }

    /// The kind, the message that says what to do, and the server's own message.
    fn parts(&self, server: &str) -> (ErrorKind, String, Option<String>) {
        match self {
            Self::Refused { number, message } => {
                let (kind, message_to_caller) = refusal(*number, server);
                (kind, message_to_caller, Some(format!("{number}: {message}")))
            }
            Self::Lost(why) => (
                ErrorKind::Unavailable,
                format!("lost the connection to {server}; check that the server runs, then retry"),
                Some(why.clone()),
            ),
            Self::Silent(ms) => (
                ErrorKind::Unavailable,
                format!("{server} has not answered for {ms} ms; check its load and locks, then retry"),
                None,
            ),
            Self::Unreadable(why) => (
                ErrorKind::Corrupt,
                format!("a record in {server} cannot be read; inspect it in the view semel_intents"),
                Some(why.clone()),
            ),
        }
    }

    /// The error for one caller. `server` is the server's URL without its password.
    pub(crate) fn explain(&self, server: &str, fate: Fate) -> StoreError {
        // As text: the driver's types are not part of our API.
        let (kind, message, source) = self.parts(server);
        let error = StoreError::new(kind, fate, message);
        match source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }

    /// The error for all requests of a batch.
    pub(super) fn failure(&self, server: &str, fate: Fate) -> Failure {
        let (kind, message, source) = self.parts(server);
        let lost = self.needs_new_connection();
        Failure { kind, fate, message, source, lost, of_one: self.may_be_of_one_request() }
    }
}

fn refusal(number: u16, server: &str) -> (ErrorKind, String) {
    match number {
        1205 | 1213 | 1467 | 3572 | 3058 => (
            ErrorKind::Busy,
            format!(
                "the record is locked by an open transaction on {server}; retry when that transaction has ended"
            ),
        ),
        1040 | 1203 | 1226 => (
            ErrorKind::Unavailable,
            format!("{server} accepts no more connections; raise max_connections, or use fewer, then retry"),
        ),
        1290 | 1792 | 1836 | 3100 => (
            ErrorKind::Unavailable,
            format!(
                "{server} is read-only (a replica, or failing over); connect to the primary, or retry after the \
                 failover"
            ),
        ),
        1021 | 1037 | 1038 | 1041 | 1114 => (
            ErrorKind::Full,
            format!("{server} has no room left; free some disk space or memory there, then retry"),
        ),
        1301 | 1406 => (ErrorKind::TooLarge, format!("the record is too large for {server}")),
        1044 | 1045 | 1130 | 1142 | 1143 | 1227 | 1251 | 1370 | 1698 | 2061 => {
            (ErrorKind::Misconfigured, format!("{server} denies access; check user, password and grants"))
        }
        1049 => (ErrorKind::Misconfigured, format!("{server} has no such database; create it first")),
        1054 | 1146 => (
            ErrorKind::Misconfigured,
            format!("{server} lacks semel's tables or columns; create them with `semel migrate`"),
        ),
        1665 => (
            ErrorKind::Misconfigured,
            format!("{server} uses statement-based binary logs; set binlog_format to ROW or MIXED"),
        ),
        1034 | 1194 | 1195 | 1712 | 1815 | 1877 => (
            ErrorKind::Corrupt,
            format!(
                "a table on {server} is damaged; stop the service, keep a copy, and restore the table from a backup"
            ),
        ),
        _ => {
            (ErrorKind::Unavailable, format!("{server} refused a statement; check its error log, then retry"))
        }
    }
}

/// A configuration that cannot work.
pub(super) fn misconfigured(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
}
