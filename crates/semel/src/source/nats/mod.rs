//! NATS JetStream: a durable pull consumer that acknowledges each message by itself.
//!
//! | in the delivery | from the message |
//! |---|---|
//! | `from` | stream |
//! | `place` | `stream/sequence` |
//! | `lineage` | when the stream was made: one that is made anew counts anew |
//! | `key` | header `semel-key`, else `ce-partitionkey`, else the subject |
//! | `headers` | its headers, by their names |
//! | `deliveries` | as the server counts, and those given back here |
//!
//! **Done** is said until the server has answered. **Given back**, a message stays here and is given again before what is
//! behind it; the server gets it back when the source leaves.
//!
//! **Order.** Of one reader at a time the order of the stream is kept within a key, also over a crash: who comes after one
//! that died holds new messages back until those that the other one had have come, for twice `ack_wait` at most. Several
//! readers of one consumer share its messages, those of one key too: then only a consumer with
//! [one message out](NatsSourceOptions::ack_pending_max) has an order.
//!
//! **Leases** are the consumer's `ack_wait`. What is worked on is kept by `+WPI`, and counts as lost here a little before
//! the server thinks so: the server takes a late acknowledgement for the delivery that another one has.

use std::time::{Duration, Instant};

use futures_util::FutureExt;

use self::connection::{Arrival, Connection};
use self::in_flight::{InFlight, first_lease, lease, renew_after};
use super::{Delivery, Receipt, Settle, Source, SourceError};

mod connection;
mod in_flight;
mod options;
mod record;

pub use options::NatsSourceOptions;

/// How long an answer of the server's is waited for where there is no time to wait.
const ROUND_TRIP: Duration = Duration::from_millis(50);

/// How often is looked whether what others had has come.
const SETTLING_IN: Duration = Duration::from_millis(200);

/// How long more of a batch is waited for.
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
    link: Option<Connection>,
    held: InFlight,
    /// What was sent before may be somebody else's.
    settling_in: bool,
    /// As the consumer has it, once it is known.
    ack_wait: Option<Duration>,
    /// Which making of the stream what is held is of.
    lineage: Option<String>,
    has_left: bool,
}

impl NatsSource {
    /// A reader of that durable consumer of that stream, at the server of this `nats://` address.
    pub fn options(url: &str, stream: &str, consumer: &str) -> NatsSourceOptions {
        NatsSourceOptions::new(url, stream, consumer)
    }

    fn new(options: NatsSourceOptions) -> Self {
        Self {
            options,
            link: None,
            held: InFlight::default(),
            settling_in: true,
            ack_wait: None,
            lineage: None,
            has_left: false,
        }
    }

    async fn connect(&mut self) -> Result<(), SourceError> {
        if self.has_left {
            return Err(SourceError::for_good("the source has left"));
        }
        if self.link.as_ref().is_some_and(Connection::is_of_before) {
            self.take_in_what_is_there();
            self.link = None;
        }
        if self.link.is_none() {
            let link = Connection::open(&self.options).await?;
            let before = self.lineage.replace(link.lineage.clone());
            if before.is_some_and(|before| before != link.lineage) {
                self.held.abandon();
            }
            self.ack_wait = Some(link.ack_wait);
            self.settling_in = true;
            self.link = Some(link);
        }
        Ok(())
    }

    fn link(&mut self) -> Result<&mut Connection, SourceError> {
        self.link.as_mut().ok_or_else(not_connected)
    }

    /// Gives back what is not ours to keep, one after the other: it is the order in which it comes again.
    async fn give_back(&mut self) -> Result<(), SourceError> {
        let until = self.link()?.deadline();
        while let Some(reply) = self.held.next_returned() {
            if let Err((_, error)) = self.link()?.say("-NAK", vec![((), reply)], until).await {
                self.held.forget_returned();
                return Err(error);
            }
            self.held.is_returned();
        }
        Ok(())
    }

    /// What ran out is others' now, or comes again to us: in which order is only known when all of it is somewhere.
    fn expire(&mut self) {
        if self.held.expire(Instant::now()) {
            self.settling_in = true;
            self.link.iter_mut().for_each(Connection::begin_anew);
        }
    }

    /// Nothing is held back any more when what was sent before is done, ours, or has run out.
    async fn settle_in(&mut self) -> Result<(), SourceError> {
        let Some(link) = &self.link else { return Err(not_connected()) };
        if link.is_settled(|up_to| self.held.pending(up_to)).await? || link.has_run_out() {
            self.held.release();
            self.settling_in = false;
        }
        Ok(())
    }

