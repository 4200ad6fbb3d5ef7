//! Commands: requests to change one aggregate, each based on the version its sender has seen.
//!
//! Three cases that look alike are kept apart:
//!
//! | received | what it is | result |
//! |---|---|---|
//! | the same command again | a retry | the result of the first time ([`Applied::Replayed`]) |
//! | another command, and the aggregate has moved on | a separate intent that came too late | [`CommandError::Conflict`], or the current state ([`Applied::Current`]): the API's choice |
//! | the same command id with another payload | a sender's bug | [`CommandError::Mismatch`] |

use std::error::Error;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::driver::Tx;
use super::error::TxError;
use super::once::{Once, TxReply};
use super::stored_value::Remember;
use crate::intent::fingerprint::{Fingerprint, Recipe};
use crate::intent::identity::{Intent, Operation};
use crate::intent::key::Key;
use crate::intent::policy::Retention;
use crate::intent::scope::Scope;
use crate::store::protect::Protection;

/// A command as it is sent.
///
/// ```
/// # #[cfg(feature = "sqlite")] {
/// use rusqlite::{Connection, OptionalExtension};
/// use semel::blocking;
/// use semel::tx::{Applied, Command, CommandError, Transition, TxError};
///
/// let mut db = Connection::open_in_memory()?;
/// semel::tx::sqlite::migrate(&db)?;
/// db.execute_batch("CREATE TABLE escalation (id TEXT, status TEXT, version INTEGER);
///                   INSERT INTO escalation VALUES ('case-7', 'pending', 18)")?;
///
/// let mut approve = |command: &Command<&str>| {
///     let tx = db.transaction().map_err(TxError::Work)?;
///     let applied = blocking::apply_tx(command.once(), &tx, |tx| {
///         // The transition itself is conditional: the database guards the business race.
///         let moved = tx.query_row(
///             "UPDATE escalation SET status = 'approved', version = version + 1
///              WHERE id = ?1 AND status = 'pending' AND version = ?2 RETURNING version",
///             (&command.aggregate, command.expected_version.cast_signed()),
///             |row| row.get::<_, i64>(0),
///         );
///         Ok::<_, rusqlite::Error>(match moved.optional()? {
///             Some(version) => Transition::Done(version),
///             None => Transition::Advanced(tx.query_row("SELECT status FROM escalation", [], |row| row.get(0))?),
///         })
///     })?;
///     tx.commit().map_err(TxError::Work)?;
///     Ok::<Applied<i64, String>, CommandError<String, rusqlite::Error>>(applied)
/// };
///
/// let first = Command {
///     id: "cmd-123".to_owned(),
///     kind: "ApproveCaseEscalation".to_owned(),
///     tenant: "tenant-a".to_owned(),
///     aggregate: "case-7".to_owned(),
///     expected_version: 18,
///     payload: "looks fine",
/// };
/// assert!(matches!(approve(&first)?, Applied::Done(19)));
/// assert!(matches!(approve(&first)?, Applied::Replayed(19)));
/// let late = Command { id: "cmd-124".to_owned(), ..first.clone() };
/// assert!(matches!(approve(&late), Err(CommandError::Conflict { expected: 18, current, .. }) if current == "approved"));
/// let wrong = Command { payload: "another", ..first };
/// assert!(matches!(approve(&wrong), Err(CommandError::Mismatch)));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Command<P> {
    /// Identifies this command; the same on every retry.
    pub id: String,
    /// What kind of command it is.
    pub kind: String,
    /// The tenant it belongs to.
    pub tenant: String,
    /// The aggregate it changes.
    pub aggregate: String,
    /// The version its sender has seen.
    pub expected_version: u64,
    /// The command's own data.
    pub payload: P,
}

impl<P: Serialize> Command<P> {
    /// Prepares to apply it once; settings can be added.
    pub fn once(&self) -> CommandOnce<'_, P> {
        let once = self.intent().and_then(|intent| Ok(Once::new(&intent, self.fingerprint()?)));
        CommandOnce { command: self, advanced: Advanced::default(), once }
    }

    /// Its intent: tenant, kind and id.
    pub fn intent(&self) -> Result<Intent, String> {
        let scope = Scope::tenant(&self.tenant).map_err(|error| error.to_string())?;
        let kind = Operation::new(&self.kind).map_err(|error| error.to_string())?;
        let id = Key::new(self.id.as_str()).map_err(|error| error.to_string())?;
        Ok(Intent::new(scope, kind, id))
    }

    /// The fingerprint of what it asks for: aggregate, version and payload.
    pub fn fingerprint(&self) -> Result<Fingerprint, String> {
        let asked = (&self.aggregate, self.expected_version, &self.payload);
        Recipe::default().value(&asked).map_err(|error| error.to_string())
    }
}

/// What the work found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transition<T, C> {
    /// The aggregate had the expected version and has changed.
    Done(T),
    /// It has moved on, to this state. Nothing was changed.
    Advanced(C),
}

