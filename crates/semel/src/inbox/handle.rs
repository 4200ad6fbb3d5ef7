//! The inbox of a consumer: mark first, then the effect, one commit.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::consumer::HandlerError;
use super::identity::{self, Identity, IdentityError, Mark};
use super::mark::{self, Put};
use super::{WINDOW, duplicate_count, prune};
use crate::crash;
use crate::intent::outcome::{Outcome, Verdict};
use crate::tx::driver::{DriverError, DriverErrorKind, OpenTx, Tx};
use crate::tx::{Remember, TxError};

/// The inbox of one consumer: the name under which it marks messages it has handled. Cheap to create and to clone.
#[derive(Clone, Debug)]
#[must_use]
pub struct Inbox {
    consumer: String,
    results: bool,
    window: Duration,
}

/// The result of handling a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Handled<T> {
    /// It was handled now. It counts once the transaction commits.
    Now(T),
    /// A duplicate: it was handled before, and nothing was done. With the earlier result, if results are
    /// [stored](Inbox::keep_results).
    Already(Option<T>),
}

impl<T> Handled<T> {
    /// Whether it was handled before.
    pub fn is_already(&self) -> bool {
        matches!(self, Self::Already(_))
    }
}

/// A marked batch. Handle its [fresh](Marked::fresh) messages in the same transaction, then [end](Marked::end_tx) it
/// and commit.
#[derive(Debug)]
#[must_use = "handle the fresh messages, and no others"]
pub struct Marked {
    batch: i64,
    fresh: Vec<bool>,
}

impl Marked {
    /// Indexes of the messages that were never handled. A message that is in the batch twice is fresh only the first
    /// time.
    pub fn fresh(&self) -> impl Iterator<Item = usize> {
        self.fresh.iter().enumerate().filter_map(|(at, fresh)| fresh.then_some(at))
    }

    /// Whether the message at that index was never handled.
    pub fn is_fresh(&self, at: usize) -> bool {
        self.fresh.get(at).copied().unwrap_or(false)
    }

    /// Records when the batch was done, and checks that the transaction still has its marks. Do not skip it: after a
    /// failed statement the server may turn a commit into a rollback, and a driver may report that as success.
    pub async fn end_tx<X: Tx>(self, tx: &mut X) -> Result<(), TxError> {
        if self.fresh.is_empty() {
            return Ok(());
        }
        asked(mark::end(&mut OpenTx::new(tx)?, self.batch).await)
    }
}

impl Inbox {
    /// The inbox of the consumer with that name. All processes of one consumer share the name. Two consumers with one
    /// name would each skip what the other has handled.
    ///
    /// # Errors
    /// If the name is empty, too long, or has control characters.
    pub fn new(consumer: &str) -> Result<Self, IdentityError> {
        let consumer = identity::name("a consumer's name", consumer)?;
        Ok(Self { consumer, results: false, window: WINDOW })
    }

    /// The consumer's name.
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Stores the result of handling a message, and returns it when the message is delivered again.
    pub fn keep_results(mut self) -> Self {
        self.results = true;
        self
    }

    /// Retention of marks: the dedup window. Default: [`WINDOW`]. Must be longer than the broker's retention, or a
    /// message may be redelivered after its mark was pruned.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Deletes one bounded batch of marks older than the window, and returns how many. Use a transaction of its own,
    /// and repeat after the commit until it returns zero. Marks of other consumers are not touched.
    pub async fn prune_tx<X: Tx>(&self, tx: &mut X) -> Result<u64, TxError> {
        Ok(prune::chunk(&mut OpenTx::new(tx)?, &self.consumer, self.window).await?)
    }

