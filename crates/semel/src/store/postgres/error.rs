//! Translates PostgreSQL's errors into store errors that say what to do.

use tokio_postgres::error::SqlState;

use crate::store::coalesce::Failure;
use crate::store::{ErrorKind, Fate, StoreError};

/// An error on a connection, before it is known which requests it concerns.
#[derive(Debug)]
pub(crate) enum PostgresError {
    /// The driver's or the server's error.
    Postgres(tokio_postgres::Error),
    /// The same, before any statement that writes was sent.
    Before(tokio_postgres::Error),
    /// The server is a standby, or set read-only.
    ReadOnly,
    /// A row that semel never writes.
    Unreadable(String),
    /// We refuse this server or these tables.
    Refused(String),
    /// The server did not answer in time; the request may still be running.
    TimedOut(String),
    /// Connect backoff: the server could not be reached a moment ago, and was not tried again. Holds that failure.
    Outage(Failure),
}

impl From<tokio_postgres::Error> for PostgresError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

pub(crate) fn refused(why: impl Into<String>) -> PostgresError {
    PostgresError::Refused(why.into())
}

pub(crate) fn unreadable(why: impl Into<String>) -> PostgresError {
    PostgresError::Unreadable(why.into())
}

impl PostgresError {
    fn state(&self) -> Option<&SqlState> {
        match self {
            Self::Postgres(error) | Self::Before(error) => error.code(),
            _ => None,
        }
    }

    /// The class of an SQLSTATE: its first two characters.
    fn class(&self) -> &str {
        self.state().map_or("", |state| class(state.code()))
    }

    /// Whether a table does not exist.
    pub(crate) fn lacks_table(&self) -> bool {
        self.state().is_some_and(|state| *state == SqlState::UNDEFINED_TABLE)
    }

    /// Whether it is a lock timeout or a deadlock.
    pub(crate) fn is_of_locks(&self) -> bool {
        self.state().is_some_and(|state| matches!(state.code(), "55P03" | "40P01"))
    }

    /// Whether the connection cannot be used any more. The server ends it with errors of class 57P; without an
    /// SQLSTATE the cause was the network or the protocol.
    pub(crate) fn loses_connection(&self) -> bool {
        match self {
            // A server that became a standby keeps its connections; the primary is elsewhere now.
            Self::Postgres(error) | Self::Before(error) => {
                error.code().is_none_or(|state| ends_connection(state.code()) || state.code() == "25006")
            }
            Self::TimedOut(_) | Self::ReadOnly => true,
            Self::Unreadable(_) | Self::Refused(_) | Self::Outage(_) => false,
        }
    }

    /// One request of the batch may be the cause (a value the server refuses, a conflict, a deadlock), so each is
    /// worth a try on its own.
    pub(crate) fn may_be_of_one(&self) -> bool {
        match self {
            Self::Unreadable(_) => true,
            Self::Postgres(_) | Self::Before(_) => {
                matches!(self.class(), "21" | "22" | "23" | "40" | "54" | "55")
            }
            _ => false,
        }
    }

    /// The fate of a statement that ended with this error. An error from the server has rolled the statement back,
    /// unless it ends the session: that may come after the commit.
    fn fate(&self) -> Fate {
        match self {
            Self::Refused(_) | Self::Before(_) | Self::ReadOnly | Self::Outage(_) => Fate::NotApplied,
            // Rows came back, so the statement may have written.
            Self::Unreadable(_) | Self::TimedOut(_) => Fate::InDoubt,
            Self::Postgres(error) if error.code().is_none_or(|state| ends_connection(state.code())) => {
                Fate::InDoubt
            }
            Self::Postgres(_) => Fate::NotApplied,
        }
    }

    /// The error for all requests of a batch.
    pub(in crate::store) fn failure(&self) -> Failure {
        self.failure_with(self.fate())
    }

    /// The error for one caller, where nothing was sent or nothing can have been written.
    pub(crate) fn not_applied(&self) -> StoreError {
        self.failure_with(Fate::NotApplied).error()
    }

    /// The error for one caller.
    pub(crate) fn explain(&self) -> StoreError {
        self.failure().error()
    }

