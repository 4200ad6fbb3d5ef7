//! Deduplication without SQL: over any [`Store`], for effects outside your database.
//!
//! If the effect is rows in a SQL database, use the [`Inbox`](super::Inbox): its mark and the effect are one commit.
//! Anywhere else (a call to another service, a file, a mail) they are two steps. The mode decides what a crash between
//! them does:
//!
//! | mode | a crash between mark and effect | for |
//! |---|---|---|
//! | [`AtMostOnce`] | **loses** the effect: at most once | effects that are worse twice than never, without a lookup |
//! | [`AtLeastOnce`] | **repeats** the effect: at least once | effects that may repeat: caches, indexes, projections |
//! | [`ClaimFinish`], keyed | **repeats** it with the same key: once if honoured | services with idempotency keys |
//! | [`ClaimFinish`], opaque | leaves it **in doubt**: reported, never repeated automatically | everything else |
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use semel::inbox::consumer::{Consumer, ConsumerOptions, HandlerError};
//! use semel::inbox::store_dedup::{WorkAttempt, Dedup};
//! use semel::source::memory::MemoryQueue;
//! use semel::{Effect, Guard, store::memory::MemoryStore};
//!
//! # async fn charge(_: &[u8], _: &str) -> Result<(), std::io::Error> { Ok(()) }
//! let dedup = Dedup::new(&Guard::new(MemoryStore::new()), "billing")?;
//! let handler = dedup.claim_finish(Effect::Keyed, |call: WorkAttempt| async move {
//!     charge(call.message.payload(), call.key.as_str()).await.map_err(HandlerError::transient)
//! })?;
//! let queue = MemoryQueue::new("payments");
//! let consumer = Consumer::new("billing", queue.source(), handler, ConsumerOptions::default());
//! # let stop = consumer.stop_handle(); stop.stop(); consumer.run().await.unwrap();
//! # Ok::<(), semel::inbox::store_dedup::DedupError>(()) }).unwrap();
//! ```
//!
//! | module | what it decides |
//! |---|---|
//! | `at_most_once` | mark, then effect |
//! | `at_least_once` | effect, then mark |
//! | `claim_finish` | claim with a lease, effect, finish |
//! | `guard_result` | from the guard's result to a handler's |

use std::future::Future;
use std::time::Duration;

use super::consumer::{HandlerError, Message};
use super::{WINDOW, duplicate_count};
use crate::guard::{Execution, Guard, Guarded, Lookup, PolicyError};
use crate::intent::fingerprint::{Fingerprint, Recipe};
use crate::intent::identity::{Intent, OperationError};
use crate::intent::key::Key;
use crate::intent::outcome::Outcome;
use crate::intent::policy::Effect;
use crate::intent::scope::Scope;
use crate::store::Store;

mod at_least_once;
mod at_most_once;
mod claim_finish;
mod guard_result;

pub use at_least_once::AtLeastOnce;
pub use at_most_once::AtMostOnce;
pub use claim_finish::ClaimFinish;

/// One attempt at the work for one message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkAttempt {
    /// The message.
    pub message: Message,
    /// The idempotency key to pass on: the same for every attempt at this message by this consumer. See
    /// [`Identity::key`](super::Identity::key).
    pub key: Key,
    /// Attempt number, starting at 1, if the store counts attempts.
    pub attempt: Option<u32>,
}

/// The work for a message.
pub trait Work: Send + Sync + 'static {
    /// Does the work. Each mode says what an error means.
    fn run(&self, call: WorkAttempt) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