    /// Marks the message and runs `work` in the transaction `tx`, unless the message was handled before. On `Ok`
    /// commit, and only then ack it at the broker. On any error roll back: neither effect nor mark remains.
    ///
    /// Of two transactions with the same message the second waits until the first has ended, up to the database's lock
    /// timeout. Under REPEATABLE READ and SERIALIZABLE it may have to be retried ([`TxError::Retry`]).
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx-postgres")] {
    /// use semel::inbox::{Handled, Identity, Inbox};
    ///
    /// async fn notify(pool: &sqlx::PgPool, event: &str, to: &str) -> Result<(), Box<dyn std::error::Error>> {
    ///     let inbox = Inbox::new("notifications")?;
    ///     let message = Identity::new("payments", event)?;
    ///     let mut tx = pool.begin().await?;
    ///     inbox
    ///         .handle_tx(&mut tx, &message, async |tx| {
    ///             let note = sqlx::query("INSERT INTO note (recipient) VALUES ($1)").bind(to);
    ///             note.execute(tx).await.map(drop)
    ///         })
    ///         .await?;
    ///     tx.commit().await?;
    ///     // … now ack the message …
    ///     Ok(())
    /// }
    /// # }
    /// ```
    pub async fn handle_tx<X, T, E>(
        &self,
        tx: &mut X,
        message: &impl AsRef<Identity>,
        work: impl for<'l> AsyncFnOnce(X::Lent<'l>) -> Result<T, E>,
    ) -> Result<Handled<T>, TxError<E>>
    where
        X: Tx,
        T: Remember,
    {
        let mark = message.as_ref().mark(&self.consumer);
        let source = message.as_ref().source();
        crash::point(crash::BEFORE_MARK);
        let put = asked(mark::put(&mut OpenTx::new(tx)?, &self.consumer, source, vec![mark]).await)?;
        crash::point(crash::AFTER_MARK);
        duplicate_count::marked(mark, !put.fresh.is_empty());
        if put.fresh.is_empty() {
            let kept = match self.results {
                true => asked(mark::recall(&mut OpenTx::new(tx)?, mark).await)?,
                false => None,
            };
            return recalled(kept);
        }
        let value = work(tx.lend()).await.map_err(TxError::Work)?;
        crash::point(crash::AFTER_HANDLED);
        let tx = &mut OpenTx::new(tx)?;
        asked(mark::end(tx, put.batch).await)?;
        if let Some(outcome) = self.kept(&value)? {
            asked(mark::keep(tx, mark, outcome).await)?;
        }
        Ok(Handled::Now(value))
    }

    /// Marks all of these with one statement, and returns which were not marked before. At most
    /// [`BATCH_MESSAGES_MAX`](super::BATCH_MESSAGES_MAX).
    pub async fn mark_all_tx<X: Tx>(
        &self,
        tx: &mut X,
        messages: &[impl AsRef<Identity>],
    ) -> Result<Marked, TxError> {
        let (marks, sorted) = self.marks(messages)?;
        if sorted.is_empty() {
            return Ok(Marked { batch: 0, fresh: Vec::new() });
        }
        let source = mark::sources(messages.iter().map(AsRef::as_ref));
        crash::point(crash::BEFORE_MARK);
        let put = asked(mark::put(&mut OpenTx::new(tx)?, &self.consumer, &source, sorted).await)?;
        crash::point(crash::AFTER_MARK);
        Ok(marked(&marks, put))
    }

    fn kept<T: Remember, E>(&self, value: &T) -> Result<Option<Bytes>, TxError<E>> {
        if !self.results {
            return Ok(None);
        }
        let outcome = value.remember().map_err(|why| TxError::Value { why })?;
        Ok(Some(outcome.encode()))
    }

    /// The marks in the given order, and as they are written: sorted and distinct.
    fn marks(&self, messages: &[impl AsRef<Identity>]) -> Result<(Vec<Mark>, Vec<Mark>), TxError> {
        if messages.len() > super::BATCH_MESSAGES_MAX {
            let why = format!(
                "the batch has {} messages, and at most {} can be marked together; make the batches smaller",
                messages.len(),
                super::BATCH_MESSAGES_MAX
            );
            return Err(TxError::Value { why });
        }
        let marks: Vec<Mark> = messages.iter().map(|message| message.as_ref().mark(&self.consumer)).collect();
        let mut sorted = marks.clone();
        sorted.sort_unstable();
        sorted.dedup();
        Ok((marks, sorted))
    }
}

/// The result of a statement. After any error the transaction must be rolled back: it may contain some of the marks.
fn asked<T, E>(asked: Result<T, DriverError>) -> Result<T, TxError<E>> {
    match asked {
        Err(busy) if busy.kind() == DriverErrorKind::Busy => Err(TxError::Retry(busy)),
        result => Ok(result?),
    }
}

fn marked(marks: &[Mark], mut put: Put) -> Marked {
    // A repeat within the batch does not count as a duplicate if its message is fresh.
    marks.iter().for_each(|mark| duplicate_count::marked(*mark, put.fresh.contains(mark)));
    Marked { batch: put.batch, fresh: marks.iter().map(|mark| put.fresh.remove(mark)).collect() }
}

fn recalled<T: Remember, E>(kept: Option<Bytes>) -> Result<Handled<T>, TxError<E>> {
    let Some(stored) = kept else { return Ok(Handled::Already(None)) };
    let unreadable = |error| DriverError::of(DriverErrorKind::Unreadable, error);
    let outcome = Outcome::decode(stored).map_err(unreadable)?;
    let value = T::recall(Verdict::Completed, outcome).map_err(TxError::or_work)?;
    Ok(Handled::Already(Some(value)))
}

/// A failure to mark is never the message's fault; an error of the work may be.
impl<E: fmt::Display> From<TxError<E>> for HandlerError {
    fn from(error: TxError<E>) -> Self {
        match error {
            TxError::Work(error) => Self::retry(error),
            TxError::Value { .. } => Self::retry(error),
            other => Self::transient(other),
        }
    }
}

#[cfg(feature = "webhook-receiver")]
impl<T> From<Handled<T>> for super::webhook::Done {
    fn from(handled: Handled<T>) -> Self {
        if handled.is_already() { Self::Already } else { Self::Now }
    }
}
