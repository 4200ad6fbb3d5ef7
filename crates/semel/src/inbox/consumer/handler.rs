//! What is done with messages.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::message::Message;
use crate::inbox::Identity;
use crate::source::Delivery;
use crate::tx::TxError;

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
///                 // The server's word against these rows, or no word at all.
///                 Some(_) => HandlerError::retry(error),
///                 None => HandlerError::transient(error),
///             })?;
///         }
///         marked.end_tx(&mut tx).await?;
///         // In doubt, it is later: the marks tell when they come again.
///         tx.commit().await.map_err(HandlerError::transient)
///     }
/// }
/// # }
/// ```
pub trait Handler: Send + Sync + 'static {
    /// Handles all of these, in their order. `Ok` says that what they cause is durable. After an error nothing of it is;
    /// whoever fails as one of many is called again with fewer, until it is known which message it is.
    fn handle(&self, messages: &[Message]) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Most messages it wants in one call, where that is less than
    /// [`ConsumerOptions::batch_max`](super::ConsumerOptions::batch_max). One for whoever does not handle a batch as a
    /// whole.
    fn batch_max(&self) -> usize {
        usize::MAX
    }

    /// Whether a message is given up when its call panics or takes too long. For whoever would find it done in a second call,
    /// although nobody knows. What is poison to such a handler is not handed to it again, however long it takes to be buried,
    /// and is buried during a farewell as well.
    fn gives_up_at_once(&self) -> bool {
        false
    }
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

/// Whose fault a failure is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HandlerErrorKind {
    /// Perhaps the message's: after some tries it is buried.
    Retry,
    /// The message's, and trying again would not help: it is buried at once.
    Permanent,
    /// Not the message's: what it needs is not there now. It is tried again for as long as it takes.
    Transient,
}

impl HandlerError {
    fn of(error: impl fmt::Display, kind: HandlerErrorKind) -> Self {
        Self { message: error.to_string(), kind, after: None, not_applied: false }
    }

    /// Perhaps because of the message.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::of(error, HandlerErrorKind::Retry)
    }

    /// Because of the message, for good.
    pub fn permanent(error: impl fmt::Display) -> Self {
        Self::of(error, HandlerErrorKind::Permanent)
    }

    /// Not because of the message: the database is not there, a lock was not had.
    pub fn transient(error: impl fmt::Display) -> Self {
        Self::of(error, HandlerErrorKind::Transient)
    }

    /// It is not tried again before this long: whoever could not do it now has said so. At most [`AFTER_MAX`].
    #[must_use]
    pub fn after(mut self, pause: Duration) -> Self {
        self.after = Some(pause.min(AFTER_MAX));
        self
    }

    /// Says that nothing happened, for sure. It matters where an effect is opaque
    /// ([`ClaimFinish`](crate::inbox::store_dedup::ClaimFinish)): a failure that does not say so leaves it in doubt.
    #[must_use]
    pub fn not_applied(mut self) -> Self {
        self.not_applied = true;
        self
    }

    /// Whose fault it is.
    pub fn kind(&self) -> HandlerErrorKind {
        self.kind
    }

    /// The shortest pause before it is tried again, where it was said.
    pub fn pause(&self) -> Option<Duration> {
        self.after
    }

    /// Whether nothing happened, for sure.
    pub fn is_not_applied(&self) -> bool {
        self.not_applied
    }
}

/// What marking ran into is never the message's fault; what the work said may be.
impl<E: fmt::Display> From<TxError<E>> for HandlerError {
    fn from(error: TxError<E>) -> Self {
        match error {
            TxError::Work(error) => Self::retry(error),
            TxError::Value { .. } => Self::retry(error),
            other => Self::transient(other),
        }
    }
}

/// Keeps messages that cannot be handled, for people, and gives those back that people want handled again.
///
/// Kept in the inbox's own database by [`DeadLetterStore`](crate::inbox::dead_letter::DeadLetterStore).
pub trait DeadLetters: Send + Sync + 'static {
    /// Keeps it, durably: after `Ok` the broker may forget it. The same message twice is kept once.
    fn dead_letter(
        &self,
        consumer: &str,
        message: &DeadLetter<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Letters that are to be handled again now, at most so many, and of each key only the first. For as long as the
    /// lease nobody else gets them; after it anybody may, whatever became of them, and the marks see to it that nothing
    /// happens twice.
    fn due(
        &self,
        _consumer: &str,
        _most: usize,
        _lease: Duration,
    ) -> impl Future<Output = Result<Vec<Due>, HandlerError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// One of them was handled, durably: it need not be kept any more.
    fn handled(&self, _letter: i64) -> impl Future<Output = Result<(), HandlerError>> + Send {
        std::future::ready(Ok(()))
    }

    /// One of them failed again: it is kept as before, until somebody decides again.
    fn failed(
        &self,
        _letter: i64,
        _error: &str,
        _tries: u32,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        std::future::ready(Ok(()))
    }
}

/// A message to be kept, and why.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeadLetter<'m> {
    /// As the broker delivered it.
    pub delivery: &'m Delivery,
    /// Which message it is, where that is known.
    pub identity: Option<&'m Identity>,
    /// Its id, where it has one.
    pub id: Option<String>,
    /// What went wrong the last time.
    pub error: &'m str,
    /// How often it was tried.
    pub tries: u32,
    /// How long ago it failed for the first time.
    pub failing_for: Duration,
}

/// A letter that is to be handled again.
#[derive(Clone, Debug)]
pub struct Due {
    /// Its number.
    pub number: i64,
    /// Which message it is, where that was known when it was buried.
    pub identity: Option<Identity>,
    /// As the broker delivered it. Its receipt means nothing.
    pub delivery: Delivery,
}