impl<F, Fut> Work for F
where
    F: Fn(WorkAttempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send,
{
    fn run(&self, call: WorkAttempt) -> impl Future<Output = Result<(), HandlerError>> + Send {
        self(call)
    }
}

/// Why the [`Dedup`] could not be set up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DedupError {
    /// The consumer's name becomes an operation name in the store, and is not a valid one.
    #[error("the consumer's name is not a valid operation name: {0}")]
    Consumer(#[from] OperationError),
    /// The window, the lease or the effect is not possible.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// The marks of one consumer in a store. Each message it has handled is an intent with the consumer's name as its
/// operation.
///
/// A message delivered again with the same id and a different payload is a poison message: one of the two would be lost
/// unnoticed.
#[derive(Debug)]
#[must_use]
pub struct Dedup<S> {
    guarded: Guarded<S>,
    recipe: Recipe,
}

impl<S> Clone for Dedup<S> {
    fn clone(&self) -> Self {
        Self { guarded: self.guarded.clone(), recipe: self.recipe.clone() }
    }
}

impl<S: Store> Dedup<S> {
    /// The marks of the consumer with that name, kept for [`WINDOW`].
    ///
    /// # Errors
    /// If the name is empty, too long, or not printable ASCII.
    pub fn new(guard: &Guard<S>, consumer: &str) -> Result<Self, DedupError> {
        // For the two simple modes the guard runs nothing but the mark, which may be repeated.
        let guarded = guard.operation(consumer)?.effect(Effect::Keyed)?.retention(WINDOW)?;
        Ok(Self { guarded, recipe: Recipe::default() })
    }

    /// Retention of marks: the dedup window. Must be longer than the broker's retention, or a message redelivered after
    /// its mark was pruned is handled again.
    ///
    /// # Errors
    /// If it is zero.
    pub fn window(self, window: Duration) -> Result<Self, DedupError> {
        Ok(Self { guarded: self.guarded.retention(window)?, ..self })
    }

    /// Lease of a message being handled. Default: 30 seconds. It is renewed after a third of that. After a crash the
    /// message waits until it expires.
    ///
    /// # Errors
    /// Beyond [`LEASE_MIN`](crate::guard::LEASE_MIN) and [`LEASE_MAX`](crate::guard::LEASE_MAX).
    pub fn lease(self, lease: Duration) -> Result<Self, DedupError> {
        Ok(Self { guarded: self.guarded.lease(lease)?, ..self })
    }

    /// Looks up the outcome of effects in doubt, as [`Guarded::lookup`] does.
    pub fn lookup(self, lookup: impl Lookup, settle: Duration) -> Self {
        Self { guarded: self.guarded.lookup(lookup, settle), ..self }
    }

    /// At most once: see [`AtMostOnce`].
    pub fn at_most_once<W: Work>(self, work: W) -> AtMostOnce<S, W> {
        AtMostOnce::new(self, work)
    }

    /// At least once: see [`AtLeastOnce`].
    pub fn at_least_once<W: Work>(self, work: W) -> AtLeastOnce<S, W> {
        AtLeastOnce::new(self, work)
    }

    /// Claim with a lease, effect, finish: see [`ClaimFinish`].
    ///
    /// # Errors
    /// If the effect is atomic: for mark and effect in one commit use the [`Inbox`](super::Inbox).
    pub fn claim_finish<W: Work>(self, effect: Effect, work: W) -> Result<ClaimFinish<S, W>, DedupError> {
        let guarded = self.guarded.effect(effect)?;
        Ok(ClaimFinish::new(Self { guarded, ..self }, work))
    }

    /// The consumer's name.
    pub fn consumer(&self) -> &str {
        self.guarded.name().as_str()
    }

    /// Counts a message that was already done. It is no evidence that the work succeeds now.
    fn found(&self, message: &Message) {
        duplicate_count::marked(message.identity().mark(self.consumer()), false);
    }

    fn intent(&self, message: &Message) -> (Intent, Fingerprint) {
        let key = message.identity().key(self.consumer());
        let intent = self.guarded.intent(&Scope::single_tenant(), &key);
        (intent, self.recipe.bytes(message.payload()))
    }
}

/// The outcome recorded for finished work.
fn done() -> Execution {
    Execution::completed(Outcome::new(0, ""))
}
