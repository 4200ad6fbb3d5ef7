//! The librdkafka consumer: polling, rebalances and commits. Everything here may block.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::{Message, Offset, TopicPartitionList};

use super::commit_throttle::CommitThrottle;
use super::in_flight::{Part, PartsInFlight};
use super::options::KafkaSourceOptions;
use super::paused::Paused;
use super::{error_class, record};
use crate::source::SourceError;

/// Longest single poll: a wait whose caller was cancelled ends this soon.
const POLL_MAX: Duration = Duration::from_millis(250);

/// State shared with librdkafka's callbacks.
pub(super) struct Group {
    in_flight: Mutex<PartsInFlight>,
    paused: Paused,
    throttle: Mutex<CommitThrottle>,
}

impl ClientContext for Group {}

impl ConsumerContext for Group {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(parts) => {
                let mut in_flight = self.in_flight();
                parts_of(parts).into_iter().for_each(|part| in_flight.assigned(part));
            }
            Rebalance::Revoke(parts) => self.give_up(consumer, &parts_of(parts)),
            // No partition was revoked; if one is, there is another callback.
            Rebalance::Error(error) => {
                tracing::warn!(target: "semel::kafka", %error, "a rebalance failed; assignment unchanged")
            }
        }
    }
}

impl Group {
    fn new(latest: bool) -> Self {
        Self {
            in_flight: Mutex::new(PartsInFlight::new(latest)),
            paused: Paused::default(),
            throttle: Mutex::default(),
        }
    }

    pub(super) fn in_flight(&self) -> MutexGuard<'_, PartsInFlight> {
        lock(&self.in_flight)
    }

    /// Commits acked messages while the partitions are still ours, then gives them up.
    fn give_up(&self, consumer: &BaseConsumer<Self>, parts: &[Part]) {
        // A lost assignment: the broker would refuse the commit.
        if !consumer.assignment_lost() {
            self.commit_now(consumer, Some(parts));
        }
        self.paused.give_up(consumer, parts);
        let mut in_flight = self.in_flight();
        parts.iter().for_each(|part| in_flight.revoked(part));
    }

    /// Commits and waits for it. If that fails, another consumer gets the messages again, and the inbox deduplicates.
    fn commit_now(&self, consumer: &BaseConsumer<Self>, parts: Option<&[Part]>) {
        let wanted = self.in_flight().to_commit(parts);
        let Some(offsets) = list(&wanted) else { return };
        let result = consumer.commit(&offsets, CommitMode::Sync);
        self.note(result, &offsets);
    }

    fn note(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        if let Err(error) = result {
            if !matches!(error, KafkaError::ConsumerCommit(Code::NoOffset)) {
                tracing::warn!(target: "semel::kafka", %error, "failed to commit offsets; messages may come again");
            }
            return;
        }
        let mut in_flight = self.in_flight();
        for element in offsets.elements() {
            if let (Ok(()), Offset::Offset(offset)) = (element.error(), element.offset()) {
                in_flight.committed(&(element.topic().to_owned(), element.partition()), offset);
            }
        }
    }
}

pub(super) struct Reader {
    consumer: BaseConsumer<Group>,
    group: Arc<Group>,
    /// Held while polling: two polls at a time would mix up the order.
    turn: Mutex<()>,
    lineage: Mutex<Option<String>>,
    polled: Mutex<Instant>,
    timeout: Duration,
}

