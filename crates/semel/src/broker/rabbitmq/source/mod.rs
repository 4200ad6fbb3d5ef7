//! RabbitMQ: a consumer of one queue, with manual acks.
//!
//! | in the delivery | from the message |
//! |---|---|
//! | `from` | queue |
//! | `place` | `queue/connection/delivery tag`, the connection with a random name: unique to this delivery |
//! | `key` | the header `semel-key`, see [`KeyBy`] |
//! | `headers` | its text headers; `message-id` and `content-type` also from its properties |
//! | `deliveries` | quorum queues: `x-delivery-count` plus one; others: 2 means two or more. Plus nacks here |
//!
//! **Acks** get no answer. If one is lost on its way, the message is redelivered and the inbox deduplicates it. One ack
//! covers several messages (`multiple`) only before the first one that is not done.
//!
//! **Nacked** messages wait here and are delivered again before their successors; the broker does not get the nack. A
//! `basic.nack` would put them behind others, and a quorum queue counts it and drops a message nacked too often. The
//! broker gets unacked messages back when the source leaves, or its channel or connection ends.
//!
//! **Lost** is everything not acked when the channel or connection closes: delivery tags are invalid on another. Then
//! the source reconnects, with a backoff of up to ten seconds.
//!
//! **Order** is the queue's for one consumer at a time: a single one, or `x-single-active-consumer`. Unacked messages
//! of a channel return to their position in the queue. Several consumers of one queue share the messages of a key: each
//! message has its effect once, in no order. If only this end knows that a connection broke, later messages may come
//! first until the broker misses its heartbeats.
//!
//! **Timeout.** After 30 minutes without an ack (`consumer_timeout`) RabbitMQ closes the channel and redelivers
//! everything. [`keep`](Source::keep) cannot extend that: AMQP has no command for it, and heartbeats, which lapin sends
//! by itself, are about the connection only.
//!
//! **Queues** that end with their connection, their last consumer or a server restart are refused, as far as RabbitMQ
//! reports it; policies are not visible. A quorum queue with a delivery limit (20 by default, from RabbitMQ 4.0) drops
//! a message that came back that often, even if consumers crashed before they saw it, unless there is a dead letter
//! exchange: set one, or `x-delivery-limit` to -1.
//!
//! | module | what it decides |
//! |---|---|
//! | `connection` | one channel and the consumer on it |
//! | `acks` | which delivery tags are acked together |
//! | `queue_check` | whether a queue can lose messages that are not acked |
//! | `message` | from a RabbitMQ message to a delivery |
//! | `options` | what to read, and how |

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt, TryFutureExt};
use lapin::options::BasicAckOptions;
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at};

use self::connection::BrokerConnection;
use crate::broker::rabbitmq::client::short;
use crate::source::in_flight::InFlight;
use crate::source::reconnect::Reconnect;
use crate::source::{Delivery, Receipt, Settle, Source, SourceError};
use crate::timeout::bounded;

mod acks;
mod connection;
mod message;
mod options;
mod queue_check;

pub use options::{KeyBy, RabbitmqSourceOptions};

/// How often to check that the channel is open while messages are in flight.
const KEEP: Duration = Duration::from_secs(10);

/// Receives from a RabbitMQ queue.
///
/// ```no_run
/// use semel::source::rabbitmq::RabbitmqSource;
///
/// let source = RabbitmqSource::options("amqp://guest:guest@127.0.0.1:5672/%2f", "payments").open()?;
/// # drop(source); Ok::<(), semel::source::SourceError>(())
/// ```
pub struct RabbitmqSource {
    options: RabbitmqSourceOptions,
    connection: Option<BrokerConnection>,
    /// A connection being opened, in its own task: cancelled half way, it would leave a consumer that is never read.
    opening: Option<JoinHandle<Opened>>,
    in_flight: InFlight<u64>,
    reconnect: Reconnect,
    /// Why the connection closed, until `receive` has returned it.
    down: Option<SourceError>,
    warned: bool,
    left: bool,
}

/// A connection, and a warning if its queue may lose messages.
type Opened = Result<(BrokerConnection, Option<String>), SourceError>;

impl RabbitmqSource {
    /// A consumer of that queue, at the broker with this `amqp://` URL.
    pub fn options(url: &str, queue: &str) -> RabbitmqSourceOptions {
        RabbitmqSourceOptions::new(url, queue)
    }

    fn open(options: RabbitmqSourceOptions) -> Result<Self, SourceError> {
        if options.queue.is_empty() || short(&options.queue).is_none() {
            return Err(SourceError::for_good("the queue's name must have 1 to 255 bytes"));
        }
        let (in_flight, reconnect) = (InFlight::default(), Reconnect::default());
        Ok(Self {
            options,
            connection: None,
            opening: None,
            in_flight,
            reconnect,
            down: None,
            warned: false,
            left: false,
        })
    }

