//! Sinks publish events to a broker.
//!
//! A sink publishes events in order and returns a result for each. It confirms only what the broker acked. Brokers
//! differ, so each sink states its [guarantee](Sink::guarantee).
//!
//! | module | what it decides |
//! |---|---|
//! | `headers` | the headers of an event, with the same names for every broker |
//! | `key_queues` | one queue per key: at most one event of a key is in flight |
//! | `publish_results` | the results of one call, and the keys held back behind an unconfirmed event |
//! | `repeats` | the deduplication id, by which a broker drops duplicates |
//! | `webhook` | each event as a signed POST, with a circuit breaker per endpoint |

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use uuid::Uuid;

use crate::outbox::Event;

pub mod headers;
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "sqs", feature = "webhook"))]
pub(crate) mod key_queues;
#[cfg(any(
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis",
    feature = "sqs",
    feature = "webhook"
))]
// No sink uses all of it.
#[cfg_attr(not(all(feature = "kafka", feature = "redis")), allow(dead_code))]
pub(crate) mod publish_results;
#[cfg(any(feature = "nats", feature = "sqs"))]
pub(crate) mod repeats;
#[cfg(feature = "webhook")]
pub mod webhook;

#[cfg(feature = "kafka")]
pub use crate::broker::kafka::sink as kafka;
#[cfg(feature = "nats")]
pub use crate::broker::nats::sink as nats;
#[cfg(feature = "rabbitmq")]
pub use crate::broker::rabbitmq::sink as rabbitmq;
#[cfg(feature = "redis")]
pub use crate::broker::redis_stream::sink as redis_stream;
#[cfg(feature = "sqs")]
pub use crate::broker::sqs::sink as sqs;

/// Publishes events to a broker.
///
/// Laws of an implementation:
/// - [`Published::Confirmed`]: the broker acked the event, with the durability that was asked for.
/// - **Order.** Among events with the same [`ordered_by`](Event::ordered_by) and topic in one call, an event behind an
///   unconfirmed one is not confirmed either, and does not reach the broker before it.
/// - One result per event, in their order.
/// - [`Published::Refused`] only if the broker would refuse the same event for ever (too large, no such topic by
///   configuration). An error that may go away is [`Published::Failed`].
/// - A call ends within its own time limit: if the broker does not answer, the result is [`Published::Failed`], maybe
///   published.
/// - The event's id, type, headers, trace context and intent are sent with it; each sink documents where.
/// - Dropping the future leaves all events without a result in doubt, and the sink usable.
pub trait Sink: Send + 'static {
    /// What readers of the broker can rely on.
    fn guarantee(&self) -> Guarantee;

    /// Checks the broker's configuration, so that [`guarantee`](Sink::guarantee) can list violations. Publishes nothing
    /// and affects no other client. An error: the broker could not be asked.
    fn probe(&mut self) -> impl Future<Output = Result<(), SinkError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Publishes events in their order. The same event may be given again after a failure, with the same id.
    fn publish(&mut self, events: &[Arc<Event>]) -> impl Future<Output = Vec<Published>> + Send;
}

/// A sink whose broker stores the relay's checkpoint (position) in one transaction with the events.
///
/// Laws in addition to those of [`Sink`]:
/// - After [`begin`](ExactlyOnce::begin), no relay that began earlier can commit any more (fencing).
/// - [`publish_at`](ExactlyOnce::publish_at) makes all events and the position visible, or none of them. An error says
///   whether that is known; if not, the sink has to begin again, and the position it then returns decides.
pub trait ExactlyOnce: Sink {
    /// Fences every relay that began earlier, then reads the last committed position.
    fn begin(&mut self) -> impl Future<Output = Result<Option<Vec<u8>>, SinkError>> + Send;

    /// Commits events and position in one transaction.
    fn publish_at(
        &mut self,
        events: &[Arc<Event>],
        position: &[u8],
    ) -> impl Future<Output = Result<(), SinkError>> + Send;
}

