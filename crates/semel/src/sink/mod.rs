//! Where events go: the seam to a broker.
//!
//! A sink takes events in order and says of each what became of it. It never says that an event is there without the
//! broker's own word for it. What a broker can promise differs, so each sink states its [guarantee](Sink::guarantee).

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use uuid::Uuid;

use crate::outbox::Event;

pub mod headers;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "sqs", feature = "webhook"))]
mod key_queues;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(any(
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis",
    feature = "sqs",
    feature = "webhook"
))]
// Each sink uses its part of it.
#[cfg_attr(not(all(feature = "kafka", feature = "redis")), allow(dead_code))]
mod publish_results;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis_stream;
#[cfg(any(feature = "nats", feature = "sqs"))]
mod repeats;
#[cfg(feature = "sqs")]
pub mod sqs;
#[cfg(feature = "webhook")]
pub mod webhook;

/// Takes events for a broker.
///
/// Laws of an implementation:
/// - [`Published::Confirmed`] is the broker's word that it has the event, as durably as it was asked to.
/// - **Order.** Of events with the same [`ordered_by`](Event::ordered_by) and topic in one call, one that comes after
///   another that was not confirmed is not confirmed either, and does not get to the broker before it.
/// - The answers are as many as the events, in their order.
/// - [`Published::Refused`] only where the broker would refuse the same event for ever (too large, no such topic by
///   configuration). What may be better tomorrow is [`Published::Failed`].
/// - It ends within a bound of its own: a broker that does not answer is [`Published::Failed`], maybe published.
/// - The event's id, type, headers, trace context and intent travel with it; see each sink for where.
/// - Dropping the future leaves everything that was not answered in doubt, and the sink usable.
pub trait Sink: Send + 'static {
    /// What holds for whoever reads from the broker.
    fn guarantee(&self) -> Guarantee;

    /// Connects without publishing anything or disturbing anybody, so that [`guarantee`](Sink::guarantee) knows what
    /// stands in its way. An error: the broker could not be asked.
    fn probe(&mut self) -> impl Future<Output = Result<(), SinkError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Publishes events in their order. The same event may be given again after a failure, with the same id.
    fn publish(&mut self, events: &[Arc<Event>]) -> impl Future<Output = Vec<Published>> + Send;
}

/// A sink whose broker keeps the relay's position in one transaction with the events.
///
/// Laws beside those of [`Sink`]:
/// - After [`begin`](ExactlyOnce::begin) nobody who began before can commit any more.
/// - [`publish_at`](ExactlyOnce::publish_at) makes all events and the position visible, or none of them. An error says
///   whether that is known; when it is not, the sink has to begin again, and the position it then gives decides.
pub trait ExactlyOnce: Sink {
    /// Fences everybody who began before, then reads the last committed position.
    fn begin(&mut self) -> impl Future<Output = Result<Option<Vec<u8>>, SinkError>> + Send;

    /// Events and position, in one transaction.
    fn publish_at(
        &mut self,
        events: &[Arc<Event>],
        position: &[u8],
    ) -> impl Future<Output = Result<(), SinkError>> + Send;
}

/// What became of one event.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Published {
    /// The broker has it.
    Confirmed,
    /// Not confirmed, and worth another try.
    Failed(SinkError),
    /// The broker will never take it as it is.
    Refused(SinkError),
}

/// Why an event was not confirmed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct SinkError {
    message: String,
    maybe: bool,
    fenced: bool,
    destination_down: bool,
    not_tried: bool,
    refused: Option<Uuid>,
}

impl SinkError {
    /// It did not get to the broker.
    pub fn not_published(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            maybe: false,
            fenced: false,
            destination_down: false,
            not_tried: false,
            refused: None,
        }
    }

    /// It was not even sent, because the call had no time left for it or nobody to send it to: that says nothing of the event,
    /// and does not count as a try.
    pub fn not_tried(message: impl Into<String>) -> Self {
        Self { not_tried: true, ..Self::not_published(message) }
    }

    /// It may have got there; published again, it has the same id.
    pub fn maybe_published(message: impl Into<String>) -> Self {
        Self { maybe: true, ..Self::not_published(message) }
    }

    /// Another relay has taken over: this one must stop, not retry.
    pub fn fenced(message: impl Into<String>) -> Self {
        Self { fenced: true, ..Self::not_published(message) }
    }

    /// Nothing of a transaction was published, because the broker will never take this event.
    pub fn refused(event: Uuid, message: impl Into<String>) -> Self {
        Self { refused: Some(event), ..Self::not_published(message) }
    }

    /// The sink is there, and only the place that this event goes to is not: its key is parked, however many others are with it.
    #[must_use]
    pub fn destination_down(self) -> Self {
        Self { destination_down: true, ..self }
    }

    /// Whether only the place that the event goes to is not there.
    pub fn is_of_one_place(&self) -> bool {
        self.destination_down
    }

    /// Whether it was not even sent.
    pub fn is_not_tried(&self) -> bool {
        self.not_tried
    }

    /// The event because of which a whole transaction was refused, where it is known.
    pub fn refused_event(&self) -> Option<Uuid> {
        self.refused
    }

    /// Whether it may be published all the same.
    pub fn is_maybe_published(&self) -> bool {
        self.maybe
    }

    /// Whether another relay has taken over.
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }
}

/// How often a reader may see an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeliverySemantics {
    /// Once or, after a crash or a lost answer, more often: always with the same id.
    AtLeastOnce,
    /// As before, but the broker drops repeats it sees within a window.
    Deduplicated,
    /// Once, for readers of committed data.
    ExactlyOnce,
}

/// What a sink promises, and what in its configuration stands in the way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guarantee {
    /// How often.
    pub delivery: DeliverySemantics,
    /// In one sentence, for people.
    pub sentence: String,
    /// What is configured so that the promise cannot be kept: each with what to do about it. Empty: it holds.
    pub violations: Vec<String>,
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)?;
        self.violations.iter().try_for_each(|reason| write!(f, "\n  not kept: {reason}"))
    }
}
