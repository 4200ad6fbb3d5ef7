//! Giving up on a poison message: writes a dead letter, and only then acks the message at the source.

use std::time::Duration;

use tokio::time::Instant;

use super::handler::{DeadLetter, DeadLetters, Handler, OnBrokenCall};
use super::redelivery::within;
use super::run::Consumer;
use super::scheduler::QueuedMessage;
use crate::crash;
use crate::source::{Delivery, Settle, Source};

/// A message without an identity, and when to try its dead letter next.
pub(super) struct Unidentified {
    pub(super) delivery: Delivery,
    error: String,
    pub(super) due: Instant,
    pause: Duration,
}

impl Unidentified {
    pub(super) fn new(delivery: Delivery, error: String, pause: Duration) -> Self {
        Self { delivery, error, due: Instant::now(), pause }
    }
}

impl<S: Source, H: Handler, D: DeadLetters> Consumer<S, H, D> {
    pub(super) async fn dead_letter_unidentified(&mut self) {
        let mut settle_at = Instant::now() + self.source.renew_after();
        let mut at = 0;
        while let Some(unidentified) = self.unidentified.get(at) {
            if unidentified.due > Instant::now() {
                at += 1;
                continue;
            }
            let (delivery, error) = (unidentified.delivery.clone(), unidentified.error.clone());
            let (identity, failing_for) = (None, Duration::ZERO);
            let dead_letter = DeadLetter {
                delivery: &delivery,
                identity,
                id: None,
                error: &error,
                attempts: 0,
                failing_for,
            };
            if self.write_dead_letter(&dead_letter).await {
                self.unidentified.remove(at);
                self.pending_acks.push((delivery.receipt, Settle::Ack));
                self.settle_if_due(&mut settle_at).await;
                continue;
            }
            if let Some(unidentified) = self.unidentified.get_mut(at) {
                unidentified.due = Instant::now() + unidentified.pause;
                unidentified.pause = self.options.backoff.next(unidentified.pause);
            }
            // The others would wait as long for the same answer.
            return;
        }
    }

    /// Retries dead letters that could not be written. The handler is not called again: it would report the message as
    /// done, and the failure would be lost.
    pub(super) async fn retry_dead_letters(&mut self) {
        self.write_pending_dead_letters(Instant::now()).await;
    }

    /// The last attempt before the end, ignoring backoff. If it fails, the next consumer to get the message finds it
    /// done.
    pub(super) async fn write_last_dead_letters(&mut self) {
        let at = Instant::now() + self.options.backoff.max + super::AFTER_MAX;
        self.write_pending_dead_letters(at).await;
        for (queued, error) in self.scheduler.pending_dead_letters(at) {
            let id = queued.message.identity().id();
            tracing::error!(
                error,
                id,
                consumer = self.name,
                "a message failed after it was marked, and its dead letter could not be written: it will not be \
                 handled again, and this log line is the only record of the failure"
            );
        }
    }

    async fn write_pending_dead_letters(&mut self, at: Instant) {
        let (mut can_dead_letter, mut settle_at) = (true, Instant::now() + self.source.renew_after());
        for (queued, error) in self.scheduler.pending_dead_letters(at) {
            // After one failure the others back off: they would wait as long for the same answer.
            can_dead_letter = can_dead_letter && self.give_up(&queued, &error, queued.attempts.max(1)).await;
            if can_dead_letter {
                self.settle_if_due(&mut settle_at).await;
            } else {
                self.scheduler.back_off(queued.receipt, Instant::now(), None, &self.options);
            }
        }
        // Lost messages behind them must not be started.
        self.give_up_lost();
    }

    /// Writes the dead letter of a message that is not tried any more, and lets its key queue go on. Returns whether it
    /// was written.
    pub(super) async fn give_up(&mut self, queued: &QueuedMessage, error: &str, attempts: u32) -> bool {
        let dead_letter = DeadLetter {
            delivery: queued.message.delivery(),
            identity: Some(queued.message.identity()),
            id: Some(queued.message.identity().id()),
            error,
            attempts,
            failing_for: queued.failing_since.map_or(Duration::ZERO, |since| since.elapsed()),
        };
        let kept = self.write_dead_letter(&dead_letter).await;
        if kept {
            self.scheduler.dead_lettered(queued.receipt);
            self.pending_acks.push((queued.receipt, Settle::Ack));
        }
        kept
    }

    /// Returns whether it was written.
    async fn write_dead_letter(&mut self, dead_letter: &DeadLetter<'_>) -> bool {
        let stopped = *self.stop.borrow();
        if stopped && self.handler.on_broken_call() == OnBrokenCall::Retry {
            // It is returned to the source, and fails again elsewhere.
            return false;
        }
        let left = match self.dead_letter_deadline {
            Some(until) => until.saturating_duration_since(Instant::now()),
            None if stopped => self.options.drain_timeout,
            None => self.options.handle_timeout,
        };
        let (in_flight, limit) = (self.in_flight(), left.min(self.options.handle_timeout));
        let write = self.dead.dead_letter(&self.name, dead_letter);
        let kept = within(&mut self.source, &mut self.renew_at, &in_flight, limit, write).await;
        match kept {
            Ok(()) => {
                tracing::warn!(
                    error = dead_letter.error,
                    consumer = self.name,
                    id = dead_letter.id,
                    "gave up on a message and wrote its dead letter"
                );
                self.stats.dead_letters += 1;
                self.observe(|metrics| metrics.dead(dead_letter.attempts));
                crash::point(crash::AFTER_DEAD_LETTER);
            }
            Err(ref not) => {
                tracing::warn!(
                    error = dead_letter.error,
                    %not,
                    consumer = self.name,
                    id = dead_letter.id,
                    "a message cannot be handled, and its dead letter was not written; will retry"
                );
            }
        }
        kept.is_ok()
    }

    /// Acks in between when work takes long: the leases of settled messages are not renewed any more.
    pub(super) async fn settle_if_due(&mut self, settle_at: &mut Instant) {
        if Instant::now() < *settle_at {
            return;
        }
        if let Err(error) = self.settle().await {
            tracing::warn!(%error, consumer = self.name, "failed to ack messages at the source; will retry");
        }
        *settle_at = Instant::now() + self.source.renew_after();
    }
}
