//! Kafka: a consumer of a group, for readers of committed data.
//!
//! | in the delivery | from the record |
//! |---|---|
//! | `from` | topic |
//! | `place` | `topic/partition/offset` |
//! | `lineage` | the cluster's id |
//! | `key` | its key; in hexadecimal where it is no text |
//! | `headers` | its headers, those that are text |
//!
//! **Offsets.** Messages may be done in any order; committed is only what has nothing undone before it. Commits run in
//! the background, a few each second, and are waited for when partitions are taken away and when the source leaves.
//!
//! **Rebalances.** Partitions move one by one (`cooperative-sticky`) unless [`Assignment`] says otherwise. What is out of a partition that was taken away is
//! [lost](Source::lost): another consumer gets it, and the inbox tells what was handled. That is also so for a consumer
//! that did not ask for messages for too long.
//!
//! The id of a topic is not told by the client. A topic that was deleted and made anew under its name has the same
//! offsets again: whoever names messages [by their place](super::Identify::ByPlace) would take new ones for old ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::reader::Reader;
use super::{Delivery, Receipt, Settle, Source, SourceError};

mod commit_throttle;
mod contiguous_offsets;
pub(crate) mod error_class;
mod in_flight;
mod options;
pub(crate) mod paused;
pub(crate) mod reader;
pub(crate) mod record;
mod retention;
pub(crate) mod shutdown;

pub(crate) use in_flight::Part;
pub use options::{Assignment, Begin, KafkaSourceOptions};

/// Receives from Kafka as one consumer of a group.
///
/// ```no_run
/// use semel::source::kafka::KafkaSource;
///
/// let source = KafkaSource::options("127.0.0.1:9092", "notifications").topics(&["payments"]).open()?;
/// # drop(source); Ok::<(), semel::source::SourceError>(())
/// ```
pub struct KafkaSource {
    options: KafkaSourceOptions,
    /// Gone when it has left.
    reader: Option<Arc<Reader>>,
}

impl KafkaSource {
    /// A consumer of that group, for the cluster of these brokers: `host:port`, separated by commas.
    pub fn options(brokers: &str, group: &str) -> KafkaSourceOptions {
        KafkaSourceOptions::new(brokers, group)
    }

    fn open(options: KafkaSourceOptions) -> Result<Self, SourceError> {
        options.check()?;
        let reader = Reader::open(&options)
            .map_err(|error| SourceError::for_good(format!("Kafka's client cannot be made: {error}")))?;
        Ok(Self { options, reader: Some(Arc::new(reader)) })
    }

    fn reader(&self) -> Result<Arc<Reader>, SourceError> {
        self.reader.clone().ok_or_else(|| SourceError::for_good("the source has left its group"))
    }
}

/// librdkafka blocks. What was begun goes on when the caller does not wait for it: what it takes in is held.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    tokio::task::spawn_blocking(work).await.map_err(SourceError::later)?
}

impl Source for KafkaSource {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        let reader = self.reader()?;
        let until = Instant::now() + wait;
        let polling = Arc::clone(&reader);
        let wanted = Arc::new(());
        let watched = Arc::downgrade(&wanted);
        let taken = apart(move || polling.take_in(most, until, &watched)).await;
        drop(wanted);
        let given = reader.held().give(most);
        if given.is_empty() { taken.map(|()| given) } else { Ok(given) }
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        // What was not settled when it left is others' by now.
        let Some(reader) = &self.reader else { return Ok(()) };
        let mut held = reader.held();
        settled.iter().for_each(|(receipt, settle)| held.settle(*receipt, *settle));
        drop(held);
        reader.commit_soon();
        Ok(())
    }

    async fn keep(&mut self, _: &[Receipt]) -> Result<(), SourceError> {
        let reader = self.reader()?;
        apart(move || reader.keep()).await
    }

    /// Counted from when it was last asked for anything, whoever calls in between.
    fn renew_after(&self) -> Duration {
        let interval = self.options.keep_every();
        let Some(reader) = &self.reader else { return interval };
        interval.saturating_sub(reader.polled().elapsed()).max(Duration::from_millis(10))
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.reader.as_ref().map(|reader| reader.held().lost()).unwrap_or_default()
    }

    async fn retention(&mut self) -> Option<Duration> {
        retention::longest(&self.options).await
    }

    /// Commits what is done and leaves the group, whose others then get the rest at once; that of a static member
    /// (`group.instance.id`) when its session is over, or it is back.
    async fn leave(&mut self) -> Result<(), SourceError> {
        let Some(reader) = self.reader.take() else { return Ok(()) };
        let timeout = self.options.timeout;
        let left = shutdown::close(timeout, move || {
            reader.commit_now();
            // The last one closes it, which gives the partitions back.
            drop(reader);
        });
        let slow = || SourceError::later("Kafka did not answer a consumer that leaves; it is missed soon");
        left.await.then_some(()).ok_or_else(slow)
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        // Closing waits for the broker.
        if let Some(reader) = self.reader.take() {
            shutdown::aside(move || drop(reader));
        }
    }
}