    /// The connection is gone, and with it every delivery tag: the broker redelivers these messages.
    fn disconnected(&mut self, why: impl std::fmt::Display) {
        let queue = &self.options.queue;
        let message =
            format!("lost the connection to RabbitMQ ({why}); unacked messages of {queue:?} are redelivered");
        tracing::warn!(target: "semel::rabbitmq", queue, %why, "lost a connection; unacked messages are redelivered");
        self.connection = None;
        self.in_flight.lose(|_| true);
        self.down = Some(SourceError::later(message));
    }

    /// Detects a closed connection.
    fn detect_close(&mut self) {
        if self.connection.as_ref().is_some_and(|connection| !connection.is_up()) {
            self.disconnected("closed");
        }
    }

    async fn connect(&mut self, until: Instant) -> Result<(), SourceError> {
        if !self.reconnect.wait(until).await {
            return Err(SourceError::later("RabbitMQ could not be reached; reconnecting after a backoff"));
        }
        let options = &self.options;
        let opening = self.opening.get_or_insert_with(|| tokio::spawn(opened(options.clone())));
        let opened = opening.await;
        self.opening = None;
        match opened.unwrap_or_else(|broken| Err(SourceError::later(broken))) {
            Ok((connection, may_lose)) => {
                if let (Some(why), false) = (may_lose, std::mem::replace(&mut self.warned, true)) {
                    tracing::warn!(
                        target: "semel::rabbitmq", why,
                        "this queue can drop unacked messages; fix the setting named in `why`"
                    );
                }
                self.reconnect.went_well();
                self.connection = Some(connection);
                Ok(())
            }
            Err(error) => {
                self.reconnect.failed(Instant::now());
                Err(error)
            }
        }
    }

    /// Takes in available messages. Waits only for the first.
    async fn take_in(&mut self, most: usize, until: Instant) {
        while self.in_flight.ready.len() < most {
            let Some(connection) = &mut self.connection else { return };
            let next = connection.consumer.next();
            let message = match self.in_flight.ready.len() {
                0 => timeout_at(until.into(), next).await.ok(),
                _ => next.now_or_never(),
            };
            match message {
                None => return,
                Some(Some(Ok(message))) => {
                    let (tag, options) = (message.delivery_tag, &self.options);
                    let delivery =
                        message::delivery(message, &options.queue, &connection.name, &options.key_by);
                    self.in_flight.arrived(tag, delivery, ());
                }
                Some(Some(Err(error))) => self.disconnected(error),
                Some(None) => self.disconnected("the consumer was cancelled; check that the queue exists"),
            }
        }
    }
}

async fn opened(options: RabbitmqSourceOptions) -> Opened {
    let late = || SourceError::later("RabbitMQ did not answer in time");
    bounded(options.timeout, BrokerConnection::open(&options), late).await
}

impl Source for RabbitmqSource {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        if self.left {
            return Err(SourceError::for_good("the source has left its queue"));
        }
        let until = Instant::now() + wait;
        self.detect_close();
        if let Some(down) = self.down.take() {
            return Err(down);
        }
        if self.connection.is_none() {
            self.connect(until).await?;
        }
        self.take_in(most, until).await;
        match self.down.take() {
            Some(down) => Err(down),
            None => Ok(self.in_flight.give(most, |_| true)),
        }
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        self.detect_close();
        let done: Vec<u64> =
            settled.iter().filter_map(|(receipt, settle)| self.in_flight.settle(*receipt, *settle)).collect();
        let Some(connection) = &self.connection else { return Ok(()) };
        let acks = acks::acks(done, self.in_flight.open().copied());
        // The first poll sends all of them: if this is cancelled after that, none is sent twice.
        let sent = join_all(
            acks.into_iter()
                .map(|(tag, multiple)| connection.channel.basic_ack(tag, BasicAckOptions { multiple })),
        );
        match timeout(self.options.timeout, sent).await {
            // Acks that did not arrive are lost with the connection: they cannot be repeated on another.
            Err(_) => self.disconnected("acks could not be sent in time"),
            Ok(sent) => {
                if let Some(error) = sent.into_iter().find_map(Result::err) {
                    self.disconnected(error);
                }
            }
        }
        Ok(())
    }

    /// AMQP cannot extend a lease, and need not before `consumer_timeout`: see the [module](self).
    async fn keep(&mut self, _: &[Receipt]) -> Result<(), SourceError> {
        self.detect_close();
        Ok(())
    }

    fn renew_after(&self) -> Duration {
        KEEP
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.detect_close();
        self.in_flight.lost()
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        self.left = true;
        self.in_flight = InFlight::default();
        let connection = match self.opening.take() {
            Some(opening) => opening.await.ok().and_then(Result::ok).map(|(connection, _)| connection),
            None => self.connection.take(),
        };
        let Some(connection) = connection else { return Ok(()) };
        let failed = |why: &dyn std::fmt::Display| {
            SourceError::later(format!(
                "RabbitMQ did not close the consumer ({why}); it requeues the messages when it misses heartbeats"
            ))
        };
        let closing = connection.close().map_err(|error| failed(&error));
        bounded(self.options.timeout, closing, || failed(&"timeout")).await
    }
}
