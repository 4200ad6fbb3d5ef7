//! The inbox's tables in the database that a URL names: where letters are kept, and where people look at them.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::letter::{Counted, DeadLetterFilter, StoredDeadLetter, name_apart, values};
use super::link::Link;
use super::script;
use crate::inbox::consumer::{DeadLetter, DeadLetters, DedupPruner, Due, HandlerError};
use crate::inbox::{TABLES, VERSION};
use crate::store::{ErrorKind, Fate, StoreError};
use crate::tx::driver::DriverError;
use crate::tx::script::Port;

/// Most letters of one listing.
pub const LISTED_LETTERS_MAX: usize = 1_000;

/// How long the database may take for one question.
const PATIENCE: Duration = Duration::from_secs(30);

/// The inbox's tables in the database that a URL names. Cheap to clone; all clones share one connection.
///
/// The place for a consumer's dead letters, beside the marks of its inbox, which are forgotten when they are old:
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
    link: Arc<Link>,
}

impl fmt::Debug for DeadLetterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxTables").field("place", &self.link.place()).finish_non_exhaustive()
    }
}

impl DeadLetterStore {
    /// The tables in that database: `postgres://…`, `mysql://…` or `sqlite:PATH`.
    ///
    /// # Errors
    /// When the database cannot be reached, or its tables are not there or of another version: `semel migrate --inbox`, or
    /// [`migrate`](crate::inbox::migrate), makes them.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let tables = Self { link: Arc::new(Link::new(TABLES.dialect(url)?, url)?) };
        let version = tables.play(script::version).await?;
        if version == i64::from(VERSION) {
            return Ok(tables);
        }
        let what = match version > i64::from(VERSION) {
            true => "upgrade semel",
            false => "bring it up with `semel migrate --inbox URL`",
        };
        let message = format!(
            "the inbox in {} has version {version}, and this build works with version {VERSION}; {what}",
            tables.link.place()
        );
        Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message))
    }

    /// Letters by their numbers, the lowest first, without what they say: at most so many, and [`LISTED_LETTERS_MAX`].
    pub async fn list(
        &self,
        listing: &DeadLetterFilter,
        most: usize,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        let (listing, most) = (listing.clone(), most.min(LISTED_LETTERS_MAX));
        self.play(move |port| script::list(port, listing, most)).await
    }

    /// How many letters each consumer has from each source, dropped ones not counted.
    pub async fn count(&self) -> Result<Vec<Counted>, StoreError> {
        self.play(|port| script::count(port, LISTED_LETTERS_MAX)).await
    }

    /// One letter, with what it says.
    pub async fn find(&self, number: i64) -> Result<Option<StoredDeadLetter>, StoreError> {
        self.play(move |port| script::find(port, number)).await
    }

    /// Has these handled again, at their consumers' next look: all of them or, where one is not there or was dropped, none.
    /// `Err` has the number of that one.
    pub async fn retry(&self, numbers: &[i64]) -> Result<Result<(), i64>, StoreError> {
        let numbers = numbers.to_vec();
        self.play(move |port| script::retry(port, numbers)).await
    }

    /// Has all of a consumer's and a source's handled again, or with an empty listing all there are. Says how many.
    pub async fn retry_all(&self, listing: &DeadLetterFilter) -> Result<u64, StoreError> {
        let listing = listing.clone();
        self.play(move |port| script::retry_all(port, listing)).await
    }

    /// Gives these up for ever: what they say is deleted; that they were there, and why they were given up, is kept
    /// until marks of that age are forgotten. All of them or, where one is not there, none: `Err` has its number.
    pub async fn give_up(
        &self,
        numbers: &[i64],
        why: &str,
    ) -> Result<Result<Vec<StoredDeadLetter>, i64>, StoreError> {
        let (mut numbers, why) = (numbers.to_vec(), why.to_owned());
        numbers.sort_unstable();
        numbers.dedup();
        let gone = self.play(move |port| script::give_up(port, numbers, why)).await?;
        for letter in gone.iter().flatten() {
            tracing::warn!(
                letter = letter.number,
                consumer = letter.consumer,
                source = letter.source,
                id = letter.id,
                "a dead letter was dropped"
            );
        }
        Ok(gone)
    }

    /// Forgets a bite of a consumer's marks that are older than this, and of its letters that were dropped longer ago, in a
    /// transaction of its own. Zero: nothing is left to forget.
    pub async fn prune(&self, consumer: &str, window: Duration) -> Result<u64, StoreError> {
        let consumer = consumer.to_owned();
        self.play(move |port| script::prune(port, consumer, window)).await
    }

    /// Forgets a bite of a consumer's letters that were dropped longer ago than this, and no marks. Zero: nothing is left to
    /// forget.
    pub async fn forget_dropped(&self, consumer: &str, window: Duration) -> Result<u64, StoreError> {
        let consumer = consumer.to_owned();
        self.play(move |port| script::forget_dropped(port, consumer, window)).await
    }

    /// Plays a script in a transaction of its own.
    async fn play<T, F>(&self, script: impl FnOnce(Port) -> F + Send + 'static) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, DriverError>> + Send,
    {
        // Boxed: the drivers' futures are large, and stand in the consumer's own.
        match tokio::time::timeout(PATIENCE, Box::pin(self.link.play(script))).await {
            Ok(played) => played,
            Err(_) => {
                let place = self.link.place();
                let message = format!("{place} did not answer within {PATIENCE:?}; look at its load");
                Err(StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message))
            }
        }
    }
}

impl DeadLetters for DeadLetterStore {
    async fn dead_letter(&self, consumer: &str, message: &DeadLetter<'_>) -> Result<(), HandlerError> {
        let (values, apart) = (values(consumer, message), name_apart(consumer, message));
        self.play(move |port| script::dead_letter(port, values, apart)).await.map_err(HandlerError::transient)
    }

    async fn due(&self, consumer: &str, most: usize, lease: Duration) -> Result<Vec<Due>, HandlerError> {
        let consumer = consumer.to_owned();
        self.play(move |port| script::due(port, consumer, most, lease)).await.map_err(HandlerError::transient)
    }

    async fn handled(&self, letter: i64) -> Result<(), HandlerError> {
        self.play(move |port| script::handled(port, letter)).await.map_err(HandlerError::transient)
    }

    async fn failed(&self, letter: i64, error: &str, tries: u32) -> Result<(), HandlerError> {
        let error = error.to_owned();
        self.play(move |port| script::failed(port, letter, error, tries))
            .await
            .map_err(HandlerError::transient)
    }
}

impl DedupPruner for DeadLetterStore {
    async fn prune(&self, consumer: &str, window: Duration) -> Result<u64, HandlerError> {
        Self::prune(self, consumer, window).await.map_err(HandlerError::transient)
    }
}