impl Reader {
    pub(super) fn open(options: &KafkaSourceOptions) -> KafkaResult<Self> {
        let consumer: BaseConsumer<Group> =
            options.consumer().create_with_context(Group::new(options.is_latest()))?;
        let topics: Vec<&str> = options.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics)?;
        let group = Arc::clone(consumer.context());
        let (turn, lineage, polled) = (Mutex::default(), Mutex::default(), Mutex::new(Instant::now()));
        Ok(Self { consumer, group, turn, lineage, polled, timeout: options.timeout })
    }

    pub(super) fn in_flight(&self) -> MutexGuard<'_, PartsInFlight> {
        self.group.in_flight()
    }

    pub(super) fn polled(&self) -> Instant {
        *lock(&self.polled)
    }

    /// Takes in up to `most` messages. Waits for the first until then, or until the caller is cancelled.
    pub(super) fn take_in(&self, most: usize, until: Instant, wanted: &Weak<()>) -> Result<(), SourceError> {
        let _turn = lock(&self.turn);
        let lineage = self.lineage()?;
        let mut taken = 0;
        while taken < most && wanted.strong_count() > 0 {
            let left = until.saturating_duration_since(Instant::now());
            let has = self.in_flight().has_waiting();
            let wait = if has { Duration::ZERO } else { left.min(POLL_MAX) };
            match self.poll(wait) {
                Some(Ok((part, offset, delivery))) => {
                    self.in_flight().arrived(part, offset, delivery(&lineage));
                    taken += 1;
                }
                Some(Err(error)) => error_class::judge(&self.consumer, &error)?,
                None if has || left.is_zero() => break,
                None => {}
            }
        }
        self.commit_soon();
        Ok(())
    }

    #[allow(clippy::type_complexity, reason = "used only here")]
    fn poll(
        &self,
        wait: Duration,
    ) -> Option<KafkaResult<(Part, i64, impl FnOnce(&str) -> crate::source::Delivery)>> {
        *lock(&self.polled) = Instant::now();
        let polled = self.consumer.poll(wait)?;
        Some(polled.map(|record| {
            let part = (record.topic().to_owned(), record.partition());
            (part, record.offset(), move |lineage: &str| record::delivery(&record, lineage))
        }))
    }

    /// Required before the first message: without it the same id would get another identity later.
    fn lineage(&self) -> Result<String, SourceError> {
        let mut known = lock(&self.lineage);
        if known.is_none() {
            *known = self.consumer.client().fetch_cluster_id(self.timeout);
        }
        known.clone().ok_or_else(|| {
            SourceError::later("cannot read the Kafka cluster's id; check that the brokers are reachable")
        })
    }

    /// Polls without taking messages: keeps the group membership, and serves rebalances.
    pub(super) fn keep(&self) -> Result<(), SourceError> {
        let _turn = lock(&self.turn);
        // First of all: a polled message needs it.
        let lineage = self.lineage()?;
        let poll = || {
            match self.poll(Duration::ZERO) {
                // From a partition that was just assigned.
                Some(Ok((part, offset, delivery))) => {
                    self.in_flight().arrived(part, offset, delivery(&lineage))
                }
                Some(Err(error)) => error_class::judge(&self.consumer, &error)?,
                None => return Ok(false),
            }
            Ok(true)
        };
        let kept = self.group.paused.serve(&self.consumer, poll);
        self.commit_soon();
        kept
    }

    /// Commits acked messages in the background. librdkafka reports no result for that, so it is repeated later.
    pub(super) fn commit_soon(&self) {
        let mut throttle = lock(&self.group.throttle);
        let (wanted, now) = (self.in_flight().to_commit(None), Instant::now());
        if !throttle.is_due(&wanted, now) {
            return;
        }
        let Some(offsets) = list(&wanted) else { return };
        match self.consumer.commit(&offsets, CommitMode::Async) {
            Ok(()) => {
                self.in_flight().commit_sent(&wanted);
                throttle.sent(wanted, now);
            }
            Err(error) => {
                tracing::warn!(target: "semel::kafka", %error, "failed to commit offsets; retrying later")
            }
        }
    }

    /// Commits acked messages, and waits for it.
    pub(super) fn commit_now(&self) {
        self.group.commit_now(&self.consumer, None);
    }
}

pub(crate) fn parts_of(list: &TopicPartitionList) -> Vec<Part> {
    list.elements().iter().map(|element| (element.topic().to_owned(), element.partition())).collect()
}

pub(crate) fn list(positions: &[(Part, i64)]) -> Option<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for ((topic, partition), offset) in positions {
        list.add_partition_offset(topic, *partition, Offset::Offset(*offset)).ok()?;
    }
    (!positions.is_empty()).then_some(list)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
