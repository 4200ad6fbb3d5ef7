//! The dead letter store: where dead letters are written, and where an operator inspects, retries and drops them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::letter::{Counted, DeadLetterFilter, StoredDeadLetter, distinct_name, values};
use super::operations;
use crate::database::{Database, TxOperation};
use crate::inbox::TABLES;
use crate::inbox::consumer::{DeadLetter, DeadLetters, DedupPruner, Due, HandlerError};
use crate::store::{ErrorKind, Fate, StoreError};
use crate::timeout::bounded;

/// Most dead letters in one listing.
pub const LISTED_LETTERS_MAX: usize = 1_000;

/// Timeout of one transaction.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Dead letters in the inbox's tables of a SQL database. Cheap to clone; clones share one session.
///
/// It stores a consumer's dead letters beside the marks of its inbox, and prunes old marks:
///
/// ```no_run
/// # async fn run<H: semel::inbox::consumer::Handler>(handler: H) -> Result<(), Box<dyn std::error::Error>> {
/// use semel::inbox::consumer::{Consumer, ConsumerOptions};
/// use semel::inbox::dead_letter::DeadLetterStore;
/// # let source = semel::source::memory::MemoryQueue::new("payments").source();
///
/// let tables = DeadLetterStore::open("postgres://mail@db/mail").await?;
/// let consumer = Consumer::new("mail", source, handler, ConsumerOptions::default());
/// let consumer = consumer.forgets(tables.clone()).dead_letters(tables);
/// consumer.run().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct DeadLetterStore {
    database: Arc<Database>,
}

impl fmt::Debug for DeadLetterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterStore").field("location", &self.database.location()).finish_non_exhaustive()
    }
}

impl DeadLetterStore {
    /// Opens the tables in a database: `postgres://…`, `mysql://…` or `sqlite:PATH`.
    ///
    /// # Errors
    /// If the database cannot be reached, or its tables are missing or of another version. `semel migrate --inbox`, or
    /// [`migrate`](crate::inbox::migrate), creates or upgrades them.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let tables = Self { database: Arc::new(Database::new(TABLES, url, 1)?) };
        let version = tables.run(|tx| Box::pin(operations::version(tx))).await?;
        let checked = TABLES.check(TABLES.dialect(url)?, version, &tables.database.location());
        checked.map_err(crate::migration::wrong)?;
        Ok(tables)
    }

    /// Lists dead letters by number, lowest first, without payloads. At most `most`, and at most
    /// [`LISTED_LETTERS_MAX`].
    pub async fn list(
        &self,
        filter: &DeadLetterFilter,
        most: usize,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        let (filter, most) = (filter.clone(), most.min(LISTED_LETTERS_MAX));
        self.run(move |tx| Box::pin(operations::list(tx, filter, most))).await
    }

    /// Counts dead letters by consumer and source, without dropped ones.
    pub async fn count(&self) -> Result<Vec<Counted>, StoreError> {
        self.run(|tx| Box::pin(operations::count(tx, LISTED_LETTERS_MAX))).await
    }

    /// One dead letter, with its payload.
    pub async fn find(&self, number: i64) -> Result<Option<StoredDeadLetter>, StoreError> {
        self.run(move |tx| Box::pin(operations::find(tx, number))).await
    }

    /// Schedules these for redelivery when their consumers next look. If one does not exist or was dropped, none is:
    /// `Err` has its number.
    pub async fn retry(&self, numbers: &[i64]) -> Result<Result<(), i64>, StoreError> {
        let numbers = numbers.to_vec();
        self.run(move |tx| Box::pin(operations::retry(tx, numbers))).await
    }

    /// Schedules all of a consumer and a source for redelivery, or with an empty filter all there are. Returns how
    /// many.
    pub async fn retry_all(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError> {
        let filter = filter.clone();
        self.run(move |tx| Box::pin(operations::retry_all(tx, filter))).await
    }

    /// Drops these for good: payload and headers are deleted; the row and the reason stay until marks of that age are
    /// pruned. If one does not exist, none is dropped: `Err` has its number.
    pub async fn give_up(
        &self,
        numbers: &[i64],
        why: &str,
    ) -> Result<Result<Vec<StoredDeadLetter>, i64>, StoreError> {
        let (mut numbers, why) = (numbers.to_vec(), why.to_owned());
        numbers.sort_unstable();
        numbers.dedup();
        let gone = self.run(move |tx| Box::pin(operations::give_up(tx, numbers, why))).await?;
        for dead_letter in gone.iter().flatten() {
            tracing::warn!(
                letter = dead_letter.number,
                consumer = dead_letter.consumer,
                source = dead_letter.source,
                id = dead_letter.id,
                "dropped a dead letter; its payload is deleted"
            );
        }
        Ok(gone)
    }

    /// Deletes one bounded batch of a consumer's marks older than `window`, and of dead letters dropped before it, in
    /// its own transaction. Zero: nothing is left to prune.
    pub async fn prune(&self, consumer: &str, window: Duration) -> Result<u64, StoreError> {
        let consumer = consumer.to_owned();
        self.run(move |tx| Box::pin(operations::prune(tx, consumer, window))).await
    }

    /// Deletes one bounded batch of a consumer's dead letters dropped longer ago than `window`, and no marks. Zero:
    /// nothing is left to prune.
    pub async fn forget_dropped(&self, consumer: &str, window: Duration) -> Result<u64, StoreError> {
        let consumer = consumer.to_owned();
        self.run(move |tx| Box::pin(operations::forget_dropped(tx, consumer, window))).await
    }

    /// Runs an operation in its own transaction.
    async fn run<T: Send + 'static>(&self, operation: impl TxOperation<T>) -> Result<T, StoreError> {
        // Boxed: the drivers' futures are large, and would be part of the consumer's.
        bounded(TIMEOUT, Box::pin(self.database.run(operation)), || {
            let location = self.database.location();
            let message = format!("{location} did not answer within {TIMEOUT:?}; check its load");
            StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message)
        })
        .await
    }
}

impl DeadLetters for DeadLetterStore {
    async fn dead_letter(&self, consumer: &str, message: &DeadLetter<'_>) -> Result<(), HandlerError> {
        let (values, other_name) = (values(consumer, message), distinct_name(consumer, message));
        self.run(move |tx| Box::pin(operations::dead_letter(tx, values, other_name)))
            .await
            .map_err(HandlerError::transient)
    }

    async fn due(&self, consumer: &str, most: usize, lease: Duration) -> Result<Vec<Due>, HandlerError> {
        let consumer = consumer.to_owned();
        self.run(move |tx| Box::pin(operations::due(tx, consumer, most, lease)))
            .await
            .map_err(HandlerError::transient)
    }

    async fn handled(&self, dead_letter: i64) -> Result<(), HandlerError> {
        self.run(move |tx| Box::pin(operations::handled(tx, dead_letter)))
            .await
            .map_err(HandlerError::transient)
    }

    async fn failed(&self, dead_letter: i64, error: &str, attempts: u32) -> Result<(), HandlerError> {
        let error = error.to_owned();
        self.run(move |tx| Box::pin(operations::failed(tx, dead_letter, error, attempts)))
            .await
            .map_err(HandlerError::transient)
    }
}

impl DedupPruner for DeadLetterStore {
    async fn prune(&self, consumer: &str, window: Duration) -> Result<u64, HandlerError> {
        Self::prune(self, consumer, window).await.map_err(HandlerError::transient)
    }
}
