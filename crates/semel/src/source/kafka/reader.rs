//! The consumer of librdkafka's, and what it does to what is held. Everything here may block.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::{Message, Offset, TopicPartitionList};

use super::commit_throttle::CommitThrottle;
use super::in_flight::{InFlight, Part};
use super::options::KafkaSourceOptions;
use super::paused::Paused;
use super::{error_class, record};
use crate::source::SourceError;

/// Longest wait in one piece: a wait that nobody is interested in any more ends that soon.
const POLL_MAX: Duration = Duration::from_millis(250);

/// What the callbacks know.
pub(super) struct Group {
    held: Mutex<InFlight>,
    paused: Paused,
    told: Mutex<CommitThrottle>,
}

impl ClientContext for Group {}

impl ConsumerContext for Group {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(parts) => {
                let mut held = self.held();
                parts_of(parts).into_iter().for_each(|part| held.assigned(part));
            }
            Rebalance::Revoke(parts) => self.give_up(consumer, &parts_of(parts)),
            // Nothing was taken away; if something is, that is told by itself.
            Rebalance::Error(error) => tracing::warn!(target: "semel::kafka", %error, "a rebalance failed"),
        }
    }
}

impl Group {
    fn new(latest: bool) -> Self {
        Self { held: Mutex::new(InFlight::new(latest)), paused: Paused::default(), told: Mutex::default() }
    }

    pub(super) fn held(&self) -> MutexGuard<'_, InFlight> {
        lock(&self.held)
    }

    /// What is done is committed while the partitions are still ours; then they are not.
    fn give_up(&self, consumer: &BaseConsumer<Self>, parts: &[Part]) {
        // Taken away without being asked: the broker would not take it from us.
        if !consumer.assignment_lost() {
            self.commit_now(consumer, Some(parts));
        }
        self.paused.give_up(consumer, parts);
        let mut held = self.held();
        parts.iter().for_each(|part| held.revoked(part));
    }

    /// Commits and waits for it. What fails here comes again elsewhere, and is known there.
    fn commit_now(&self, consumer: &BaseConsumer<Self>, parts: Option<&[Part]>) {
        let wanted = self.held().to_commit(parts);
        let Some(offsets) = list(&wanted) else { return };
        let result = consumer.commit(&offsets, CommitMode::Sync);
        self.note(result, &offsets);
    }

    fn note(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        if let Err(error) = result {
            if !matches!(error, KafkaError::ConsumerCommit(Code::NoOffset)) {
                tracing::warn!(target: "semel::kafka", %error, "offsets were not committed; they will be again");
            }
            return;
        }
        let mut held = self.held();
        for element in offsets.elements() {
            if let (Ok(()), Offset::Offset(offset)) = (element.error(), element.offset()) {
                held.committed(&(element.topic().to_owned(), element.partition()), offset);
            }
        }
    }
}

pub(super) struct Reader {
    consumer: BaseConsumer<Group>,
    group: Arc<Group>,
    /// Who polls: two at a time would mix up the order.
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

    pub(super) fn held(&self) -> MutexGuard<'_, InFlight> {
        self.group.held()
    }

    pub(super) fn polled(&self) -> Instant {
        *lock(&self.polled)
    }

    /// Takes up to so many messages in. Waits for the first until then, or until nobody wants it any more.
    pub(super) fn take_in(&self, most: usize, until: Instant, wanted: &Weak<()>) -> Result<(), SourceError> {
        let _turn = lock(&self.turn);
        let lineage = self.lineage()?;
        let mut taken = 0;
        while taken < most && wanted.strong_count() > 0 {
            let left = until.saturating_duration_since(Instant::now());
            let has = self.held().has_waiting();
            let wait = if has { Duration::ZERO } else { left.min(POLL_MAX) };
            match self.poll(wait) {
                Some(Ok((part, offset, delivery))) => {
                    self.held().came(part, offset, delivery(&lineage));
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

    #[allow(clippy::type_complexity, reason = "said once, here")]
    fn poll(
        &self,
        wait: Duration,
    ) -> Option<KafkaResult<(Part, i64, impl FnOnce(&str) -> crate::source::Delivery)>> {
        *lock(&self.polled) = Instant::now();
        let came = self.consumer.poll(wait)?;
        Some(came.map(|record| {
            let part = (record.topic().to_owned(), record.partition());
            (part, record.offset(), move |lineage: &str| record::delivery(&record, lineage))
        }))
    }

    /// Without it a text id would name another message later, when it is known.
    fn lineage(&self) -> Result<String, SourceError> {
        let mut known = lock(&self.lineage);
        if known.is_none() {
            *known = self.consumer.client().fetch_cluster_id(self.timeout);
        }
        known.clone().ok_or_else(|| SourceError::later("the cluster did not tell its id: is it there?"))
    }

    /// Shows the group that we are there, and hears from it, while there is no room for messages.
    pub(super) fn keep(&self) -> Result<(), SourceError> {
        let _turn = lock(&self.turn);
        // Before anything is polled that could not be held without it.
        let lineage = self.lineage()?;
        let poll = || {
            match self.poll(Duration::ZERO) {
                // Of a partition that we just got.
                Some(Ok((part, offset, delivery))) => self.held().came(part, offset, delivery(&lineage)),
                Some(Err(error)) => error_class::judge(&self.consumer, &error)?,
                None => return Ok(false),
            }
            Ok(true)
        };
        let kept = self.group.paused.serve(&self.consumer, poll);
        self.commit_soon();
        kept
    }

    /// Commits what is done, in the background. librdkafka answers only those who wait, so it is told again later.
    pub(super) fn commit_soon(&self) {
        let mut told = lock(&self.group.told);
        let (wanted, now) = (self.held().to_commit(None), Instant::now());
        if !told.is_due(&wanted, now) {
            return;
        }
        let Some(offsets) = list(&wanted) else { return };
        match self.consumer.commit(&offsets, CommitMode::Async) {
            Ok(()) => {
                self.held().told(&wanted);
                told.tell(wanted, now);
            }
            Err(error) => {
                tracing::warn!(target: "semel::kafka", %error, "offsets were not committed; they will be again")
            }
        }
    }

    /// Commits what is done, and waits for it.
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
