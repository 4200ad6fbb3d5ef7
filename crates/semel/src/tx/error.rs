//! Why a transaction got no answer.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use super::driver::{DriverError, DriverErrorKind};
use crate::guard::Failure;
use crate::intent::identity::IntentId;

/// Why a transaction did not get its answer. Roll it back, unless the variant says otherwise; nothing is kept.
#[derive(Debug)]
#[non_exhaustive]
pub enum TxError<E = Infallible> {
    /// The work itself failed. Nothing is recorded; after the rollback the same key may run at once.
    Work(E),
    /// The key was used for a different request. A client's bug: retrying cannot help.
    Mismatch,
    /// Another attempt holds the intent and did not finish within the wait. The transaction is unharmed: it may go on
    /// without this intent.
    InFlight {
        /// How long this call has waited.
        waited: Duration,
    },
    /// An earlier attempt that was not atomic left it in doubt. It is not run again automatically.
    Uncertain {
        /// The intent.
        id: IntentId,
    },
    /// An earlier attempt failed for good; that is the answer to every retry.
    Refused(Failure),
    /// Two transactions conflicted: roll back and run the whole transaction again. Under REPEATABLE READ and
    /// SERIALIZABLE a duplicate gets this when its snapshot is older than the answer.
    Retry(DriverError),
    /// The database has one writer, and another transaction was it for longer than the wait. Nothing was done.
    Busy {
        /// How long this call has waited.
        waited: Duration,
    },
    /// Another attempt has claimed or decided the intent in the meantime. Roll back; the next attempt will see the
    /// result.
    Lost,
    /// The phase list is not the one the operation started with.
    PhasesChanged {
        /// The phases it started with.
        begun: String,
        /// The phases now.
        now: String,
    },
    /// The value cannot be stored, or the stored value is not of this type.
    Value {
        /// The reason.
        why: String,
    },
    /// The database refused, or the connection is gone.
    Database(DriverError),
}

impl<E> TxError<E> {
    /// Whether the same call may succeed in a new transaction, without further action.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::InFlight { .. } | Self::Retry(_) | Self::Busy { .. } | Self::Lost => true,
            Self::Database(error) => error.kind() == DriverErrorKind::Lost,
            _ => false,
        }
    }
}

impl TxError {
    /// The same error in a type with a work error: for a caller that has errors of its own.
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
    /// The same, with the work's own error converted.
    pub fn map_work<F>(self, convert: impl FnOnce(E) -> F) -> TxError<F> {
        match self.try_map_work(|error| Ok::<_, Infallible>(convert(error))) {
            Ok(error) => error,
            Err(never) => match never {},
        }
    }

    /// The same, where the conversion may find that the work's error is not one.
    pub(super) fn try_map_work<F, N>(self, convert: impl FnOnce(E) -> Result<F, N>) -> Result<TxError<F>, N> {
        Ok(match self {
            Self::Work(error) => TxError::Work(convert(error)?),
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
                "another transaction holds this intent and did not finish within {waited:?}; retry later"
            ),
            Self::Uncertain { id } => write!(
                f,
                "intent {id} is in doubt: an earlier attempt outside of a transaction may or may not have happened; \
                 look it up, or decide with `semel resolve`"
            ),
            Self::Refused(failure) => write!(f, "an earlier attempt was refused for good: {failure}"),
            Self::Retry(error) | Self::Database(error) => error.fmt(f),
            Self::Busy { waited } => write!(
                f,
                "another transaction has been writing to the database for {waited:?}; roll back and retry later"
            ),
            Self::Lost => f.write_str(
                "another attempt has claimed or decided this intent in the meantime; roll back and retry",
            ),
            Self::PhasesChanged { begun, now } => write!(
                f,
                "this operation started with the phases {begun} and would now continue with {now}; finish it \
                 with the code that started it, or give the new list another operation name"
            ),
            Self::Value { why } => write!(f, "the value cannot be stored or restored: {why}"),
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
