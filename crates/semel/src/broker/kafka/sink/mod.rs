//! Kafka: at least once with [`KafkaSink`], exactly once with [`KafkaTransactions`].
//!
//! | in the record | from the event |
//! |---|---|
//! | key | its partition key or aggregate's id; hashed by murmur2, as in the Java client |
//! | value | its payload |
//! | headers | `semel-id`, `semel-type`, `content-type`, `semel-intent`, `traceparent` …: [`headers`](crate::sink::headers) |
//!
//! **Order.** An idempotent producer keeps order while it retries, but not across an event that fails for good: the
//! next one is published, and the failed one, when published again, comes behind it. So here a refused batch stops the
//! producer, and no event times out by itself. The broker rejects batches that were sent behind a refused one, because
//! their sequence numbers leave a gap. It only does so for a producer it knows: from an unknown one it accepts any
//! number as the first. So the first event of a key is confirmed before the others of its key are sent. The events of a
//! refused batch are then published one by one, which shows the event that is to blame.
//!
//! What Kafka cannot guarantee: adding partitions to a topic moves keys to other partitions, which breaks their order
//! with what was published before.
//!
//! | module | what it decides |
//! |---|---|
//! | `known_keys` | which keys' partitions know this producer |
//! | `rounds` | in which rounds the events of one call are sent |
//! | `transaction` | events and the relay's checkpoint in one Kafka transaction |
//! | `position` | the relay's checkpoint in a compacted topic |
//! | `probe` | checks the cluster's settings before anything is published |
//! | `error_class` | what librdkafka's error codes say about an event |
//! | `options` | settings, and the librdkafka properties that callers cannot set |

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::error_class::ErrorClass;
use self::known_keys::KnownKeys;
use self::rounds::Rounds;
use crate::broker::kafka::producer::{self, Batch, KafkaProducer, Report};
use crate::outbox::Event;
use crate::sink::publish_results::{PublishResults, blocked, overtaken};
use crate::sink::{DeliverySemantics, Guarantee, Published, Sink, SinkError};

pub(crate) mod error_class;
mod known_keys;
mod options;
mod position;
mod probe;
mod rounds;
mod transaction;

pub use options::{Compression, KafkaOptions, MissingTopic};
pub use transaction::KafkaTransactions;

/// Pause before a retry when the queue is full.
const QUEUE_PAUSE: Duration = Duration::from_millis(2);
/// How often to check whether the producer has stopped for good.
const STOPPED_PAUSE: Duration = Duration::from_millis(50);
/// librdkafka reports purged records itself, without the broker.
const PURGE_PATIENCE: Duration = Duration::from_secs(2);

/// Publishes to Kafka at least once, with `acks=all`.
///
/// ```no_run
/// use semel::sink::kafka::{Compression, KafkaSink};
///
/// let sink = KafkaSink::options("127.0.0.1:9092").compression(Compression::Lz4).open()?;
/// # drop(sink); Ok::<(), semel::sink::SinkError>(())
/// ```
pub struct KafkaSink {
    options: KafkaOptions,
    producer: Option<KafkaProducer>,
    /// The last call was cancelled: what it queued may still be in flight.
    left: bool,
    known_keys: KnownKeys,
    violations: Vec<String>,
}

impl KafkaSink {
    /// Options of a sink for the cluster of these brokers: `host:port`, separated by commas.
    pub fn options(bootstrap: &str) -> KafkaOptions {
        KafkaOptions::new(bootstrap)
    }

    fn open(options: KafkaOptions) -> Result<Self, SinkError> {
        let producer = KafkaProducer::open(&options.at_least_once())?;
        Ok(Self {
            options,
            producer: Some(producer),
            left: false,
            known_keys: KnownKeys::default(),
            violations: Vec::new(),
        })
    }

    /// Queues events in their order and waits for their delivery reports. Events behind one that failed are not sent
    /// and get their results at once. `None`: the producer had failed after the last round, and nothing was queued.
    async fn round(
        &mut self,
        events: &[Arc<Event>],
        round: &[usize],
        answers: &mut PublishResults<'_>,
        until: Instant,
    ) -> Option<Vec<(usize, Report)>> {
        let producer =
            match self.producer.take().map_or_else(|| KafkaProducer::open(&self.options.at_least_once()), Ok)
            {
                Ok(producer) => self.producer.insert(producer),
                Err(error) => {
                    round.iter().for_each(|&n| answers.set(n, Published::Failed(error.clone())));
                    return Some(Vec::new());
                }
            };
        let batch = Batch::of(round.len());
        let mut sent = vec![true; round.len()];
        let mut stale = false;
        for (index, &n) in round.iter().enumerate() {
            let failed = match answers.is_blocked(n) {
                true => Some(blocked()),
                false => match queue(producer, &self.options, &events[n], &batch, index, until).await {
                    Ok(()) => None,
                    Err(Code::Fatal) if !sent[..index].contains(&true) => {
                        self.producer = None;
                        return None;
                    }
                    Err(code) => {
                        stale |= is_unknown_topic(code);
                        Some(not_queued(code, &events[n], &self.options))
                    }
                },
            };
            if let Some(answer) = failed {
                answers.set(n, answer);
                batch.report(index, Err(Code::Unknown));
                sent[index] = false;
            }
        }
        if timeout_at(until, reported(producer, &batch)).await.is_err() {
            producer.purge();
            let _ = timeout(PURGE_PATIENCE, batch.complete()).await;
            self.producer = None;
        } else if stale || producer.fatal().is_some() {
            self.producer = None;
        }
        let reports = batch.reports().into_iter().map(|report| report.unwrap_or(Err(Code::PurgeInflight)));
        let reports = round.iter().copied().zip(reports).zip(sent);
        Some(reports.filter_map(|(report, sent)| sent.then_some(report)).collect())
    }
}

