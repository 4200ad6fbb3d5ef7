//! Kafka: one consumer of a consumer group, with `read_committed`.
//!
//! | in the delivery | from the record |
//! |---|---|
//! | `from` | topic |
//! | `place` | `topic/partition/offset` |
//! | `lineage` | the cluster's id |
//! | `key` | its key; in hexadecimal if it is not text |
//! | `headers` | its headers, those that are text |
//!
//! **Offsets.** Messages may be acked in any order; an offset is committed only if everything before it is acked.
//! Commits run in the background, a few each second. Revoking partitions and leaving wait for them.
//!
//! **Rebalances.** Partitions move one by one (`cooperative-sticky`) unless [`Assignment`] says otherwise. Messages in
//! flight from a revoked partition are [lost](Source::lost): another consumer gets them, and the inbox deduplicates.
//! The same happens to a consumer that has not polled for too long.
//!
//! The client does not report a topic's id. A topic that was deleted and recreated under its name has the same offsets
//! again: with [`Identify::ByPlace`](crate::source::Identify::ByPlace), new messages would count as duplicates of old ones.
//!
//! | module | what it decides |
//! |---|---|
//! | `reader` | the librdkafka consumer: polling, rebalances, commits |
//! | `in_flight`, `contiguous_offsets` | messages in flight, and how far a partition may be committed |
//! | `commit_throttle` | how often offsets are committed in the background |
//! | `paused` | backpressure: serves group events while all partitions are paused |
//! | `record` | from a Kafka record to a delivery |
//! | `retention` | the retention of the topics |
//! | `error_class` | what the errors of librdkafka's consumer mean |
//! | `shutdown` | closes a client without waiting for the broker |
//! | `options` | settings, and the librdkafka properties that only the source may set |

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::reader::Reader;
use crate::source::{Delivery, Receipt, Settle, Source, SourceError};

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
    /// `None` after `leave`.
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
            .map_err(|error| SourceError::for_good(format!("cannot create the Kafka client: {error}")))?;
        Ok(Self { options, reader: Some(Arc::new(reader)) })
    }

    fn reader(&self) -> Result<Arc<Reader>, SourceError> {
        self.reader.clone().ok_or_else(|| SourceError::for_good("the source has left its consumer group"))
    }
}

/// librdkafka blocks. The work goes on when the caller is cancelled: messages it takes in stay buffered.
async fn blocking<T: Send + 'static>(
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
        let taken = blocking(move || polling.take_in(most, until, &watched)).await;
        drop(wanted);
        let given = reader.in_flight().give(most);
        if given.is_empty() { taken.map(|()| given) } else { Ok(given) }
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        // After leaving, unsettled messages belong to other consumers.
        let Some(reader) = &self.reader else { return Ok(()) };
        let mut in_flight = reader.in_flight();
        settled.iter().for_each(|(receipt, settle)| in_flight.settle(*receipt, *settle));
        drop(in_flight);
        reader.commit_soon();
        Ok(())
    }

    async fn keep(&mut self, _: &[Receipt]) -> Result<(), SourceError> {
        let reader = self.reader()?;
        blocking(move || reader.keep()).await
    }

    /// Counted from the last poll.
    fn renew_after(&self) -> Duration {
        let interval = self.options.keep_every();
        let Some(reader) = &self.reader else { return interval };
        interval.saturating_sub(reader.polled().elapsed()).max(Duration::from_millis(10))
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.reader.as_ref().map(|reader| reader.in_flight().lost()).unwrap_or_default()
    }

    async fn retention(&mut self) -> Option<Duration> {
        retention::longest(&self.options).await
    }

    /// Commits acked messages and leaves the group. Others get the rest at once; that of a static member
    /// (`group.instance.id`) waits until its session times out or it is back.
    async fn leave(&mut self) -> Result<(), SourceError> {
        let Some(reader) = self.reader.take() else { return Ok(()) };
        let timeout = self.options.timeout;
        let left = shutdown::close(timeout, move || {
            reader.commit_now();
            // Dropping the last reference closes the consumer, which gives the partitions back.
            drop(reader);
        });
        let slow = || {
            SourceError::later(
                "Kafka did not answer while leaving the group; others get the partitions after the session timeout",
            )
        };
        left.await.then_some(()).ok_or_else(slow)
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        // Closing waits for the broker.
        if let Some(reader) = self.reader.take() {
            shutdown::on_own_thread(move || drop(reader));
        }
    }
}
