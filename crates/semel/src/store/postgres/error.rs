//! What PostgreSQL's errors mean for a request, in one line that says what to do.

use tokio_postgres::error::SqlState;

use crate::store::coalesce::Failure;
use crate::store::{ErrorKind, Fate, StoreError};

/// What can go wrong on a connection, before it is known what that means for whom.
#[derive(Debug)]
pub(crate) enum PostgresError {
    /// The driver's or the server's error.
    Postgres(tokio_postgres::Error),
    /// The same, before anything was sent that changes something.
    Before(tokio_postgres::Error),
    /// A standby, or a server set read-only.
    ReadOnly,
    /// A row no semel wrote.
    Unreadable(String),
    /// We do not take this server or these tables.
    Refused(String),
    /// The server did not answer in time; the request may still be under way.
    TimedOut(String),
    /// It could not be reached a moment ago, and was not tried again. This is what was said then.
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

    /// Whether something was asked of a table that is not there.
    pub(crate) fn lacks_table(&self) -> bool {
        self.state().is_some_and(|state| *state == SqlState::UNDEFINED_TABLE)
    }

    /// Whether a lock was not to be had in time, or not without others giving way.
    pub(crate) fn is_of_locks(&self) -> bool {
        self.state().is_some_and(|state| matches!(state.code(), "55P03" | "40P01"))
    }

    /// Whether the connection is of no use any more. The server ends it with errors of class 57P; without an
    /// SQLSTATE it was the network or the protocol.
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

    /// It can be about one item of a batch, so the others are worth another try alone: a value the server does
    /// not take, a conflict, a deadlock.
    pub(crate) fn may_be_of_one(&self) -> bool {
        match self {
            Self::Unreadable(_) => true,
            Self::Postgres(_) | Self::Before(_) => {
                matches!(self.class(), "21" | "22" | "23" | "40" | "54" | "55")
            }
            _ => false,
        }
    }

    /// What became of a statement that ended like this. An error the server sends has undone the statement.
    /// Not so where it ends the session: that may come after the commit.
    fn fate(&self) -> Fate {
        match self {
            Self::Refused(_) | Self::Before(_) | Self::ReadOnly | Self::Outage(_) => Fate::NotApplied,
            // The rows were read; whether the statement also wrote is not asked here.
            Self::Unreadable(_) | Self::TimedOut(_) => Fate::InDoubt,
            Self::Postgres(error) if error.code().is_none_or(|state| ends_connection(state.code())) => {
                Fate::InDoubt
            }
            Self::Postgres(_) => Fate::NotApplied,
        }
    }

    /// Says it to the many who asked.
    pub(in crate::store) fn failure(&self) -> Failure {
        self.failure_with(self.fate())
    }

    /// Says it to the one who asked, where nothing was sent or nothing can have been written.
    pub(crate) fn not_applied(&self) -> StoreError {
        self.failure_with(Fate::NotApplied).error()
    }

    /// Says it to the one who asked.
    pub(crate) fn explain(&self) -> StoreError {
        self.failure().error()
    }

    pub(in crate::store) fn failure_with(&self, fate: Fate) -> Failure {
        let (kind, message) = match self {
            Self::Refused(why) => (ErrorKind::Misconfigured, why.clone()),
            Self::Unreadable(why) => (
                ErrorKind::Corrupt,
                format!("a record in semel_intent makes no sense: {why}; look at it with psql"),
            ),
            Self::TimedOut(what) => (ErrorKind::Unavailable, what.clone()),
            Self::ReadOnly => (ErrorKind::Unavailable, READ_ONLY.to_owned()),
            Self::Postgres(error) | Self::Before(error) => told(error),
            Self::Outage(failure) => return Failure { fate, ..failure.clone() },
        };
        let source = match self {
            Self::Postgres(error) | Self::Before(error) => Some(in_words(error)),
            _ => None,
        };
        Failure { kind, fate, message, source, lost: self.loses_connection(), of_one: self.may_be_of_one() }
    }
}

/// The class of an SQLSTATE. What sits in between may send anything, also less than two characters.
fn class(state: &str) -> &str {
    state.get(..2).unwrap_or_default()
}

/// Whether an SQLSTATE says that the connection ended, or that nobody knows how the statement did. Class 08 comes
/// from poolers too: PgBouncer says 08P01 when the server dies in the middle of a statement.
fn ends_connection(state: &str) -> bool {
    state.starts_with("57P") || state.starts_with("08") || state == "40003"
}

const READ_ONLY: &str =
    "PostgreSQL takes no writes: it is a standby, or was set read-only; connect to the primary";

/// The server's own words; a driver's types are not for callers.
fn in_words(error: &tokio_postgres::Error) -> String {
    let Some(error) = error.as_db_error() else { return error_chain(error) };
    let mut words = format!("{} {}", error.code().code(), error.message());
    for more in [error.detail(), error.hint()].into_iter().flatten() {
        words.push_str("; ");
        words.push_str(more);
    }
    words
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !words.contains(&next) {
            words = format!("{words}: {next}");
        }
        cause = error.source();
    }
    words
}

fn told(error: &tokio_postgres::Error) -> (ErrorKind, String) {
    let Some(state) = error.code() else {
        let message = "PostgreSQL cannot be reached, or the connection to it broke; check that it runs";
        return (ErrorKind::Unavailable, message.to_owned());
    };
    let code = state.code();
    let (kind, message) = match code {
        "25006" => (ErrorKind::Unavailable, READ_ONLY),
        "53100" => (ErrorKind::Full, "no room left on PostgreSQL's disk; free some, then retry"),
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
            "PostgreSQL took longer than ?statement_timeout= allows; look at its load, then retry",
        ),
        "55P03" => (
            ErrorKind::Unavailable,
            "somebody holds a lock on semel's tables; look into pg_locks, then retry",
        ),
        "3D000" => (ErrorKind::Misconfigured, "there is no such database; create it, or correct the URL"),
        "3F000" => (ErrorKind::Misconfigured, "there is no such schema; create it, or correct ?schema="),
        "42501" => (
            ErrorKind::Misconfigured,
            "this user may not use semel's tables; grant it, or run semel migrate as their owner",
        ),
        "42P01" | "42703" | "42883" => (
            ErrorKind::Misconfigured,
            "semel's tables are not there or not whole; run semel migrate, and check the search_path",
        ),
        "42P07" | "42710" => (
            ErrorKind::Misconfigured,
            "something with the name of one of semel's tables is there already; name another schema with ?schema=",
        ),
        _ => match class(code) {
            "28" => (ErrorKind::Misconfigured, "PostgreSQL refuses this user or password; correct the URL"),
            "08" | "57" | "53" | "40" => (ErrorKind::Unavailable, "PostgreSQL is not ready; retry"),
            "54" => (ErrorKind::TooLarge, "the record is larger than PostgreSQL takes"),
            "22" | "23" => (ErrorKind::Corrupt, "PostgreSQL does not take this record"),
            "XX" | "58" => {
                (ErrorKind::Unavailable, "PostgreSQL reports an error of its own; look into its log")
            }
            _ => (ErrorKind::Unavailable, "PostgreSQL refused a statement of semel's; look into its log"),
        },
    };
    (kind, message.to_owned())
}
