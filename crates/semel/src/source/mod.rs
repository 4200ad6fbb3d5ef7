//! Where messages come from: the seam from a broker.
//!
//! A source gives messages as the broker delivers them, at least once, and is told of each what became of it. It never tells
//! the broker that a message is done before it was told so itself.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

#[cfg(any(feature = "rabbitmq", feature = "redis"))]
mod backoff;
mod identify;
#[cfg(any(feature = "rabbitmq", feature = "redis"))]
mod in_flight;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod memory;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis_stream;
#[cfg(feature = "sqs")]
pub mod sqs;

pub use identify::{Identify, MissingIdentity};

/// Gives messages, and is told what became of them.
///
/// Laws of an implementation:
/// - **Nothing is done before it is said to be.** A message is acknowledged to the broker after
///   [`settle`](Source::settle) named it [`Done`](Settle::Ack), and in no other way; where the broker counts by a
///   position, never past a message that was not.
/// - **Nothing is lost.** What was given and not done comes again: here, or at another consumer, now or after a restart.
/// - **Order.** Messages of one key come in the broker's order, and one that comes again comes before its successors
///   are given for the first time after it, as far as the broker has an order.
/// - **What is no longer ours** (a rebalance, a lease that ran out) is named by [`lost`](Source::lost), and settling it
///   does nothing.
/// - **Cancelled**, any call leaves everything as it was or as it would be. Every call ends within a bound of its own.
pub trait Source: Send + 'static {
    /// Up to `most` messages. Waits for the first at most for `wait`; an empty answer means that there are none now.
    fn receive(
        &mut self,
        most: usize,
        wait: Duration,
    ) -> impl Future<Output = Result<Vec<Delivery>, SourceError>> + Send;

    /// What became of messages, in the order of their receipts. After an error it is told again, the same and more.
    fn settle(
        &mut self,
        settled: &[(Receipt, Settle)],
    ) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// Says that these are still being worked on. Called when [`renew_after`](Source::renew_after) is over.
    fn keep(&mut self, held: &[Receipt]) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// When it wants to be kept again.
    fn renew_after(&self) -> Duration;

    /// How soon it may be asked again after it had nothing, while messages are handled: 5 ms unless it says otherwise, and
    /// later each time. Longer for a broker that every question costs something. What comes meanwhile waits that long, unless
    /// nothing is being handled.
    fn poll_interval(&self) -> Duration {
        Duration::from_millis(5)
    }

    /// Receipts that are worth nothing any more since the last call: another consumer gets these messages.
    fn lost(&mut self) -> Vec<Receipt>;

    /// How long the broker keeps messages, where it tells: marks have to be kept for longer.
    fn retention(&mut self) -> impl Future<Output = Option<Duration>> + Send {
        std::future::ready(None)
    }

    /// Gives everything back that was not settled, so that others get it at once.
    fn leave(&mut self) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// Names a delivery to the source that gave it; later ones have higher numbers. Not the message: that may be delivered again, under another receipt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Receipt(pub u64);

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Settle {
    /// Its effect is durable: it need not come again.
    Ack,
    /// Give it back: it is to come again.
    Nack,
}

/// A message as the broker delivered it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// Names the delivery.
    pub receipt: Receipt,
    /// Where it comes from: the topic, queue or stream.
    pub from: String,
    /// Where the broker counts: its cluster, and which making of the topic. See
    /// [`Identity::lineage`](crate::inbox::Identity::lineage).
    pub lineage: Option<String>,
    /// The place in the broker's own words: names a delivery, not a message.
    pub place: String,
    /// Messages of one key keep their order.
    pub key: Option<String>,
    /// Headers, in their order. Not text: left out.
    pub headers: Vec<(String, String)>,
    /// The payload.
    pub payload: Bytes,
    /// How often it was delivered, this time included, where the broker counts.
    pub deliveries: Option<u32>,
}

impl Delivery {
    /// A message with nothing but a payload.
    pub fn new(receipt: Receipt, from: &str, place: String, payload: impl Into<Bytes>) -> Self {
        Self {
            receipt,
            from: from.to_owned(),
            lineage: None,
            place,
            key: None,
            headers: Vec::new(),
            payload: payload.into(),
            deliveries: None,
        }
    }

    /// A header by its name, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, text) = self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name))?;
        Some(text)
    }
}

/// Why a source cannot be asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    message: String,
    for_good: bool,
}

impl SourceError {
    /// It may be better a little later.
    pub fn later(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), for_good: false }
    }

    /// Trying again would not help.
    pub fn for_good(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), for_good: true }
    }

    /// Whether trying again a little later makes sense.
    pub fn may_retry(&self) -> bool {
        !self.for_good
    }
}