    fn take_in(&mut self, arrival: Arrival) {
        let Arrival::Message { message, sequence, delivered } = arrival else { return };
        let Some(link) = &self.link else { return };
        let Some(reply) = message.reply.clone() else { return };
        let until = Instant::now() + first_lease(link.ack_wait);
        let delivery = record::delivery(message, &self.options.stream, sequence, delivered, &link.lineage);
        // The client repeats a request that it could not get rid of before it connected again. What that brings may be behind
        // what was on its way when the connection broke.
        let ahead = self.settling_in || link.is_of_before();
        self.held.came(sequence, delivery, reply, until, ahead);
    }

    /// What has arrived and nobody looked at is ours, and has to be kept.
    fn take_in_what_is_there(&mut self) {
        while let Some(Some(came)) = self.link.as_mut().map(|link| link.arrival().now_or_never()) {
            match came {
                Some(Ok(arrival)) => self.take_in(arrival),
                // The consumer or the connection is gone: nothing more comes this way.
                Some(Err(_)) | None => self.link = None,
            }
        }
    }

    /// Waits for what was asked for until then, and takes in what comes with it.
    async fn await_arrivals(&mut self, until: Instant) -> Result<(), SourceError> {
        let mut left = until.saturating_duration_since(Instant::now());
        loop {
            let link = self.link()?;
            match tokio::time::timeout(left, link.arrival()).await {
                Err(_) => return Ok(()),
                Ok(Some(Ok(arrival))) => self.take_in(arrival),
                Ok(Some(Err(error))) => {
                    self.link = None;
                    return Err(error);
                }
                Ok(None) => {
                    self.link = None;
                    return Err(SourceError::later("the connection to NATS is closed"));
                }
            }
            if !self.link()?.is_asked() {
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
            if self.settling_in {
                self.settle_in().await?;
            }
            let given = self.held.give(most);
            let left = until.saturating_duration_since(Instant::now());
            if !given.is_empty() || most == 0 {
                return Ok(given);
            }
            // While only new ones come there is nothing to hurry for: they are held back.
            let ahead = self.settling_in && self.link()?.is_ahead();
            let patience = if self.settling_in { left.min(SETTLING_IN) } else { left };
            let begun = Instant::now();
            self.link()?.ask(if ahead { 1 } else { most }, patience).await?;
            self.await_arrivals(begun + patience.max(ROUND_TRIP)).await?;
            if ahead && self.link()?.is_ahead() {
                tokio::time::sleep_until((begun + patience).into()).await;
            }
            if left.is_zero() {
                return Ok(self.held.give(most));
            }
        }
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        self.expire();
        if self.held.settle(settled).is_empty() {
            return Ok(());
        }
        self.connect().await?;
        // What ran out meanwhile, or is of a stream that was made anew, is not spoken of.
        self.expire();
        let done = self.held.settle(settled);
        if done.is_empty() {
            return Ok(());
        }
        let link = self.link()?;
        let (heard, error) = match link.say("+ACK", done, link.deadline()).await {
            Ok(heard) => (heard, None),
            Err((heard, error)) => (heard, Some(error)),
        };
        heard.into_iter().for_each(|receipt| self.held.told(receipt));
        error.map_or(Ok(()), Err)
    }

    async fn keep(&mut self, held: &[Receipt]) -> Result<(), SourceError> {
        let now = Instant::now();
        self.expire();
        self.take_in_what_is_there();
        if self.held.to_keep(held).is_empty() {
            return Ok(());
        }
        self.connect().await?;
        // What ran out meanwhile, or is of a stream that was made anew, is not spoken of.
        self.expire();
        let to_keep = self.held.to_keep(held);
        if to_keep.is_empty() {
            return Ok(());
        }
        let link = self.link()?;
        let until = now + lease(link.ack_wait);
        let (heard, error) = match link.say("+WPI", to_keep, link.deadline()).await {
            Ok(heard) => (heard, None),
            Err((heard, error)) => (heard, Some(error)),
        };
        self.held.kept(&heard, until);
        error.map_or(Ok(()), Err)
    }

    fn renew_after(&self) -> Duration {
        renew_after(self.ack_wait.unwrap_or(Duration::from_secs(2)))
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.expire();
        self.held.lost()
    }

    async fn retention(&mut self) -> Option<Duration> {
        self.connect().await.ok()?;
        self.link().ok()?.retention().await
    }

    /// What was not settled is others' at once.
    async fn leave(&mut self) -> Result<(), SourceError> {
        self.has_left = true;
        // What was asked for may still come, and nobody would know of it before its lease is over.
        while let Some(until) = self.link.as_ref().filter(|link| link.is_asked()).map(Connection::asked_until)
        {
            if Instant::now() >= until || self.await_arrivals(until).await.is_err() {
                break;
            }
        }
        if self.link.is_none() {
            return Ok(());
        }
        self.expire();
        self.held.give_up(|_| true);
        self.held.lost();
        let given = self.give_back().await;
        self.link = None;
        given
    }
}
