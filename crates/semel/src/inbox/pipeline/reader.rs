//! The consumer of librdkafka's. It never commits: that is the transaction's. Everything here may block.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, ConsumerGroupMetadata, Rebalance};
use rdkafka::error::KafkaResult;

use super::buffer::Buffer;
use super::message::Input;
use crate::source::SourceError;
use crate::source::kafka::paused::Paused;
use crate::source::kafka::reader::parts_of;
use crate::source::kafka::{KafkaSourceOptions, error_class};

/// Longest wait in one piece: a wait that nobody is interested in any more ends that soon.
const POLL_MAX: Duration = Duration::from_millis(250);

/// What the callbacks know. They run inside a poll.
#[derive(Default)]
pub(super) struct Group {
    held: Mutex<Buffer>,
    paused: Paused,
}

impl ClientContext for Group {}

impl ConsumerContext for Group {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(parts) => {
                let mut held = lock(&self.held);
                parts_of(parts).into_iter().for_each(|part| held.assigned(part));
            }
            Rebalance::Revoke(parts) => {
                let parts = parts_of(parts);
                self.paused.give_up(consumer, &parts);
                let mut held = lock(&self.held);
                parts.iter().for_each(|part| held.revoked(part));
            }
            // Nothing was taken away; if something is, that is told by itself.
            Rebalance::Error(error) => tracing::warn!(target: "semel::kafka", %error, "a rebalance failed"),
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
    /// Who polls: two at a time would mix up the order.
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

    pub(super) fn held(&self) -> MutexGuard<'_, Buffer> {
        lock(&self.consumer.context().held)
    }

    pub(super) fn polled(&self) -> Instant {
        *lock(&self.polled)
    }

    /// Takes messages in until there are enough, or nobody wants them any more. Waits for the first, and for the others as long
    /// as it may linger.
    pub(super) fn fill(&self, full: Full, wanted: &Weak<()>) -> Result<(), SourceError> {
        let _turn = lock(&self.turn);
        let lineage = self.lineage(wanted)?;
        *lock(&self.polled) = Instant::now();
        let (mut lingers, mut wait): (Option<Instant>, _) = (None, Duration::ZERO);
        while wanted.strong_count() > 0 && !self.held().is_full(full.messages, full.bytes) {
            // What is there already is taken without a look at the clock.
            if self.take(wait, &lineage)? {
                wait = Duration::ZERO;
                continue;
            }
            let now = Instant::now();
            *lock(&self.polled) = now;
            wait = match self.held().is_empty() {
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

    /// Takes one message in, or hears what the group has to say; whether there was anything.
    fn take(&self, wait: Duration, lineage: &Arc<str>) -> Result<bool, SourceError> {
        match self.consumer.poll(wait) {
            Some(Ok(message)) => self.held().came(Input::new(message.detach(), lineage)),
            Some(Err(error)) => error_class::judge(&self.consumer, &error)?,
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Shows the group that we are there, and hears from it, while there is no room for messages.
    pub(super) fn keep(&self, wanted: &Weak<()>) -> Result<(), SourceError> {
        let _turn = lock(&self.turn);
        let lineage = self.lineage(wanted)?;
        *lock(&self.polled) = Instant::now();
        let paused = &self.consumer.context().paused;
        paused.serve(&self.consumer, || self.take(Duration::ZERO, &lineage))
    }

    /// What the broker knows us by, as the owner of what is being tried. `None` if some of it is not ours any more.
    ///
    /// A consumer that was thrown out of its group forgets its name and its generation before we hear of it, and nameless
    /// it would pass for one without a group, which no broker fences. So it is asked first, and only then whether
    /// everything was lost. If somebody polls and hears of it in between, then what is tried is not whole any more before
    /// the consumer says that nothing is lost.
    pub(super) fn credentials(&self) -> Option<ConsumerGroupMetadata> {
        let credentials = self.consumer.group_metadata()?;
        (!self.consumer.assignment_lost() && self.held().is_whole()).then_some(credentials)
    }

    /// Without it a text id would name another message later, when it is known.
    fn lineage(&self, wanted: &Weak<()>) -> Result<Arc<str>, SourceError> {
        let mut known = lock(&self.lineage);
        let until = Instant::now() + self.timeout;
        while known.is_none() && wanted.strong_count() > 0 && Instant::now() < until {
            *known = self.consumer.client().fetch_cluster_id(POLL_MAX).map(Arc::from);
        }
        known.clone().ok_or_else(|| SourceError::later("the cluster did not tell its id: is it there?"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