/// What another command gets when the aggregate has moved on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Advanced {
    /// [`CommandError::Conflict`].
    #[default]
    Conflict,
    /// The current state, as an answer.
    Current,
}

/// The result of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Applied<T, C> {
    /// Applied now.
    Done(T),
    /// Applied before; this is the stored result.
    Replayed(T),
    /// The aggregate had moved on; this is its current state. The command is not recorded.
    Current(C),
}

/// Why a command was not applied.
#[derive(Debug)]
#[non_exhaustive]
pub enum CommandError<C, E> {
    /// The id was used before for a different command. A sender's bug: retrying cannot help.
    Mismatch,
    /// The aggregate has moved on. The sender has to read it again and decide, with a new command.
    Conflict {
        /// The aggregate.
        aggregate: String,
        /// The version the command was made for.
        expected: u64,
        /// Its current state.
        current: C,
    },
    /// A part of the command is invalid.
    Invalid {
        /// What is wrong.
        why: String,
    },
    /// Any other error of the transaction.
    Tx(TxError<E>),
}

impl<C, E> From<TxError<E>> for CommandError<C, E> {
    fn from(error: TxError<E>) -> Self {
        match error {
            TxError::Mismatch => Self::Mismatch,
            error => Self::Tx(error),
        }
    }
}

impl<C: fmt::Debug, E: fmt::Display> fmt::Display for CommandError<C, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch => f.write_str(
                "another command was sent under this id before; give each command an id of its own",
            ),
            Self::Conflict { aggregate, expected, current } => write!(
                f,
                "{aggregate} is no longer at version {expected} but {current:?}; read it again and send a new command"
            ),
            Self::Invalid { why } => write!(f, "invalid command: {why}"),
            Self::Tx(error) => error.fmt(f),
        }
    }
}

impl<C: fmt::Debug, E: Error + 'static> Error for CommandError<C, E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Tx(error) => error.source(),
            _ => None,
        }
    }
}

/// A command to be applied once.
#[derive(Debug)]
#[must_use]
pub struct CommandOnce<'a, P> {
    command: &'a Command<P>,
    advanced: Advanced,
    /// Or why the command is invalid.
    once: Result<Once, String>,
}

/// Stops the work without recording anything: the aggregate has moved on, or the work failed.
enum Stopped<C, E> {
    Advanced(C),
    Work(E),
}

impl<P: Serialize> CommandOnce<'_, P> {
    /// Sets what another command gets when the aggregate has moved on.
    pub fn advanced(mut self, advanced: Advanced) -> Self {
        self.advanced = advanced;
        self
    }

    /// As [`Once::retention`].
    pub fn retention(self, retention: impl Into<Retention>) -> Self {
        Self { once: self.once.map(|once| once.retention(retention)), ..self }
    }

    /// As [`Once::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self { once: self.once.map(|once| once.wait(wait)), ..self }
    }

    /// As [`Once::protect`].
    pub fn protect(self, protection: Protection) -> Self {
        Self { once: self.once.map(|once| once.protect(protection)), ..self }
    }

    /// Applies it in the transaction `tx`, unless it was applied before. Commit on `Ok`.
    pub async fn apply_tx<X, T, C, E>(
        self,
        tx: &mut X,
        work: impl for<'l> AsyncFnOnce(X::Lent<'l>) -> Result<Transition<T, C>, E>,
    ) -> Result<Applied<T, C>, CommandError<C, E>>
    where
        X: Tx,
        T: Remember,
    {
        let Self { command, advanced, once } = self;
        let once = once.map_err(|why| CommandError::Invalid { why })?;
        match once.run_tx(tx, async |tx| stopped(work(tx).await)).await {
            Ok(TxReply { value, replayed: false }) => Ok(Applied::Done(value)),
            Ok(TxReply { value, replayed: true }) => Ok(Applied::Replayed(value)),
            Err(error) => {
                let error = error.try_map_work(|stopped| match stopped {
                    Stopped::Work(error) => Ok(error),
                    Stopped::Advanced(current) => Err(current),
                });
                match (error, advanced) {
                    (Ok(error), _) => Err(error.into()),
                    (Err(current), Advanced::Current) => Ok(Applied::Current(current)),
                    (Err(current), Advanced::Conflict) => Err(CommandError::Conflict {
                        aggregate: command.aggregate.clone(),
                        expected: command.expected_version,
                        current,
                    }),
                }
            }
        }
    }
}

fn stopped<T, C, E>(found: Result<Transition<T, C>, E>) -> Result<T, Stopped<C, E>> {
    match found {
        Ok(Transition::Done(value)) => Ok(value),
        Ok(Transition::Advanced(current)) => Err(Stopped::Advanced(current)),
        Err(error) => Err(Stopped::Work(error)),
    }
}
