//! Without SQL: messages handled over any [`Store`], for effects that are in no database of yours.
//!
//! Where the effect is rows in a SQL database, use the [`Inbox`](super::Inbox): its mark and the effect are one commit.
//! Anywhere else (a call to another service, a file, a mail) they are two steps, and a crash between them tells which of
//! three things goes wrong. Choose it here, by its name:
//!
//! | mode | a crash between mark and effect | for |
//! |---|---|---|
//! | [`AtMostOnce`] | **loses** the effect: at most once | what is worse twice than never, and nobody can look up |
//! | [`AtLeastOnce`] | **repeats** the effect: at least once | what may be repeated: caches, indexes, projections |
//! | [`ClaimFinish`], keyed | **repeats** it, with the same key: once where that is honoured | services with idempotency keys |
//! | [`ClaimFinish`], opaque | leaves it **in doubt**: told, and never repeated by itself | everything else |
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use semel::inbox::consumer::{Consumer, ConsumerOptions, HandlerError};
//! use semel::inbox::store_dedup::{WorkAttempt, Dedup};
//! use semel::source::memory::MemoryQueue;
//! use semel::{Effect, Guard, store::memory::MemoryStore};
//!
//! # async fn charge(_: &[u8], _: &str) -> Result<(), std::io::Error> { Ok(()) }
//! let marks = Dedup::new(&Guard::new(MemoryStore::new()), "billing")?;
//! let handler = marks.state_machine(Effect::Keyed, |call: WorkAttempt| async move {
//!     charge(call.message.payload(), call.key.as_str()).await.map_err(HandlerError::transient)
//! })?;
//! let queue = MemoryQueue::new("payments");
//! let consumer = Consumer::new("billing", queue.source(), handler, ConsumerOptions::default());
//! # let stop = consumer.stop_handle(); stop.stop(); consumer.run().await.unwrap();
//! # Ok::<(), semel::inbox::store_dedup::DedupError>(()) }).unwrap();
//! ```

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

/// One run of the work for one message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkAttempt {
    /// The message.
    pub message: Message,
    /// The key to pass on: the same for every run for this message, by this consumer. See
    /// [`Identity::key`](super::Identity::key).
    pub key: Key,
    /// Which run this is, from 1, where the store counts them.
    pub attempt: Option<u32>,
}

/// What is done with a message.
pub trait Work: Send + Sync + 'static {
    /// Does it. What an error means is said by each mode.
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

/// Why there are no marks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DedupError {
    /// The consumer's name is an operation in the store.
    #[error("a consumer over a store is named like an operation: {0}")]
    Consumer(#[from] OperationError),
    /// The window, the lease or the effect cannot be had.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// The marks of one consumer in a store: what it has handled, each message an intent with the consumer's name as its operation.
///
/// A message that comes again with another payload under the same id is poison: one of the two would be lost unnoticed.
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
    /// The marks of the consumer of that name, kept for [`WINDOW`].
    ///
    /// # Errors
    /// When the name is empty, too long, or not printable ASCII.
    pub fn new(guard: &Guard<S>, consumer: &str) -> Result<Self, DedupError> {
        // What the guard itself runs for the two simple modes is a mark and nothing else: it may be run again.
        let guarded = guard.operation(consumer)?.effect(Effect::Keyed)?.retention(WINDOW)?;
        Ok(Self { guarded, recipe: Recipe::default() })
    }

    /// How long marks are kept. Longer than the broker keeps messages, or a message may come again after its mark is
    /// forgotten, and is handled again.
    ///
    /// # Errors
    /// When it is nothing.
    pub fn window(self, window: Duration) -> Result<Self, DedupError> {
        Ok(Self { guarded: self.guarded.retention(window)?, ..self })
    }

    /// How long whoever handles a message is believed alive without saying so: 30 seconds unless told otherwise. It is
    /// said at a third of this. After a crash the message waits that long.
    ///
    /// # Errors
    /// Beyond [`LEASE_MIN`](crate::guard::LEASE_MIN) and [`LEASE_MAX`](crate::guard::LEASE_MAX).
    pub fn lease(self, lease: Duration) -> Result<Self, DedupError> {
        Ok(Self { guarded: self.guarded.lease(lease)?, ..self })
    }

    /// Finds out about what is in doubt, as [`Guarded::lookup`] does.
    pub fn lookup(self, lookup: impl Lookup, settle: Duration) -> Self {
        Self { guarded: self.guarded.lookup(lookup, settle), ..self }
    }

    /// At most once: see [`AtMostOnce`].
    pub fn claim_before<W: Work>(self, work: W) -> AtMostOnce<S, W> {
        AtMostOnce::new(self, work)
    }

    /// At least once: see [`AtLeastOnce`].
    pub fn mark_after<W: Work>(self, work: W) -> AtLeastOnce<S, W> {
        AtLeastOnce::new(self, work)
    }

    /// Claim, effect, finish: see [`ClaimFinish`].
    ///
    /// # Errors
    /// When the effect is atomic: mark and effect in one commit is what [`Inbox`](super::Inbox) does.
    pub fn state_machine<W: Work>(self, effect: Effect, work: W) -> Result<ClaimFinish<S, W>, DedupError> {
        let guarded = self.guarded.effect(effect)?;
        Ok(ClaimFinish::new(Self { guarded, ..self }, work))
    }

    /// The consumer's name.
    pub fn consumer(&self) -> &str {
        self.guarded.name().as_str()
    }

    /// A message was found to be done: counted, and no sign that its work can be done now.
    fn found(&self, message: &Message) {
        duplicate_count::marked(message.identity().mark(self.consumer()), false);
    }

    fn intent(&self, message: &Message) -> (Intent, Fingerprint) {
        let key = message.identity().key(self.consumer());
        let intent = self.guarded.intent(&Scope::single_tenant(), &key);
        (intent, self.recipe.bytes(message.payload()))
    }
}

/// What is recorded of work that is done: that it is.
fn done() -> Execution {
    Execution::completed(Outcome::new(0, ""))
}
