//! Why there is no answer.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use super::driver::{DriverError, DriverErrorKind};
use crate::guard::Failure;
use crate::intent::identity::IntentId;

/// Why a transaction did not get its answer. Roll it back, unless it says otherwise: nothing stays.
#[derive(Debug)]
#[non_exhaustive]
pub enum TxError<E = Infallible> {
    /// The work itself failed. Nothing is remembered; after the rollback the same key may run at once.
    Work(E),
    /// The key was used for another request. A client's bug: retrying cannot help.
    Mismatch,
    /// Somebody else is at it, and was not done within the bound. The transaction is as good as before: it may
    /// go on without this intent.
    InFlight {
        /// How long this call has waited.
        waited: Duration,
    },
    /// An earlier attempt that was not atomic left it open whether it happened. Not run again by itself.
    Uncertain {
        /// Which.
        id: IntentId,
    },
    /// An earlier attempt was refused for good; that is the answer to every retry.
    Refused(Failure),
    /// Two transactions got in each other's way: roll back and run the whole transaction again. Under
    /// REPEATABLE READ and SERIALIZABLE this is what a duplicate gets whose snapshot is older than the answer.
    Retry(DriverError),
    /// The database has one writer, and it was somebody else for longer than the bound. Nothing was done.
    Busy {
        /// How long this call has waited.
        waited: Duration,
    },
    /// Somebody else has claimed or decided the intent in the meantime. Roll back; the next attempt will see.
    Lost,
    /// A phase list is not the one the operation was begun with.
    PhasesChanged {
        /// As it was begun.
        begun: String,
        /// As it is now.
        now: String,
    },
    /// The value cannot be remembered, or what is remembered is not of this type.
    Value {
        /// What stands in the way.
        why: String,
    },
    /// The database refused, or is gone.
    Database(DriverError),
}

impl<E> TxError<E> {
    /// Whether the same call may succeed in a new transaction, without anybody doing anything.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::InFlight { .. } | Self::Retry(_) | Self::Busy { .. } | Self::Lost => true,
            Self::Database(error) => error.kind() == DriverErrorKind::Lost,
            _ => false,
        }
    }
}

impl TxError {
    /// The same, where work might have failed too: for a caller that has errors of its own.
    ///
    /// ```
    /// use semel::tx::TxError;
    ///
    /// let error: TxError<std::io::Error> = TxError::Mismatch.or_work();
    /// assert!(matches!(error, TxError::Mismatch));
    /// ```
    pub fn or_work<E>(self) -> TxError<E> {
        self.map_work(|never| match never {})
    }
}

impl<E> TxError<E> {
    /// The same, with the work's own error told in other terms.
    pub fn map_work<F>(self, told: impl FnOnce(E) -> F) -> TxError<F> {
        match self.try_map_work(|error| Ok::<_, Infallible>(told(error))) {
            Ok(error) => error,
            Err(never) => match never {},
        }
    }

    /// The same, where the work's own error may turn out to be none.
    pub(super) fn try_map_work<F, N>(self, told: impl FnOnce(E) -> Result<F, N>) -> Result<TxError<F>, N> {
        Ok(match self {
            Self::Work(error) => TxError::Work(told(error)?),
            Self::Mismatch => TxError::Mismatch,
            Self::InFlight { waited } => TxError::InFlight { waited },
            Self::Uncertain { id } => TxError::Uncertain { id },
            Self::Refused(failure) => TxError::Refused(failure),
            Self::Retry(error) => TxError::Retry(error),
            Self::Busy { waited } => TxError::Busy { waited },
            Self::Lost => TxError::Lost,
            Self::PhasesChanged { begun, now } => TxError::PhasesChanged { begun, now },
            Self::Value { why } => TxError::Value { why },
            Self::Database(error) => TxError::Database(error),
        })
    }
}

impl<E> From<DriverError> for TxError<E> {
    fn from(error: DriverError) -> Self {
        match error.kind() {
            DriverErrorKind::Serialization => Self::Retry(error),
            _ => Self::Database(error),
        }
    }
}

impl<E: fmt::Display> fmt::Display for TxError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(error) => error.fmt(f),
            Self::Mismatch => f.write_str(
                "this key was used before for a different request; use a new key for a new intent",
            ),
            Self::InFlight { waited } => write!(
                f,
                "another transaction is at this intent and was not done within {waited:?}; ask again later"
            ),
            Self::Uncertain { id } => write!(
                f,
                "whether intent {id} happened is not known, an earlier attempt outside of a transaction is in \
                 doubt; look it up, or decide with `semel resolve`"
            ),
            Self::Refused(failure) => write!(f, "an earlier attempt was refused for good: {failure}"),
            Self::Retry(error) | Self::Database(error) => error.fmt(f),
            Self::Busy { waited } => write!(
                f,
                "somebody else has been writing to the database for {waited:?}; roll back and try again later"
            ),
            Self::Lost => f.write_str(
                "somebody else has claimed or decided this intent in the meantime; roll back and ask again",
            ),
            Self::PhasesChanged { begun, now } => write!(
                f,
                "this operation was begun with the phases {begun} and is now to go on with {now}; finish it \
                 with the code that began it, or give the new list another operation name"
            ),
            Self::Value { why } => write!(f, "the value cannot be given: {why}"),
        }
    }
}

impl<E: Error + 'static> Error for TxError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Work(error) => Some(error),
            Self::Retry(error) | Self::Database(error) => Some(error),
            _ => None,
        }
    }
}
