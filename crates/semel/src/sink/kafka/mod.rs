//! Kafka: at least once with [`KafkaSink`], exactly once with [`KafkaTransactions`].
//!
//! | in the record | from the event |
//! |---|---|
//! | key | its partition key or aggregate's id; hashed by murmur2, like the Java client does it |
//! | value | its payload |
//! | headers | `semel-id`, `semel-type`, `content-type`, `semel-intent`, `traceparent`, … see [`headers`](super::headers) |
//!
//! **Order.** An idempotent producer keeps order while it retries, but not over an event that fails for good: the next
//! one gets there, and the failed one, published again, comes behind it. So here a batch that the broker refuses stops
//! the producer, and an event does not time out by itself. What was sent behind a refused batch the broker turns away,
//! because its number is not the next; but only if it has heard of this producer before: else it takes any number for
//! the first. So the first event of a key goes ahead of the others of its key. What was refused as a batch is then tried
//! one by one, which tells the event that is to blame from its neighbours.
//!
//! What Kafka cannot promise: adding partitions to a topic moves keys to other partitions, where no order holds with what
//! was published before.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::error_class::ErrorClass;
use self::known_keys::KnownKeys;
use self::producer::{Batch, KafkaProducer, Report};
use super::publish_results::{PublishResults, held_back, overtaken};
use super::{DeliverySemantics, Guarantee, Published, Sink, SinkError};
use crate::outbox::Event;

pub(crate) mod error_class;
mod known_keys;
mod options;
mod position;
mod probe;
pub(crate) mod producer;
pub(crate) mod producer_pair;
mod transaction;
pub(crate) mod transaction_steps;
pub(crate) mod version;

pub(crate) use options::client;
pub use options::{Compression, KafkaOptions, MissingTopic};
pub use transaction::KafkaTransactions;

/// How long a full queue is left to drain before it is tried again.
const QUEUE_PAUSE: Duration = Duration::from_millis(2);
/// How often it is looked whether the producer has stopped for good.
const STOPPED_PAUSE: Duration = Duration::from_millis(50);
/// What was given up is reported by librdkafka itself, without the broker.
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
    line: Option<KafkaProducer>,
    /// A call was left before its end: what it queued may still be on its way.
    left: bool,
    greeted: KnownKeys,
    violations: Vec<String>,
}

impl KafkaSink {
    /// A sink for the cluster of these brokers: `host:port`, separated by commas.
    pub fn options(bootstrap: &str) -> KafkaOptions {
        KafkaOptions::new(bootstrap)
    }

    fn open(options: KafkaOptions) -> Result<Self, SinkError> {
        let line = KafkaProducer::open(&options.at_least_once())?;
        Ok(Self {
            options,
            line: Some(line),
            left: false,
            greeted: KnownKeys::default(),
            violations: Vec::new(),
        })
    }

    /// Queues these events in their order and waits for their reports. Those that are not sent, because an event before
    /// them failed here already, are answered at once.
    async fn round(
        &mut self,
        events: &[Arc<Event>],
        round: &[usize],
        answers: &mut PublishResults<'_>,
        until: Instant,
    ) -> Vec<(usize, Report)> {
        let line =
            match self.line.take().map_or_else(|| KafkaProducer::open(&self.options.at_least_once()), Ok) {
                Ok(line) => self.line.insert(line),
                Err(error) => {
                    round.iter().for_each(|&n| answers.set(n, Published::Failed(error.clone())));
                    return Vec::new();
                }
            };
        let batch = Batch::of(round.len());
        let mut sent = vec![true; round.len()];
        let mut stale = false;
        for (place, &n) in round.iter().enumerate() {
            let failed = match answers.is_held(n) {
                true => Some(held_back()),
                false => match queue(line, &self.options, &events[n], &batch, place, until).await {
                    Ok(()) => None,
                    Err(code) => {
                        stale |= is_unknown_topic(code);
                        Some(not_queued(code, &events[n], &self.options))
                    }
                },
            };
            if let Some(answer) = failed {
                answers.set(n, answer);
                batch.report(place, Err(Code::Unknown));
                sent[place] = false;
            }
        }
        if timeout_at(until, reported(line, &batch)).await.is_err() {
            line.purge();
            let _ = timeout(PURGE_PATIENCE, batch.complete()).await;
            self.line = None;
        } else if stale || line.fatal().is_some() {
            self.line = None;
        }
        let reports = batch.reports().into_iter().map(|report| report.unwrap_or(Err(Code::PurgeInflight)));
        round.iter().copied().zip(reports).zip(sent).filter_map(|(it, sent)| sent.then_some(it)).collect()
    }
}

