//! RabbitMQ: a consumer of one queue, with acknowledgements by hand.
//!
//! | in the delivery | from the message |
//! |---|---|
//! | `from` | queue |
//! | `place` | `queue/connection/delivery tag`, the connection named by chance: names this delivery and no other |
//! | `key` | the header `semel-key`, see [`KeyBy`] |
//! | `headers` | its headers, those that are text; `message-id` and `content-type` also from its properties |
//! | `deliveries` | one more than `x-delivery-count` of quorum queues; elsewhere 2 stands for twice or more often. Given back here counts too |
//!
//! **Acknowledgements** are not answered: one that is lost on its way is one that was never sent, the message comes again,
//! and the inbox knows it. Several are told by one (`multiple`) only before the first message that is not done.
//!
//! **Given back** messages wait here and are given again before their successors; the broker is told nothing. A
//! `basic.nack` would put them behind others, and a quorum queue counts it and drops a message that came back too often.
//! The broker has back what is not done when the source leaves, or its channel or connection ends.
//!
//! **Lost** is everything that is not done when the channel or the connection is closed: tags are worth nothing on another.
//! Then the source connects again, with pauses that grow up to ten seconds.
//!
//! **Order** is the queue's for one consumer at a time: a single one, or `x-single-active-consumer`. What a channel had comes back
//! to where it was in the queue. Of several consumers of one queue each has some messages of a key: each message has its
//! effect once, in no order. After a connection that only this end knows to be broken, later messages may come first, until
//! the broker misses its heartbeats.
//!
//! **Time.** A message may be out for 30 minutes (`consumer_timeout`); then RabbitMQ closes the channel, and everything comes
//! again. [`keep`](Source::keep) cannot put that off: AMQP has no word for it, and heartbeats, which lapin sends by itself, are
//! about the connection only.
//!
//! **Queues** that end with their connection, their last consumer or the server's restart are refused, as far as RabbitMQ
//! tells: it refuses a declaration that differs and says in what. Policies are not told that way. A quorum queue with a
//! delivery limit (20 unless set, from RabbitMQ 4.0) drops a message that came back so often, also by crashes of consumers
//! that never looked at it, unless there is a dead letter exchange: set one, or `x-delivery-limit` to -1.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt};
use lapin::options::BasicAckOptions;
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at};

use self::connection::BrokerConnection;
use super::backoff::Backoff;
use super::in_flight::InFlight;
use super::{Delivery, Receipt, Settle, Source, SourceError};

mod acks;
mod connection;
mod message;
mod options;
mod queue_check;

pub use options::{KeyBy, RabbitmqSourceOptions};

/// How often it is looked whether the channel is still there while messages are worked on.
const KEEP: Duration = Duration::from_secs(10);

/// Receives from a queue of RabbitMQ's.
///
/// ```no_run
/// use semel::source::rabbitmq::RabbitmqSource;
///
/// let source = RabbitmqSource::options("amqp://guest:guest@127.0.0.1:5672/%2f", "payments").open()?;
/// # drop(source); Ok::<(), semel::source::SourceError>(())
/// ```
pub struct RabbitmqSource {
    options: RabbitmqSourceOptions,
    line: Option<BrokerConnection>,
    /// A line that is being opened, by a task of its own: left half way, the broker would have a consumer that nobody reads.
    opening: Option<JoinHandle<Opened>>,
    taken: InFlight<u64>,
    again: Backoff,
    /// Why the line went down, until it is told.
    down: Option<SourceError>,
    warned: bool,
    left: bool,
}

/// A line, and what its queue may lose.
type Opened = Result<(BrokerConnection, Option<String>), SourceError>;

impl RabbitmqSource {
    /// A consumer of that queue, at the broker with this `amqp://` address.
    pub fn options(url: &str, queue: &str) -> RabbitmqSourceOptions {
        RabbitmqSourceOptions::new(url, queue)
    }

    fn open(options: RabbitmqSourceOptions) -> Result<Self, SourceError> {
        if options.queue.is_empty() || crate::sink::rabbitmq::short(&options.queue).is_none() {
            return Err(SourceError::for_good("a queue has a name of 1 to 255 bytes"));
        }
        let (taken, again) = (InFlight::default(), Backoff::default());
        Ok(Self { options, line: None, opening: None, taken, again, down: None, warned: false, left: false })
    }

    /// The line is gone, and with it every tag: the broker gives these messages to somebody else.
    fn broke(&mut self, why: impl std::fmt::Display) {
        let queue = &self.options.queue;
        let told =
            format!("the connection to RabbitMQ is gone ({why}); what is not done in {queue:?} comes again");
        tracing::warn!(target: "semel::rabbitmq", queue, %why, "a connection is gone; what is not done comes again");
        self.line = None;
        self.taken.lose(|_| true);
        self.down = Some(SourceError::later(told));
    }

