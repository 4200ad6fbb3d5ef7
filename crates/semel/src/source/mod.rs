//! Where messages come from: the seam to a broker's consumer side.
//!
//! A source hands out messages as the broker delivers them, at least once. Its caller acks or nacks each one. A source
//! never acks a message to the broker before its caller did.
//!
//! | module | what it decides |
//! |---|---|
//! | `identify` | finds the identity of a message: the deduplication key |
//! | `in_flight` | messages ready to deliver, and those delivered |
//! | `reconnect` | backoff between attempts to connect |
//! | `memory` | a queue in memory that redelivers what is not settled, for tests |

use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

mod identify;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
pub(crate) mod in_flight;
pub mod memory;
#[cfg(any(feature = "rabbitmq", feature = "redis"))]
pub(crate) mod reconnect;

#[cfg(feature = "kafka")]
pub use crate::broker::kafka::source as kafka;
#[cfg(feature = "nats")]
pub use crate::broker::nats::source as nats;
#[cfg(feature = "rabbitmq")]
pub use crate::broker::rabbitmq::source as rabbitmq;
#[cfg(feature = "redis")]
pub use crate::broker::redis_stream::source as redis_stream;
#[cfg(feature = "sqs")]
pub use crate::broker::sqs::source as sqs;
pub use identify::{Identify, MissingIdentity};

/// Receives messages from a broker, and acks or nacks them.
///
/// Laws of an implementation:
/// - **No early ack.** A message is acked to the broker only after [`settle`](Source::settle) named it
///   [`Ack`](Settle::Ack). A broker's offset is never committed past a message that is not acked.
/// - **Nothing is lost.** A delivered message that is not acked is redelivered: here or at another consumer, now or
///   after a restart.
/// - **Order.** Messages of one key come in the broker's order. A redelivered message comes before later ones of its
///   key are delivered for the first time after it, as far as the broker has an order.
/// - **Lost leases.** [`lost`](Source::lost) names receipts that are no longer ours (a rebalance, an expired lease).
///   Settling one does nothing.
/// - **Cancellation.** A cancelled call either did nothing or did all it would have done. Every call has a time limit.
pub trait Source: Send + 'static {
    /// Receives up to `most` messages. Waits for the first at most `wait`; an empty answer means there are none.
    fn receive(
        &mut self,
        most: usize,
        wait: Duration,
    ) -> impl Future<Output = Result<Vec<Delivery>, SourceError>> + Send;

    /// Acks or nacks messages, in the order of their receipts. After an error the caller repeats them, maybe with more.
    fn settle(
        &mut self,
        settled: &[(Receipt, Settle)],
    ) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// Extends the leases of messages in flight. Called every [`renew_after`](Source::renew_after).
    fn keep(&mut self, in_flight: &[Receipt]) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// Time until [`keep`](Source::keep) has to be called next.
    fn renew_after(&self) -> Duration;

    /// Wait before the next poll after an empty one, while messages are in flight. Default 5 ms, growing with each
    /// empty poll. Longer for a broker that charges per request. New messages wait that long, unless nothing is in
    /// flight.
    fn poll_interval(&self) -> Duration {
        Duration::from_millis(5)
    }

    /// Receipts that became invalid since the last call: another consumer gets these messages.
    fn lost(&mut self) -> Vec<Receipt>;

    /// The broker's retention, if it reports one. Deduplication marks have to be kept for longer.
    fn retention(&mut self) -> impl Future<Output = Option<Duration>> + Send {
        std::future::ready(None)
    }

    /// Gives back everything that was not settled, so that other consumers get it at once.
    fn leave(&mut self) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// Identifies one delivery to the source that made it; later deliveries have higher numbers. A message that is
/// redelivered gets another receipt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Receipt(pub u64);

/// Outcome of a delivery: ack or nack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Settle {
    /// Its effect is durable: it need not be redelivered.
    Ack,
    /// Give it back: it is to be redelivered.
    Nack,
}

/// A message as the broker delivered it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// Identifies the delivery.
    pub receipt: Receipt,
    /// The topic, queue or stream it comes from.
    pub from: String,
    /// The scope of the broker's numbering: its cluster, and the incarnation of the topic. See
    /// [`Identity::lineage`](crate::inbox::Identity::lineage).
    pub lineage: Option<String>,
    /// Position in the broker's own notation. Identifies a delivery, not a message.
    pub place: String,
    /// Messages of one key keep their order.
    pub key: Option<String>,
    /// Headers, in their order. Those that are not text are left out.
    pub headers: Vec<(String, String)>,
    /// The payload.
    pub payload: Bytes,
    /// How often it was delivered, this time included, if the broker counts that.
    pub deliveries: Option<u32>,
}

impl Delivery {
    /// A delivery with nothing but a payload.
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

    /// A header by its name, case-insensitive.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, text) = self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name))?;
        Some(text)
    }
}

/// Why a call to a source failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    message: String,
    for_good: bool,
}

impl SourceError {
    /// A transient error: retry later.
    pub fn later(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), for_good: false }
    }

    /// A permanent error: retrying does not help.
    pub fn for_good(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), for_good: true }
    }

    /// Whether a retry may succeed.
    pub fn may_retry(&self) -> bool {
        !self.for_good
    }
}
