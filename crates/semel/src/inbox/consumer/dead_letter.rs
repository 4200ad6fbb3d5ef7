//! Giving up: what cannot be handled is kept for people, and only then told to the source as done.

use std::time::Duration;

use tokio::time::Instant;

use super::handler::{DeadLetter, DeadLetters, Handler};
use super::redelivery::within;
use super::run::Consumer;
use super::scheduler::Held;
use crate::crash;
use crate::source::{Delivery, Settle, Source};

/// A message without an id, and when it is tried to be buried again.
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
    pub(super) async fn bury_nameless(&mut self) {
        let mut tell_at = Instant::now() + self.source.renew_after();
        let mut at = 0;
        while let Some(unidentified) = self.unidentified.get(at) {
            if unidentified.due > Instant::now() {
                at += 1;
                continue;
            }
            let (delivery, error) = (unidentified.delivery.clone(), unidentified.error.clone());
            let (identity, failing_for) = (None, Duration::ZERO);
            let buried =
                DeadLetter { delivery: &delivery, identity, id: None, error: &error, tries: 0, failing_for };
            if self.dead_letter(&buried).await {
                self.unidentified.remove(at);
                self.untold.push((delivery.receipt, Settle::Ack));
                self.tell_if_due(&mut tell_at).await;
                continue;
            }
            if let Some(unidentified) = self.unidentified.get_mut(at) {
                unidentified.due = Instant::now() + unidentified.pause;
                unidentified.pause = (unidentified.pause * 2).min(self.options.pause.1);
            }
            // The others would have to wait as long for the same answer.
            return;
        }
    }

    /// Tries again to bury what was given up for good and not kept. Its handler is not asked: it would say that it is done,
    /// and nobody would hear of the failure.
    pub(super) async fn bury_doomed(&mut self) {
        self.bury_all_doomed(Instant::now()).await;
    }

    /// The last time, whether their rest is over or not. What is not kept now is found done by whoever gets it next.
    pub(super) async fn bury_last(&mut self) {
        let at = Instant::now() + self.options.pause.1 + super::AFTER_MAX;
        self.bury_all_doomed(at).await;
        for (held, error) in self.desk.doomed(at) {
            let id = held.message.identity().id();
            tracing::error!(
                error,
                id,
                consumer = self.name,
                "a message failed after its mark and could not be buried: nobody handles it again, and this line is all \
                 that is left of its failure"
            );
        }
    }

    async fn bury_all_doomed(&mut self, at: Instant) {
        let (mut can_bury, mut tell_at) = (true, Instant::now() + self.source.renew_after());
        for (held, error) in self.desk.doomed(at) {
            // Where one was not kept, the others would have to wait as long for the same answer: they rest.
            can_bury = can_bury && self.give_up(&held, &error, held.tries.max(1)).await;
            if can_bury {
                self.tell_if_due(&mut tell_at).await;
            } else {
                self.desk.rest(held.receipt, Instant::now(), None, &self.options);
            }
        }
        // What stood behind them and is lost must not be begun.
        self.give_up_lost();
    }

    /// Buries a message that is not tried any more, and lets its line go on. Whether it is kept.
    pub(super) async fn give_up(&mut self, held: &Held, error: &str, tries: u32) -> bool {
        let buried = DeadLetter {
            delivery: held.message.delivery(),
            identity: Some(held.message.identity()),
            id: Some(held.message.identity().id()),
            error,
            tries,
            failing_for: held.failing_since.map_or(Duration::ZERO, |since| since.elapsed()),
        };
        let kept = self.dead_letter(&buried).await;
        if kept {
            self.desk.buried(held.receipt);
            self.untold.push((held.receipt, Settle::Ack));
        }
        kept
    }

    /// Whether it is kept.
    async fn dead_letter(&mut self, buried: &DeadLetter<'_>) -> bool {
        let stopped = *self.stop.borrow();
        if stopped && !self.handler.gives_up_at_once() {
            // It is given back, and fails again elsewhere.
            return false;
        }
        let left = match self.bury_until {
            Some(until) => until.saturating_duration_since(Instant::now()),
            None if stopped => self.options.drain_timeout,
            None => self.options.handle_timeout,
        };
        let (held, limit) = (self.held(), left.min(self.options.handle_timeout));
        let dead_letter = self.dead.dead_letter(&self.name, buried);
        let kept = within(&mut self.source, &mut self.keep_at, &held, limit, dead_letter).await;
        match kept {
            Ok(()) => {
                tracing::warn!(
                    error = buried.error,
                    consumer = self.name,
                    id = buried.id,
                    "a message was buried"
                );
                self.ended.buried += 1;
                self.observe(|metrics| metrics.dead(buried.tries));
                crash::point(crash::AFTER_BURY);
            }
            Err(ref not) => {
                tracing::warn!(error = buried.error, %not, consumer = self.name, id = buried.id, "a message cannot be handled");
            }
        }
        kept.is_ok()
    }

    /// What is settled is not kept any more: where much takes long it is told in between.
    pub(super) async fn tell_if_due(&mut self, tell_at: &mut Instant) {
        if Instant::now() < *tell_at {
            return;
        }
        if let Err(error) = self.tell().await {
            tracing::warn!(%error, consumer = self.name, "the source did not hear what became of messages; told again");
        }
        *tell_at = Instant::now() + self.source.renew_after();
    }
}