    pub(in crate::store) fn failure_with(&self, fate: Fate) -> Failure {
        let (kind, message) = match self {
            Self::Refused(why) => (ErrorKind::Misconfigured, why.clone()),
            Self::Unreadable(why) => (
                ErrorKind::Corrupt,
                format!("a record in semel_intent cannot be read: {why}; inspect it with psql"),
            ),
            Self::TimedOut(what) => (ErrorKind::Unavailable, what.clone()),
            Self::ReadOnly => (ErrorKind::Unavailable, READ_ONLY.to_owned()),
            Self::Postgres(error) | Self::Before(error) => classify(error),
            Self::Outage(failure) => return Failure { fate, ..failure.clone() },
        };
        let source = match self {
            Self::Postgres(error) | Self::Before(error) => Some(error_text(error)),
            _ => None,
        };
        Failure { kind, fate, message, source, lost: self.loses_connection(), of_one: self.may_be_of_one() }
    }
}

/// The class of an SQLSTATE. A proxy may send anything, also less than two characters.
fn class(state: &str) -> &str {
    state.get(..2).unwrap_or_default()
}

/// Whether an SQLSTATE says that the connection ended, or that the statement's result is unknown. Class 08 comes from
/// poolers too: PgBouncer sends 08P01 when the server dies in the middle of a statement.
pub(crate) fn ends_connection(state: &str) -> bool {
    state.starts_with("57P") || state.starts_with("08") || state == "40003"
}

const READ_ONLY: &str =
    "PostgreSQL accepts no writes, because it is a standby or read-only; connect to the primary";

/// The server's own message as text: the driver's types are not part of our API.
fn error_text(error: &tokio_postgres::Error) -> String {
    let Some(error) = error.as_db_error() else { return error_chain(error) };
    let mut text = format!("{} {}", error.code().code(), error.message());
    for more in [error.detail(), error.hint()].into_iter().flatten() {
        text.push_str("; ");
        text.push_str(more);
    }
    text
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

fn classify(error: &tokio_postgres::Error) -> (ErrorKind, String) {
    let Some(state) = error.code() else {
        let message = "PostgreSQL cannot be reached, or the connection broke; check that it runs, then retry";
        return (ErrorKind::Unavailable, message.to_owned());
    };
    let code = state.code();
    let (kind, message) = match code {
        "25006" => (ErrorKind::Unavailable, READ_ONLY),
        "53100" => (ErrorKind::Full, "PostgreSQL's disk is full; free some space, then retry"),
        "53200" => (
            ErrorKind::Unavailable,
            "PostgreSQL is out of memory or of lock slots; raise max_locks_per_transaction, or send fewer",
        ),
        "53300" => (
            ErrorKind::Unavailable,
            "PostgreSQL has no connection left; raise max_connections, or open fewer (?lanes=)",
        ),
        "57014" => (
            ErrorKind::Unavailable,
            "a statement took longer than ?statement_timeout= allows; check PostgreSQL's load and locks, then retry",
        ),
        "55P03" => {
            (ErrorKind::Unavailable, "another session has locked semel's tables; check pg_locks, then retry")
        }
        "3D000" => (ErrorKind::Misconfigured, "there is no such database; create it, or correct the URL"),
        "3F000" => (ErrorKind::Misconfigured, "there is no such schema; create it, or correct ?schema="),
        "42501" => (
            ErrorKind::Misconfigured,
            "this user may not use semel's tables; grant it, or run semel migrate as their owner",
        ),
        "42P01" | "42703" | "42883" => (
            ErrorKind::Misconfigured,
            "semel's tables are missing or incomplete; run semel migrate, and check the search_path",
        ),
        "42P07" | "42710" => (
            ErrorKind::Misconfigured,
            "an object with the name of one of semel's tables already exists; name another schema with ?schema=",
        ),
        _ => match class(code) {
            "28" => (ErrorKind::Misconfigured, "PostgreSQL refuses this user or password; correct the URL"),
            "08" | "57" | "53" | "40" => {
                (ErrorKind::Unavailable, "PostgreSQL is not ready, or ended the request; retry")
            }
            "54" => (ErrorKind::TooLarge, "the record is too large for PostgreSQL"),
            "22" | "23" => (ErrorKind::Corrupt, "PostgreSQL refused this record; check its log"),
            "XX" | "58" => (ErrorKind::Unavailable, "PostgreSQL reports an internal error; check its log"),
            _ => (ErrorKind::Unavailable, "PostgreSQL refused a statement of semel's; check its log"),
        },
    };
    (kind, message.to_owned())
}
