//! The librdkafka consumer. It never commits: the transaction does. Everything here may block.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, ConsumerGroupMetadata, Rebalance};
use rdkafka::error::KafkaResult;

use super::buffer::Buffer;
use super::message::Input;
use crate::broker::kafka::source::paused::Paused;
use crate::broker::kafka::source::reader::parts_of;
use crate::broker::kafka::source::{KafkaSourceOptions, error_class};
use crate::source::SourceError;

/// Longest single poll: a wait that is no longer wanted ends within it.
const POLL_MAX: Duration = Duration::from_millis(250);

/// State of the rebalance callbacks, which run inside a poll.
#[derive(Default)]
pub(super) struct Group {
    buffer: Mutex<Buffer>,
    paused: Paused,
}

impl ClientContext for Group {}

impl ConsumerContext for Group {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(parts) => {
                let mut buffer = lock(&self.buffer);
                parts_of(parts).into_iter().for_each(|part| buffer.assigned(part));
            }
            Rebalance::Revoke(parts) => {
                let parts = parts_of(parts);
                self.paused.give_up(consumer, &parts);
                let mut buffer = lock(&self.buffer);
                parts.iter().for_each(|part| buffer.revoked(part));
            }
            // Nothing was revoked; a revocation comes as its own event.
            Rebalance::Error(error) => {
                tracing::warn!(target: "semel::kafka", %error, "a rebalance failed; assignment unchanged")
            }
        }
    }
}

/// When a batch is full.
#[derive(Clone, Copy)]
pub(super) struct Full {
    pub(super) messages: usize,
    pub(super) bytes: usize,
    pub(super) linger: Duration,
}

pub(super) struct Reader {
    consumer: BaseConsumer<Group>,
    /// Held while polling: two polls at once would mix up the order.
    turn: Mutex<()>,
    lineage: Mutex<Option<Arc<str>>>,
    polled: Mutex<Instant>,
    timeout: Duration,
}

impl Reader {
    pub(super) fn open(options: &KafkaSourceOptions) -> KafkaResult<Self> {
        let consumer: BaseConsumer<Group> = options.consumer().create_with_context(Group::default())?;
        let topics: Vec<&str> = options.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics)?;
        Ok(Self {
            consumer,
            turn: Mutex::default(),
            lineage: Mutex::default(),
            polled: Mutex::new(Instant::now()),
            timeout: options.timeout,
        })
    }

    pub(super) fn buffer(&self) -> MutexGuard<'_, Buffer> {
        lock(&self.consumer.context().buffer)
    }

    pub(super) fn polled(&self) -> Instant {
        *lock(&self.polled)
    }

    /// Receives messages until there are enough, or they are no longer wanted. Waits for the first, and lingers for the
    /// others.
    pub(super) fn fill(&self, full: Full, wanted: &Weak<()>) -> Result<(), SourceError> {
        let _turn = lock(&self.turn);
        let lineage = self.lineage(wanted)?;
        *lock(&self.polled) = Instant::now();
        let (mut lingers, mut wait): (Option<Instant>, _) = (None, Duration::ZERO);
        while wanted.strong_count() > 0 && !self.buffer().is_full(full.messages, full.bytes) {
            // Messages that are already here are taken without reading the clock.
            if self.take(wait, &lineage)? {
                wait = Duration::ZERO;
                continue;
            }
            let now = Instant::now();
            *lock(&self.polled) = now;
            wait = match self.buffer().is_empty() {
                true => POLL_MAX,
                false => {
                    lingers.get_or_insert(now + full.linger).saturating_duration_since(now).min(POLL_MAX)
                }
            };
            if wait.is_zero() {
                break;
            }
        }
        Ok(())
    }

    /// Receives one message or serves one group event. Returns whether there was anything.
    fn take(&self, wait: Duration, lineage: &Arc<str>) -> Result<bool, SourceError> {
        match self.consumer.poll(wait) {
            Some(Ok(message)) => self.buffer().received(Input::new(message.detach(), lineage)),
            Some(Err(error)) => error_class::judge(&self.consumer, &error)?,
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Heartbeat: polls to stay in the group and to serve its events, while there is no room for messages.
    pub(super) fn heartbeat(&self, wanted: &Weak<()>) -> Result<(), SourceError> {
        let _turn = lock(&self.turn);
        let lineage = self.lineage(wanted)?;
        *lock(&self.polled) = Instant::now();
        let paused = &self.consumer.context().paused;
        paused.serve(&self.consumer, || self.take(Duration::ZERO, &lineage))
    }

    /// The group metadata (member and generation) with which to commit the batch. `None` if a partition of it was
    /// revoked.
    ///
    /// A consumer that was expelled from its group loses member id and generation before we are notified; without them
    /// it would pass for one without a group, which no broker fences. So the metadata is read first, and only then
    /// whether the assignment was lost. If a poll learns of it in between, the batch is no longer whole before the
    /// consumer reports that nothing is lost.
    pub(super) fn credentials(&self) -> Option<ConsumerGroupMetadata> {
        let credentials = self.consumer.group_metadata()?;
        (!self.consumer.assignment_lost() && self.buffer().is_whole()).then_some(credentials)
    }

    /// The cluster id. Required: without it a text id would identify another message once the cluster id is known.
    fn lineage(&self, wanted: &Weak<()>) -> Result<Arc<str>, SourceError> {
        let mut known = lock(&self.lineage);
        let until = Instant::now() + self.timeout;
        while known.is_none() && wanted.strong_count() > 0 && Instant::now() < until {
            *known = self.consumer.client().fetch_cluster_id(POLL_MAX).map(Arc::from);
        }
        known.clone().ok_or_else(|| {
            SourceError::later("Kafka did not return its cluster id; check that the broker is reachable")
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
