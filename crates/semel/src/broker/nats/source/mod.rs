//! NATS JetStream: a durable pull consumer that acks each message by itself.
//!
//! | in the delivery | from the message |
//! |---|---|
//! | `from` | stream |
//! | `place` | `stream/sequence` |
//! | `lineage` | creation time of the stream: a recreated one starts its sequence again |
//! | `key` | header `semel-key`, else `ce-partitionkey`, else the subject |
//! | `headers` | its headers, by their names |
//! | `deliveries` | the server's count, plus nacks here |
//!
//! **Acks** are repeated until the server has answered. **A nacked** message stays here and is delivered again before
//! anything behind it; the server gets it back when the source leaves.
//!
//! **Order.** With one reader at a time, a key keeps the order of the stream, also over a crash: a new reader holds new
//! messages back until those of the crashed one were redelivered, for twice `ack_wait` at most. Several readers of one
//! consumer share its messages, those of one key too: then only a consumer with
//! [one message in flight](NatsSourceOptions::ack_pending_max) has an order.
//!
//! **Leases** are the consumer's `ack_wait`. `+WPI` extends them. Here they expire a little earlier than at the server:
//! the server would apply a late ack to another reader's delivery.
//!
//! | module | what it decides |
//! |---|---|
//! | `connection` | the stream, its consumer, one pull request at a time |
//! | `in_flight` | messages that wait, messages that were delivered, and when their leases expire |
//! | `record` | from a message of a stream to a delivery |
//! | `options` | settings, and whether the server's consumer is safe to use |

use std::time::{Duration, Instant};

use futures_util::FutureExt;

use self::connection::{Arrival, Connection};
use self::in_flight::{LeasedInFlight, first_lease, lease, renew_after};
use crate::source::{Delivery, Receipt, Settle, Source, SourceError};

mod connection;
mod in_flight;
mod options;
mod record;

pub use options::NatsSourceOptions;

/// Time for the server's answer to a call without a wait.
const ROUND_TRIP: Duration = Duration::from_millis(50);

/// How often to check whether other readers still have earlier messages.
const ORDER_CHECK_EVERY: Duration = Duration::from_millis(200);

/// Wait for the next message of a batch.
const NEXT: Duration = Duration::from_millis(2);

/// Receives from NATS JetStream as one reader of a durable consumer.
///
/// ```no_run
/// use semel::source::nats::NatsSource;
///
/// let source = NatsSource::options("nats://127.0.0.1:4222", "payments", "notifications").open()?;
/// # drop(source); Ok::<(), semel::source::SourceError>(())
/// ```
pub struct NatsSource {
    options: NatsSourceOptions,
    connection: Option<Connection>,
    in_flight: LeasedInFlight,
    /// Another reader may have earlier messages: new ones are held back.
    holding_back: bool,
    /// The consumer's setting, once it is known.
    ack_wait: Option<Duration>,
    /// The incarnation of the stream that messages in flight belong to.
    lineage: Option<String>,
    has_left: bool,
}

impl NatsSource {
    /// A reader of that durable consumer of that stream, at the server with this `nats://` URL.
    pub fn options(url: &str, stream: &str, consumer: &str) -> NatsSourceOptions {
        NatsSourceOptions::new(url, stream, consumer)
    }

    fn new(options: NatsSourceOptions) -> Self {
        Self {
            options,
            connection: None,
            in_flight: LeasedInFlight::default(),
            holding_back: true,
            ack_wait: None,
            lineage: None,
            has_left: false,
        }
    }

    async fn connect(&mut self) -> Result<(), SourceError> {
        if self.has_left {
            return Err(SourceError::for_good("the source has left"));
        }
        if self.connection.as_ref().is_some_and(Connection::has_reconnected) {
            self.take_in_what_is_there();
            self.connection = None;
        }
        if self.connection.is_none() {
            let connection = Connection::open(&self.options).await?;
            let before = self.lineage.replace(connection.lineage.clone());
            if before.is_some_and(|before| before != connection.lineage) {
                self.in_flight.abandon();
            }
            self.ack_wait = Some(connection.ack_wait);
            self.holding_back = true;
            self.connection = Some(connection);
        }
        Ok(())
    }

    fn connection(&mut self) -> Result<&mut Connection, SourceError> {
        self.connection.as_mut().ok_or_else(not_connected)
    }

    /// Nacks given-up messages one after the other: the server redelivers them in that order.
    async fn give_back(&mut self) -> Result<(), SourceError> {
        let until = self.connection()?.deadline();
        while let Some(reply) = self.in_flight.next_returned() {
            if let Err((_, error)) = self.connection()?.send("-NAK", vec![((), reply)], until).await {
                self.in_flight.forget_returned();
                return Err(error);
            }
            self.in_flight.is_returned();
        }
        Ok(())
    }

    /// Gives up everything if a lease expired. Then holds new messages back until the old ones are redelivered, to keep
    /// the order.
    fn expire(&mut self) {
        if self.in_flight.expire(Instant::now()) {
            self.holding_back = true;
            self.connection.iter_mut().for_each(Connection::restart_wait);
        }
    }

    /// Stops holding messages back once all earlier ones are acked, ours, or expired.
    async fn check_order(&mut self) -> Result<(), SourceError> {
        let Some(connection) = &self.connection else { return Err(not_connected()) };
        if connection.is_settled(|up_to| self.in_flight.pending(up_to)).await? || connection.has_run_out() {
            self.in_flight.release();
            self.holding_back = false;
        }
        Ok(())
    }