impl Drop for KafkaSink {
    /// Purges the queue at once: a producer is destroyed later, on a thread of its own. A transaction needs no purge:
    /// the next producer with its id aborts it.
    fn drop(&mut self) {
        if let Some(producer) = &self.producer {
            producer.purge();
        }
    }
}

impl Sink for KafkaSink {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::AtLeastOnce,
            sentence: "Kafka, acks=all: every event at least once, in the order of its key; after a crash or a lost \
                       answer more often, with the same semel-id."
                .to_owned(),
            violations: self.violations.clone(),
        }
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        self.violations = probe::reach(&self.options).await?;
        Ok(())
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let until = Instant::now() + self.options.timeout;
        if std::mem::replace(&mut self.left, true) {
            self.producer = None;
            self.known_keys = KnownKeys::default();
        }
        let mut answers = PublishResults::to(events);
        let mut rounds = Rounds::new(events, &mut self.known_keys);
        // Each round settles at least one event: a suspect, or all waiting events except new suspects and the events
        // behind them.
        loop {
            if Instant::now() >= until {
                rounds.rest().for_each(|(n, in_doubt)| answers.set(n, no_time_left(in_doubt)));
                break;
            }
            let Some(round) = rounds.next() else { break };
            let alone = round.len() == 1;
            let Some(reports) = self.round(events, &round, &mut answers, until).await else {
                rounds.put_back(round);
                self.known_keys = KnownKeys::default();
                rounds.producer_changed(&mut self.known_keys);
                continue;
            };
            let blamed = |code| error_class::of(code, self.options.missing) == ErrorClass::Refused;
            let any_blamed = reports.iter().any(|(_, report)| report.is_err_and(blamed));
            let mut doubted = HashSet::new();
            for (n, report) in reports {
                let key = events[n].ordered_by().map(|key| (events[n].topic(), key));
                let is_blocked = answers.is_blocked(n) || key.is_some_and(|key| doubted.contains(&key));
                match report {
                    Ok(()) if is_blocked => answers.set(n, overtaken()),
                    Ok(()) => {
                        self.known_keys.add(&events[n]);
                        answers.set(n, Published::Confirmed);
                    }
                    // The batch was refused. Publishing its events one by one shows which is to blame.
                    Err(code) if blamed(code) && !alone => {
                        doubted.extend(key);
                        rounds.suspect(n);
                    }
                    // This event was queued behind a refused batch: it was not sent, or the broker rejected it.
                    Err(code) if any_blamed && !alone && is_turned_away(code) => {
                        doubted.extend(key);
                        rounds.again(n);
                    }
                    Err(code) if is_blocked => match error_class::of(code, self.options.missing) {
                        ErrorClass::Maybe => answers.set(n, overtaken()),
                        _ => answers.set(n, blocked()),
                    },
                    Err(code) => {
                        if is_unknown_topic(code) {
                            self.producer = None;
                        }
                        let answer = error_class::answer(code, events[n].topic(), self.options.missing);
                        answers.set(n, answer);
                    }
                }
            }
            if self.producer.is_none() {
                self.known_keys = KnownKeys::default();
                rounds.producer_changed(&mut self.known_keys);
            }
            if rounds.suspects() > 0 && !alone {
                tracing::warn!(
                    target: "semel::kafka",
                    events = rounds.suspects(),
                    "the broker refused a batch; publishing its events one by one"
                );
            }
        }
        self.left = false;
        answers.finish()
    }
}

/// Returns when every record has been reported. A producer that has stopped for good discards its queue, but a batch
/// that was in flight and returns to the queue after that would stay there for ever.
async fn reported(producer: &KafkaProducer, batch: &Batch) {
    while timeout(STOPPED_PAUSE, batch.complete()).await.is_err() {
        if producer.fatal().is_some() {
            producer.purge_queue();
        }
    }
}

/// Queues one event.
async fn queue(
    producer: &KafkaProducer,
    options: &KafkaOptions,
    event: &Event,
    batch: &Arc<Batch>,
    index: usize,
    until: Instant,
) -> Result<(), Code> {
    let mut record = producer::record(event, &options.style, batch, index);
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((Code::QueueFull, back)) if Instant::now() < until => {
                record = back;
                sleep(QUEUE_PAUSE).await;
            }
            Err((code, _)) => return Err(code),
        }
    }
}

/// The result of an event that was not even queued: nothing is in doubt.
fn not_queued(code: Code, event: &Event, options: &KafkaOptions) -> Published {
    match error_class::answer(code, event.topic(), options.missing) {
        Published::Failed(error) => Published::Failed(SinkError::not_published(error.to_string())),
        other => other,
    }
}

/// The result of an event that was left when the time limit of the call ended.
fn no_time_left(in_doubt: bool) -> Published {
    Published::Failed(match in_doubt {
        true => SinkError::maybe_published(
            "the time limit of the call ended before the broker confirmed the event",
        ),
        false => SinkError::not_tried("the time limit of the call ended before the event was sent"),
    })
}

/// Not sent, or rejected, because a batch before it was refused.
fn is_turned_away(code: Code) -> bool {
    matches!(code, Code::PurgeQueue | Code::OutOfOrderSequenceNumber | Code::GaplessGuarantee | Code::Fatal)
}

/// librdkafka caches for minutes that a topic does not exist; a new producer asks again.
pub(crate) fn is_unknown_topic(code: Code) -> bool {
    matches!(code, Code::UnknownTopic | Code::UnknownTopicOrPartition)
}