    /// Notices a line that went down by itself.
    fn notice(&mut self) {
        if self.line.as_ref().is_some_and(|line| !line.is_up()) {
            self.broke("closed");
        }
    }

    async fn connect(&mut self, until: Instant) -> Result<(), SourceError> {
        if let Some(at) = self.again.at().filter(|at| *at > Instant::now()) {
            tokio::time::sleep_until(at.min(until).into()).await;
            if at > until {
                return Err(SourceError::later("RabbitMQ could not be reached; it is tried again soon"));
            }
        }
        let options = &self.options;
        let opening = self.opening.get_or_insert_with(|| tokio::spawn(opened(options.clone())));
        let opened = opening.await;
        self.opening = None;
        match opened.unwrap_or_else(|broken| Err(SourceError::later(broken))) {
            Ok((line, may_lose)) => {
                if let (Some(why), false) = (may_lose, std::mem::replace(&mut self.warned, true)) {
                    tracing::warn!(target: "semel::rabbitmq", why, "messages may be lost");
                }
                self.again.went_well();
                self.line = Some(line);
                Ok(())
            }
            Err(error) => {
                self.again.failed(Instant::now());
                Err(error)
            }
        }
    }

    /// Takes in what there is. Waits for the first only.
    async fn take_in(&mut self, most: usize, until: Instant) {
        while self.taken.ready() < most {
            let Some(line) = &mut self.line else { return };
            let next = line.consumer.next();
            let came = match self.taken.ready() {
                0 => timeout_at(until.into(), next).await.ok(),
                _ => next.now_or_never(),
            };
            match came {
                None => return,
                Some(Some(Ok(came))) => {
                    let (tag, options) = (came.delivery_tag, &self.options);
                    let delivery = message::delivery(came, &options.queue, &line.name, &options.key_by);
                    self.taken.came(tag, delivery);
                }
                Some(Some(Err(error))) => self.broke(error),
                Some(None) => self.broke("the consumer was cancelled: is the queue still there?"),
            }
        }
    }
}

async fn opened(options: RabbitmqSourceOptions) -> Opened {
    let opened = timeout(options.timeout, BrokerConnection::open(&options)).await;
    opened.unwrap_or_else(|_| Err(SourceError::later("RabbitMQ did not answer in time")))
}

impl Source for RabbitmqSource {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        if self.left {
            return Err(SourceError::for_good("the source has left its queue"));
        }
        let until = Instant::now() + wait;
        self.notice();
        if let Some(down) = self.down.take() {
            return Err(down);
        }
        if self.line.is_none() {
            self.connect(until).await?;
        }
        self.take_in(most, until).await;
        match self.down.take() {
            Some(down) => Err(down),
            None => Ok(self.taken.give(most)),
        }
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        self.notice();
        let done: Vec<u64> =
            settled.iter().filter_map(|(receipt, settle)| self.taken.settle(*receipt, *settle)).collect();
        let Some(line) = &self.line else { return Ok(()) };
        let acks = acks::acks(done, self.taken.open().copied());
        // All are on their way when this is polled for the first time: left after that, none is sent twice.
        let sent = join_all(
            acks.into_iter().map(|(tag, multiple)| line.channel.basic_ack(tag, BasicAckOptions { multiple })),
        );
        match timeout(self.options.timeout, sent).await {
            // What was not heard is lost with the line: there is nothing that could be told again.
            Err(_) => self.broke("no acknowledgement could be sent"),
            Ok(sent) => {
                if let Some(error) = sent.into_iter().find_map(Result::err) {
                    self.broke(error);
                }
            }
        }
        Ok(())
    }

    /// Nothing can be kept, and nothing needs to be before `consumer_timeout`: see the [module](self).
    async fn keep(&mut self, _: &[Receipt]) -> Result<(), SourceError> {
        self.notice();
        Ok(())
    }

    fn renew_after(&self) -> Duration {
        KEEP
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.notice();
        self.taken.lost()
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        self.left = true;
        self.taken = InFlight::default();
        let line = match self.opening.take() {
            Some(opening) => opening.await.ok().and_then(Result::ok).map(|(line, _)| line),
            None => self.line.take(),
        };
        let Some(line) = line else { return Ok(()) };
        let failed = |why: &dyn std::fmt::Display| {
            SourceError::later(format!(
                "RabbitMQ did not answer a consumer that leaves ({why}); it gives the messages to others when it misses it"
            ))
        };
        match timeout(self.options.timeout, line.close()).await {
            Ok(closed) => closed.map_err(|error| failed(&error)),
            Err(_) => Err(failed(&"in time")),
        }
    }
}