impl Drop for KafkaSink {
    /// Purges the queue at once: a producer is destroyed later, on a thread of its own. A transaction needs no purge: the next
    /// producer with its id aborts it.
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.purge();
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
            self.line = None;
            self.greeted = KnownKeys::default();
        }
        let mut answers = PublishResults::to(events);
        let (ahead, behind) = self.greeted.split(events, (0..events.len()).collect());
        let mut waiting = ahead;
        let mut behind = Some(behind);
        let mut suspects = VecDeque::new();
        // Each turn answers at least one event: a suspect, or all that wait but the suspects among them and those
        // behind these.
        loop {
            let round: Vec<usize> = match suspects.pop_front() {
                Some(suspect) => vec![suspect],
                None if waiting.is_empty() => behind.take().unwrap_or_default(),
                None => std::mem::take(&mut waiting),
            };
            if round.is_empty() {
                match behind {
                    Some(_) => continue,
                    None => break,
                }
            }
            let alone = round.len() == 1;
            let reports = self.round(events, &round, &mut answers, until).await;
            let blamed = |code| error_class::of(code, self.options.missing) == ErrorClass::Refused;
            let any_blamed = reports.iter().any(|(_, report)| report.is_err_and(blamed));
            let mut doubted = HashSet::new();
            for (n, report) in reports {
                let lane = events[n].ordered_by().map(|key| (events[n].topic(), key));
                let held = answers.is_held(n) || lane.is_some_and(|lane| doubted.contains(&lane));
                match report {
                    Ok(()) if held => answers.set(n, overtaken()),
                    Ok(()) => {
                        self.greeted.add(&events[n]);
                        answers.set(n, Published::Confirmed);
                    }
                    // The batch was refused. By whose fault shows when they are alone.
                    Err(code) if blamed(code) && !alone => {
                        doubted.extend(lane);
                        suspects.push_back(n);
                    }
                    // It stood behind such a batch and was not sent, or turned away.
                    Err(code) if any_blamed && !alone && is_turned_away(code) => waiting.push(n),
                    Err(code) if held => match error_class::of(code, self.options.missing) {
                        ErrorClass::Maybe => answers.set(n, overtaken()),
                        _ => answers.set(n, held_back()),
                    },
                    Err(code) => {
                        if is_unknown_topic(code) {
                            self.line = None;
                        }
                        let answer = error_class::answer(code, events[n].topic(), self.options.missing);
                        answers.set(n, answer);
                    }
                }
            }
            if self.line.is_none() {
                // The next producer is unknown everywhere: again the first of each key goes ahead.
                self.greeted = KnownKeys::default();
                let (ahead, mut rest) = self.greeted.split(events, std::mem::take(&mut waiting));
                waiting = ahead;
                if !rest.is_empty() {
                    rest.extend(behind.take().unwrap_or_default());
                    behind = Some(rest);
                }
            }
            if !suspects.is_empty() && !alone {
                tracing::warn!(
                    target: "semel::kafka",
                    events = suspects.len(),
                    "the broker refused a batch; its events are published one by one"
                );
            }
        }
        self.left = false;
        answers.finish()
    }
}

/// Returns when every record has been reported. A producer that has stopped for good throws away what is queued, but a
/// batch that was under way and comes back to the queue after that would lie there for ever.
async fn reported(line: &KafkaProducer, batch: &Batch) {
    while timeout(STOPPED_PAUSE, batch.complete()).await.is_err() {
        if line.fatal().is_some() {
            line.purge_queue();
        }
    }
}

/// Queues one event.
async fn queue(
    line: &KafkaProducer,
    options: &KafkaOptions,
    event: &Event,
    batch: &Arc<Batch>,
    place: usize,
    until: Instant,
) -> Result<(), Code> {
    let mut record = producer::record(event, &options.style, batch, place);
    loop {
        match line.send(record) {
            Ok(()) => return Ok(()),
            Err((Code::QueueFull, back)) if Instant::now() < until => {
                record = back;
                sleep(QUEUE_PAUSE).await;
            }
            Err((code, _)) => return Err(code),
        }
    }
}

/// The answer for an event that was not even queued: nothing is in doubt.
fn not_queued(code: Code, event: &Event, options: &KafkaOptions) -> Published {
    match error_class::answer(code, event.topic(), options.missing) {
        Published::Failed(error) => Published::Failed(SinkError::not_published(error.to_string())),
        other => other,
    }
}

/// Not sent, or not taken, because a batch before it was refused.
fn is_turned_away(code: Code) -> bool {
    matches!(code, Code::PurgeQueue | Code::OutOfOrderSequenceNumber | Code::GaplessGuarantee | Code::Fatal)
}

/// librdkafka remembers for minutes that a topic is not there; a new producer asks again.
pub(crate) fn is_unknown_topic(code: Code) -> bool {
    matches!(code, Code::UnknownTopic | Code::UnknownTopicOrPartition)
}
