//! What users implement: the handler of messages and the store of dead letters.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::message::Message;
use crate::inbox::Identity;
use crate::source::Delivery;

/// Handles messages: all of a call in one transaction with their marks, or none of them.
///
/// ```no_run
/// # #[cfg(feature = "sqlx-postgres")] {
/// use semel::inbox::Inbox;
/// use semel::inbox::consumer::{HandlerError, Handler, Message};
///
/// struct Notes {
///     pool: sqlx::PgPool,
///     inbox: Inbox,
/// }
///
/// impl Handler for Notes {
///     async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
///         let mut tx = self.pool.begin().await.map_err(HandlerError::transient)?;
///         let marked = self.inbox.mark_all_tx(&mut tx, messages).await?;
///         for at in marked.fresh() {
///             let note = sqlx::query("INSERT INTO note (text) VALUES ($1)").bind(messages[at].payload());
///             note.execute(&mut *tx).await.map_err(|error| match error.as_database_error() {
///                 // The server rejected these rows, or could not be reached.
///                 Some(_) => HandlerError::retry(error),
///                 None => HandlerError::transient(error),
///             })?;
///         }
///         marked.end_tx(&mut tx).await?;
///         // A commit in doubt is transient: on redelivery the marks show whether it happened.
///         tx.commit().await.map_err(HandlerError::transient)
///     }
/// }
/// # }
/// ```
pub trait Handler: Send + Sync + 'static {
    /// Handles all messages, in order. `Ok`: all effects are durable. `Err`: none are. A batch that fails is bisected:
    /// the handler is called again with fewer messages until the failing one is found.
    fn handle(&self, messages: &[Message]) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Most messages in one call, if less than [`ConsumerOptions::batch_max`](super::ConsumerOptions::batch_max).
    /// Return 1 if a batch is not handled as a whole.
    fn batch_max(&self) -> usize {
        usize::MAX
    }

    /// What becomes of a message whose call panics or times out.
    fn on_broken_call(&self) -> OnBrokenCall {
        OnBrokenCall::Retry
    }
}

/// What becomes of a message whose call panics or times out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnBrokenCall {
    /// It is retried, as after an error.
    Retry,
    /// It is given up at once. For a handler that marks first: a second call would find the message done although its
    /// effect is unknown. Such a handler is not called again for a poison message, however long it takes to write the
    /// dead letter; dead letters are also written while the consumer drains.
    DeadLetter,
}

/// Longest that [`HandlerError::after`] may ask for.
pub const AFTER_MAX: Duration = Duration::from_secs(300);

/// Why messages were not handled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct HandlerError {
    message: String,
    kind: HandlerErrorKind,
    after: Option<Duration>,
    not_applied: bool,
}

/// What a failure says about the message, and so whether it is retried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HandlerErrorKind {
    /// The message may be at fault. It is retried, and becomes a dead letter after the max attempts.
    Retry,
    /// A poison message: retrying would not help. It becomes a dead letter at once.
    Permanent,
    /// The message is not at fault: something it needs is not available. It is retried without limit.
    Transient,
}

impl HandlerError {
    fn of(error: impl fmt::Display, kind: HandlerErrorKind) -> Self {
        Self { message: error.to_string(), kind, after: None, not_applied: false }
    }

    /// The message may be at fault.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::of(error, HandlerErrorKind::Retry)
    }

    /// The message is at fault, for good: a poison message.
    pub fn permanent(error: impl fmt::Display) -> Self {
        Self::of(error, HandlerErrorKind::Permanent)
    }

    /// The message is not at fault: the database is down, a lock was not available.
    pub fn transient(error: impl fmt::Display) -> Self {
        Self::of(error, HandlerErrorKind::Transient)
    }

    /// Does not retry before this time has passed, for example because of a `Retry-After`. At most [`AFTER_MAX`].
    #[must_use]
    pub fn after(mut self, pause: Duration) -> Self {
        self.after = Some(pause.min(AFTER_MAX));
        self
    }

    /// Says that certainly nothing happened. It matters for an opaque effect
    /// ([`ClaimFinish`](crate::inbox::store_dedup::ClaimFinish)): without it, a failure leaves the effect in doubt.
    #[must_use]
    pub fn not_applied(mut self) -> Self {
        self.not_applied = true;
        self
    }

    /// What it says about the message.
    pub fn kind(&self) -> HandlerErrorKind {
        self.kind
    }

    /// The shortest pause before a retry, if one was given.
    pub fn pause(&self) -> Option<Duration> {
        self.after
    }

    /// Whether certainly nothing happened.
    pub fn is_not_applied(&self) -> bool {
        self.not_applied
    }
}

/// Stores dead letters: messages that cannot be handled. Returns those that an operator wants redelivered.
///
/// Kept in the inbox's own database by [`DeadLetterStore`](crate::inbox::dead_letter::DeadLetterStore).
pub trait DeadLetters: Send + Sync + 'static {
    /// Stores a message durably: after `Ok` it is acked at the broker. Idempotent: the same message is stored once.
    fn dead_letter(
        &self,
        consumer: &str,
        message: &DeadLetter<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Leases dead letters that are due for redelivery: at most `_most`, and only the first of each key. No other
    /// consumer gets them during the lease. After it any may, whatever became of them; the marks prevent a second
    /// effect.
    fn due(
        &self,
        _consumer: &str,
        _most: usize,
        _lease: Duration,
    ) -> impl Future<Output = Result<Vec<Due>, HandlerError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// A dead letter was handled, durably: it can be deleted.
    fn handled(&self, _dead_letter: i64) -> impl Future<Output = Result<(), HandlerError>> + Send {
        std::future::ready(Ok(()))
    }

    /// A dead letter failed again: it stays until an operator decides again.
    fn failed(
        &self,
        _dead_letter: i64,
        _error: &str,
        _attempts: u32,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        std::future::ready(Ok(()))
    }
}

/// A message to store as a dead letter, and why.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeadLetter<'m> {
    /// As the broker delivered it.
    pub delivery: &'m Delivery,
    /// Its identity, if known.
    pub identity: Option<&'m Identity>,
    /// Its id, if it has one.
    pub id: Option<String>,
    /// The error of the last attempt.
    pub error: &'m str,
    /// Number of attempts that failed.
    pub attempts: u32,
    /// How long ago it failed for the first time.
    pub failing_for: Duration,
}

/// A dead letter to redeliver.
#[derive(Clone, Debug)]
pub struct Due {
    /// Its number.
    pub number: i64,
    /// Its identity, if known when the dead letter was written.
    pub identity: Option<Identity>,
    /// As the broker delivered it. Its receipt is not valid.
    pub delivery: Delivery,
}