/// The result of publishing one event.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Published {
    /// The broker has it.
    Confirmed,
    /// Not confirmed, and worth a retry.
    Failed(SinkError),
    /// The broker will never accept it as it is.
    Refused(SinkError),
}

/// Why an event was not confirmed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct SinkError {
    message: String,
    kind: SinkErrorKind,
    scope: SinkErrorScope,
}

/// What a [`SinkError`] says about the event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SinkErrorKind {
    /// The event was not published.
    NotPublished,
    /// Not even sent: the call had no time left or no reachable endpoint.
    NotTried,
    /// In doubt: the event may have been published.
    MaybePublished,
    /// Another relay has taken over.
    Fenced,
    /// Nothing of a transaction was published, because the broker will never accept this event.
    Refused(Uuid),
}

/// What is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SinkErrorScope {
    /// The sink, as far as is known.
    Sink,
    /// Only the event's destination.
    Destination,
}

impl SinkError {
    /// The event was not published.
    pub fn not_published(message: impl Into<String>) -> Self {
        Self::of(SinkErrorKind::NotPublished, message)
    }

    fn of(kind: SinkErrorKind, message: impl Into<String>) -> Self {
        Self { message: message.into(), kind, scope: SinkErrorScope::Sink }
    }

    /// Not even sent: the call had no time left or no reachable endpoint. Says nothing about the event, and does not
    /// count as an attempt.
    pub fn not_tried(message: impl Into<String>) -> Self {
        Self::of(SinkErrorKind::NotTried, message)
    }

    /// In doubt: the event may have been published. A retry has the same id.
    pub fn maybe_published(message: impl Into<String>) -> Self {
        Self::of(SinkErrorKind::MaybePublished, message)
    }

    /// Fenced: another relay has taken over. This one must stop, not retry.
    pub fn fenced(message: impl Into<String>) -> Self {
        Self::of(SinkErrorKind::Fenced, message)
    }

    /// Nothing of a transaction was published, because the broker will never accept this event.
    pub fn refused(event: Uuid, message: impl Into<String>) -> Self {
        Self::of(SinkErrorKind::Refused(event), message)
    }

    /// Only this event's destination is down, not the sink: its key is parked, however many others fail too.
    #[must_use]
    pub fn destination_down(self) -> Self {
        Self { scope: SinkErrorScope::Destination, ..self }
    }

    /// Whether only the event's destination is down.
    pub fn is_destination_down(&self) -> bool {
        self.scope == SinkErrorScope::Destination
    }

    /// What it says about the event.
    pub fn kind(&self) -> SinkErrorKind {
        self.kind
    }

    /// Whether the event was not even sent.
    pub fn is_not_tried(&self) -> bool {
        self.kind == SinkErrorKind::NotTried
    }

    /// The event that caused a whole transaction to be refused, if known.
    pub fn refused_event(&self) -> Option<Uuid> {
        match self.kind {
            SinkErrorKind::Refused(event) => Some(event),
            _ => None,
        }
    }

    /// Whether it is in doubt: the event may have been published.
    pub fn is_maybe_published(&self) -> bool {
        self.kind == SinkErrorKind::MaybePublished
    }

    /// Whether another relay has taken over (fencing).
    pub fn is_fenced(&self) -> bool {
        self.kind == SinkErrorKind::Fenced
    }
}

/// How often a reader may see an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeliverySemantics {
    /// Once or, after a crash or a lost ack, more often: always with the same id.
    AtLeastOnce,
    /// At least once, but the broker drops duplicates within a window.
    Deduplicated,
    /// Once, for readers of committed data.
    ExactlyOnce,
}

/// What a sink guarantees, and the configuration problems that break it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guarantee {
    /// How often a reader may see an event.
    pub delivery: DeliverySemantics,
    /// The guarantee in one sentence, for people.
    pub sentence: String,
    /// Configuration problems that break the guarantee, each with its remedy. Empty: the guarantee holds.
    pub violations: Vec<String>,
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)?;
        self.violations.iter().try_for_each(|reason| write!(f, "\n  not kept: {reason}"))
    }
}
