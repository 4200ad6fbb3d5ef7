//! `once` for values: the same protocol, with requests and results as serde values.

use std::fmt;
use std::future::Future;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::answer::{Answer, Attempt, Execution, GuardError, WorkResult};
use super::operation::{Guarded, PolicyError};
use crate::intent::fingerprint::{Fingerprint, FingerprintError};
use crate::intent::identity::{Intent, OperationError};
use crate::intent::key::{Key, KeyError};
use crate::intent::outcome::Outcome;
use crate::intent::scope::{Scope, ScopeError};
use crate::store::Store;

/// What is known when work fails.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FailureKind {
    /// Refused for good: stored, and replayed to every retry.
    Final,
    /// Nothing happened: a retry may run.
    NotApplied,
    /// It may have happened.
    Unknown,
}

impl From<FailureKind> for WorkResult {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Final => Self::FailedFinal,
            FailureKind::NotApplied => Self::NotApplied,
            FailureKind::Unknown => Self::Unknown,
        }
    }
}

/// How work failed. `?` turns any error into [`FailureKind::Unknown`], because nothing more is known about it;
/// use [`Failure::refused`] or [`Failure::not_applied`] where you know better.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What is known.
    pub kind: FailureKind,
    /// A code of your own; 0 where there is none.
    pub code: u16,
    /// What went wrong.
    pub message: String,
}

impl Failure {
    /// Refused for good, such as a declined card.
    pub fn refused(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Final, code: 0, message: message.into() }
    }

    /// Failed before anything happened, such as a refused connection.
    pub fn not_applied(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::NotApplied, code: 0, message: message.into() }
    }

    /// Failed, and it may have happened.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Unknown, code: 0, message: message.into() }
    }

    /// Adds a code.
    pub fn code(mut self, code: u16) -> Self {
        self.code = code;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

// `Failure` does not implement `Error`: only so can `?` turn every other error into one.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::unknown(error.to_string())
    }
}

/// A value, and whether it was replayed, stored and guarded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply<T> {
    /// The value.
    pub value: T,
    /// It was stored before; nothing ran for this call.
    pub replayed: bool,
    /// The store has it; see [`Answer::stored`].
    pub stored: bool,
    /// It ran under a claim; see [`Answer::guarded`].
    pub guarded: bool,
}

/// Why there is no value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnceError {
    /// The work failed, now or in an earlier run that this call replays.
    #[error("{failure}")]
    Failed {
        /// How.
        failure: Failure,
        /// It failed in an earlier run; nothing ran for this call.
        replayed: bool,
    },
    /// Nothing ran, or the result is not known.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// The request cannot be fingerprinted.
    #[error("the request cannot be fingerprinted, so nothing was run: {0}")]
    Request(#[from] FingerprintError),
    /// The key is invalid.
    #[error("nothing was run: {0}")]
    Key(#[from] KeyError),
    /// The scope is invalid.
    #[error("nothing was run: {0}")]
    Scope(#[from] ScopeError),
    /// The operation's name is invalid.
    #[error("nothing was run: {0}")]
    Operation(#[from] OperationError),
    /// The policy is invalid.
    #[error("nothing was run: {0}")]
    Policy(#[from] PolicyError),
    /// The work completed, but its value is not available: it was too large to store, could not be serialised, or was
    /// stored as another type.
    #[error("the work completed, but its value is not available: {why}")]
    Value {
        /// The reason.
        why: String,
    },
}

const OK: u16 = 200;

impl<S: Store> Guarded<S> {
    /// Runs `work` once for `key`, or replays the value of an earlier run.
    ///
    /// `request` is fingerprinted: the same key with another request is refused. See [`run`](Self::run) for what
    /// holds when callers leave, work panics or the store fails.
    pub async fn once<T, R, F, Fut>(
        &self,
        scope: &Scope,
        key: &Key,
        request: &R,
        work: F,
    ) -> Result<Reply<T>, OnceError>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        R: Serialize + ?Sized,
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let fingerprint = self.of.recipe.value(request)?;
        self.once_for(self.intent(scope, key), fingerprint, work).await
    }

    /// [`once`](Self::once) with intent and fingerprint already made, so that the request is not borrowed while the
    /// work takes ownership of it.
    pub(crate) async fn once_for<T, F, Fut>(
        &self,
        intent: Intent,
        fingerprint: Fingerprint,
        work: F,
    ) -> Result<Reply<T>, OnceError>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let work = |attempt| async { execution(work(attempt).await) };
        reply(self.run(intent, fingerprint, work).await?)
    }
}

fn execution<T: Serialize>(result: Result<T, Failure>) -> Execution {
    match result {
        Ok(value) => Execution::completed(match serde_json::to_vec(&value) {
            Ok(json) => Outcome::new(OK, json),
            // The effect is done; a value that cannot be serialised must not undo that.
            Err(_) => Outcome::new(OK, Bytes::new()).tombstone(),
        }),
        Err(failure) => {
            Execution { result: failure.kind.into(), outcome: Outcome::new(failure.code, failure.message) }
        }
    }
}

fn reply<T: DeserializeOwned>(answer: Answer) -> Result<Reply<T>, OnceError> {
    let Answer { outcome, result, replayed, stored, guarded, .. } = answer;
    let body = outcome.body_bytes().cloned();
    let kind = match result {
        WorkResult::Completed => {
            let why = "it was not stored".to_owned();
            let body = body.ok_or(OnceError::Value { why })?;
            let value = serde_json::from_slice(&body);
            let value = value.map_err(|error| OnceError::Value { why: error.to_string() })?;
            return Ok(Reply { value, replayed, stored, guarded });
        }
        WorkResult::FailedFinal => FailureKind::Final,
        WorkResult::NotApplied => FailureKind::NotApplied,
        WorkResult::Unknown | WorkResult::Hold => FailureKind::Unknown,
    };
    let message = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
    Err(OnceError::Failed { failure: Failure { kind, code: outcome.code, message }, replayed })
}