    fn take_in(&mut self, arrival: Arrival) {
        let Arrival::Message { message, sequence, delivered } = arrival else { return };
        let Some(connection) = &self.connection else { return };
        let Some(reply) = message.reply.clone() else { return };
        let until = Instant::now() + first_lease(connection.ack_wait);
        let delivery =
            record::delivery(message, &self.options.stream, sequence, delivered, &connection.lineage);
        // After a reconnect the client repeats an unsent request. Its messages may be behind those that were on their
        // way when the connection broke.
        let ahead = self.holding_back || connection.has_reconnected();
        self.in_flight.arrived(sequence, delivery, reply, until, ahead);
    }

    /// Takes in messages that have arrived: their leases run, and have to be extended.
    fn take_in_what_is_there(&mut self) {
        while let Some(Some(arrived)) =
            self.connection.as_mut().map(|connection| connection.arrival().now_or_never())
        {
            match arrived {
                Some(Ok(arrival)) => self.take_in(arrival),
                // The consumer or the connection is gone: nothing more arrives here.
                Some(Err(_)) | None => self.connection = None,
            }
        }
    }

    /// Waits for the answer to the pull request until then, and takes in what arrives.
    async fn await_arrivals(&mut self, until: Instant) -> Result<(), SourceError> {
        let mut left = until.saturating_duration_since(Instant::now());
        loop {
            let connection = self.connection()?;
            match tokio::time::timeout(left, connection.arrival()).await {
                Err(_) => return Ok(()),
                Ok(Some(Ok(arrival))) => self.take_in(arrival),
                Ok(Some(Err(error))) => {
                    self.connection = None;
                    return Err(error);
                }
                Ok(None) => {
                    self.connection = None;
                    return Err(SourceError::later("the connection to NATS is closed"));
                }
            }
            if !self.connection()?.is_asked() {
                return Ok(());
            }
            left = NEXT;
        }
    }
}

fn not_connected() -> SourceError {
    SourceError::later("NATS is not connected")
}

impl Source for NatsSource {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        let until = Instant::now() + wait;
        loop {
            self.connect().await?;
            self.expire();
            self.give_back().await?;
            if self.holding_back {
                self.check_order().await?;
            }
            let given = self.in_flight.give(most);
            let left = until.saturating_duration_since(Instant::now());
            if !given.is_empty() || most == 0 {
                return Ok(given);
            }
            // While only new messages arrive there is no hurry: they are held back.
            let ahead = self.holding_back && self.connection()?.is_ahead();
            let poll_wait = if self.holding_back { left.min(ORDER_CHECK_EVERY) } else { left };
            let begun = Instant::now();
            self.connection()?.ask(if ahead { 1 } else { most }, poll_wait).await?;
            self.await_arrivals(begun + poll_wait.max(ROUND_TRIP)).await?;
            if ahead && self.connection()?.is_ahead() {
                tokio::time::sleep_until((begun + poll_wait).into()).await;
            }
            if left.is_zero() {
                return Ok(self.in_flight.give(most));
            }
        }
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        self.expire();
        if self.in_flight.settle(settled).is_empty() {
            return Ok(());
        }
        self.connect().await?;
        // Leaves out what expired meanwhile, or belongs to an earlier incarnation of the stream.
        self.expire();
        let done = self.in_flight.settle(settled);
        if done.is_empty() {
            return Ok(());
        }
        let connection = self.connection()?;
        let (confirmed, error) = match connection.send("+ACK", done, connection.deadline()).await {
            Ok(confirmed) => (confirmed, None),
            Err((confirmed, error)) => (confirmed, Some(error)),
        };
        confirmed.into_iter().for_each(|receipt| self.in_flight.ack_confirmed(receipt));
        error.map_or(Ok(()), Err)
    }

    async fn keep(&mut self, in_flight: &[Receipt]) -> Result<(), SourceError> {
        let now = Instant::now();
        self.expire();
        self.take_in_what_is_there();
        if self.in_flight.to_keep(in_flight).is_empty() {
            return Ok(());
        }
        self.connect().await?;
        // Leaves out what expired meanwhile, or belongs to an earlier incarnation of the stream.
        self.expire();
        let to_keep = self.in_flight.to_keep(in_flight);
        if to_keep.is_empty() {
            return Ok(());
        }
        let connection = self.connection()?;
        let until = now + lease(connection.ack_wait);
        let (confirmed, error) = match connection.send("+WPI", to_keep, connection.deadline()).await {
            Ok(confirmed) => (confirmed, None),
            Err((confirmed, error)) => (confirmed, Some(error)),
        };
        self.in_flight.extended(&confirmed, until);
        error.map_or(Ok(()), Err)
    }

    fn renew_after(&self) -> Duration {
        renew_after(self.ack_wait.unwrap_or(Duration::from_secs(2)))
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.expire();
        self.in_flight.lost()
    }

    async fn retention(&mut self) -> Option<Duration> {
        self.connect().await.ok()?;
        self.connection().ok()?.retention().await
    }

    /// Nacks what was not settled, so that other readers get it at once.
    async fn leave(&mut self) -> Result<(), SourceError> {
        self.has_left = true;
        // Messages of the open pull request may still arrive, and would be stuck until their leases expire.
        while let Some(until) =
            self.connection.as_ref().filter(|connection| connection.is_asked()).map(Connection::asked_until)
        {
            if Instant::now() >= until || self.await_arrivals(until).await.is_err() {
                break;
            }
        }
        if self.connection.is_none() {
            return Ok(());
        }
        self.expire();
        self.in_flight.give_up(|_| true);
        self.in_flight.lost();
        let given = self.give_back().await;
        self.connection = None;
        given
    }
}
