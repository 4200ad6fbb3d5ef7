//! The loop: receive, handle concurrently, settle (ack or nack), repeat.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::dead_letter::Unidentified;
use super::handler::{DeadLetter, DeadLetters, Handler, HandlerError, HandlerErrorKind, OnBrokenCall};
use super::message::Message;
use super::metrics::{ConsumerMetrics, Observer};
use super::options::ConsumerOptions;
use super::pruner::Pruner;
use super::redelivery::Redelivery;
use super::retention::{self, DedupPruner};
use super::scheduler::{AttemptResult, KeyScheduler, QueuedMessage, Verdict};
use super::workers::Workers;
use crate::crash;
use crate::inbox::Identity;
use crate::source::{Delivery, MissingIdentity, Receipt, Settle, Source, SourceError};
use crate::stop::{self, asked_to_stop};

/// How long to wait for the source when nothing is in flight.
const IDLE: Duration = Duration::from_secs(1);

/// Brings messages from a source to a handler until it is stopped.
///
/// - A message is acked after its handler returned `Ok`, and never before.
/// - Messages of one key are handled in order, also when one fails. Other keys do not wait for it: failing keys are
///   retried in separate calls, and the source is read past them ([`ConsumerOptions::in_flight_max`]).
/// - A message that keeps failing becomes a [dead letter](Consumer::dead_letters) with its error; without a store for
///   dead letters, its key waits.
pub struct Consumer<S, H, D = NoDeadLetters> {
    pub(super) name: String,
    pub(super) source: S,
    pub(super) handler: Arc<H>,
    pub(super) dead: D,
    pub(super) options: Arc<ConsumerOptions>,
    pub(super) stop: watch::Sender<bool>,
    pub(super) scheduler: KeyScheduler,
    pub(super) calls: Workers,
    /// Messages without an identity.
    pub(super) unidentified: Vec<Unidentified>,
    /// Until when the last dead letters may be written, after a stop.
    pub(super) dead_letter_deadline: Option<Instant>,
    /// Acks and nacks not yet sent to the source.
    pub(super) pending_acks: Vec<(Receipt, Settle)>,
    /// Lost to another consumer (rebalance), and still in flight here.
    lost: Vec<Receipt>,
    /// When to renew the leases at the source.
    pub(super) renew_at: Instant,
    pub(super) redelivery: Redelivery,
    pub(super) pruner: Pruner,
    pub(super) observer: Observer,
    pub(super) stats: ConsumerStats,
}

/// No store for dead letters: a failing message is retried forever, and its key waits. With a handler that
/// [gives up on broken calls](Handler::on_broken_call) it is not retried: the key waits until the process ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDeadLetters;

impl DeadLetters for NoDeadLetters {
    async fn dead_letter(&self, _: &str, _: &DeadLetter<'_>) -> Result<(), HandlerError> {
        Err(HandlerError::transient("no dead letter store is configured; the message's key waits"))
    }
}

/// Stops a consumer gracefully (drain): calls in flight finish and are acked, and the rest is returned to the source.
#[derive(Clone, Debug)]
pub struct ConsumerStopHandle(pub(in crate::inbox) watch::Sender<bool>);

impl ConsumerStopHandle {
    /// Asks the consumer to stop. See [`ConsumerOptions::drain_timeout`].
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// What a consumer did until it was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ConsumerStats {
    /// Messages handled, duplicates included.
    pub handled: u64,
    /// Failed attempts, retries included.
    pub failed: u64,
    /// Messages that became dead letters.
    pub dead_letters: u64,
}

impl<S: Source, H: Handler> Consumer<S, H> {
    /// A consumer that is not running yet. Its name is that of its [`Inbox`](crate::inbox::Inbox).
    pub fn new(name: &str, source: S, handler: H, options: ConsumerOptions) -> Self {
        let (stop, _) = watch::channel(false);
        let batch_max = options.batch_max.min(handler.batch_max());
        let options = Arc::new(options.batch_max(batch_max));
        Self {
            name: name.to_owned(),
            source,
            handler: Arc::new(handler),
            dead: NoDeadLetters,
            options,
            stop,
            scheduler: KeyScheduler::default(),
            calls: Workers::default(),
            unidentified: Vec::new(),
            dead_letter_deadline: None,
            pending_acks: Vec::new(),
            lost: Vec::new(),
            renew_at: Instant::now(),
            redelivery: Redelivery::default(),
            pruner: Pruner::default(),
            observer: Observer::new(name),
            stats: ConsumerStats::default(),
        }
    }

    /// Stores messages that cannot be handled there, as dead letters.
    pub fn dead_letters<D: DeadLetters>(self, dead: D) -> Consumer<S, H, D> {
        let Self {
            name,
            source,
            handler,
            options,
            stop,
            scheduler,
            calls,
            unidentified,
            dead_letter_deadline,
            pending_acks,
            lost,
            renew_at,
            redelivery,
            pruner,
            observer,
            stats,
            ..
        } = self;
        Consumer {
            name,
            source,
            handler,
            dead,
            options,
            stop,
            scheduler,
            calls,
            unidentified,
            dead_letter_deadline,
            pending_acks,
            lost,
            renew_at,
            redelivery,
            pruner,
            observer,
            stats,
        }
    }
}

impl<S: Source, H: Handler, D: DeadLetters> Consumer<S, H, D> {
    /// Records metrics.
    #[must_use]
    pub fn observed_by(mut self, metrics: &ConsumerMetrics) -> Self {
        self.observer.metrics = Some(metrics.clone());
        self
    }

    /// Prunes marks older than the [window](ConsumerOptions::window) there, in the background and in bounded chunks.
    /// Without it the application has to call [`Inbox::prune_tx`](crate::inbox::Inbox::prune_tx).
    #[must_use]
    pub fn forgets(mut self, marks: impl DedupPruner) -> Self {
        self.pruner.chunk = Some(retention::chunk(marks, &self.name));
        self
    }

    /// A handle that stops it.
    pub fn stop_handle(&self) -> ConsumerStopHandle {
        ConsumerStopHandle(self.stop.clone())
    }

    /// Runs until it is stopped, or until the source fails for good. Dropping the future is like a crash: nothing is
    /// lost, and messages that were not acked are redelivered.
    ///
    /// # Errors
    /// When the source fails for good. Calls in flight may finish first, as after a stop.
    pub async fn run(mut self) -> Result<ConsumerStats, SourceError> {
        let mut stopped = self.stop.subscribe();
        let mut pause = self.options.backoff.first;
        let _pruning = self.start_pruning();
        while !*stopped.borrow() {
            let turn = async {
                self.settle().await?;
                self.take_dead_letters().await;
                let came = self.receive(&mut stopped).await?;
                self.ask_retention().await;
                self.dead_letter_unidentified().await;
                self.retry_dead_letters().await;
                self.begin_calls(&stopped);
                let ended = self.end_calls(came).await?;
                self.settle().await?;
                Ok(ended || self.calls.is_empty())
            };
            let turned: Result<bool, SourceError> = turn.await;
            self.observe(|metrics| {
                let (in_flight, oldest) = self.scheduler.in_flight();
                metrics.holds(in_flight + self.unidentified.len(), oldest);
                match &turned {
                    Ok(got_on) => {
                        if *got_on {
                            metrics.turned();
                        }
                        metrics.source_answered();
                    }
                    Err(error) => metrics.source_failed(error),
                }
            });
            match turned {
                Ok(_) => pause = self.options.backoff.first,
                Err(error) if error.may_retry() => {
                    tracing::warn!(%error, consumer = self.name, "the source failed; will retry");
                    let rest = stop::pause(pause, &mut stopped);
                    let in_flight = self.in_flight();
                    let _ = while_renewing(&mut self.source, &mut self.renew_at, &in_flight, rest).await;
                    // A source that delivers nothing may still take acks.
                    self.take_in_ended(Vec::new()).await;
                    pause = self.options.backoff.next(pause);
                }
                Err(error) => {
                    tracing::error!(%error, consumer = self.name, "the source failed for good; the consumer stops");
                    // Calls in flight may finish, and some of their acks may still get through.
                    let _ = self.end().await;
                    let _ = self.source.leave().await;
                    return Err(error);
                }
            }
        }
        let ended = self.end().await;
        self.source.leave().await?;
        ended.map(|()| self.stats)
    }

    /// Drains: calls in flight may finish and are acked. If the acks fail, their messages are redelivered; the rest is
    /// returned to the source all the same.
    async fn end(&mut self) -> Result<(), SourceError> {
        let last = self.last_calls().await;
        self.drop_calls().await;
        self.write_last_dead_letters().await;
        last.and(self.settle().await)
    }

    pub(super) fn observe(&self, record: impl FnOnce(&ConsumerMetrics)) {
        if let Some(metrics) = &self.observer.metrics {
            record(metrics);
        }
    }

    /// Everything received and not settled.
    pub(super) fn in_flight(&self) -> Vec<Receipt> {
        let mut in_flight = self.scheduler.receipts();
        in_flight.extend(self.unidentified.iter().map(|unidentified| unidentified.delivery.receipt));
        in_flight
    }

    /// Sends acks and nacks to the source. They stay pending until it took them.
    pub(super) async fn settle(&mut self) -> Result<(), SourceError> {
        self.give_up_lost();
        if self.pending_acks.is_empty() {
            return Ok(());
        }
        self.pending_acks.sort_by_key(|(receipt, _)| *receipt);
        self.source.settle(&self.pending_acks).await?;
        self.pending_acks.clear();
        crash::point(crash::AFTER_ACK);
        Ok(())
    }

    /// Receives what there is room for, and returns whether anything came. Waits only if there is nothing to handle and
    /// no call in flight.
    async fn receive(&mut self, stopped: &mut watch::Receiver<bool>) -> Result<bool, SourceError> {
        let now = Instant::now();
        let in_flight = self.in_flight();
        let room = self.scheduler.room(self.unidentified.len(), &self.options);
        let idle = self.calls.is_empty() && self.calls.ready(&self.scheduler, &self.options).is_empty();
        let unidentified = self.unidentified.iter().map(|unidentified| unidentified.due);
        let due = self.scheduler.due().into_iter().chain(self.redelivery.due()).chain(unidentified).min();
        let until_due = due.map_or(IDLE, |due| due.saturating_duration_since(now).min(IDLE));
        let wait = if idle { until_due } else { Duration::ZERO };
        // An idle source is not polled too often while there is something else to do.
        let quiet = !idle && !self.calls.idle_poll.left(now).is_zero();
        let mut came = false;
        if room == 0 || quiet {
            // Without a wait here, `end_calls` waits and renews the leases.
            if !wait.is_zero() {
                let rest = stop::pause(wait, stopped);
                while_renewing(&mut self.source, &mut self.renew_at, &in_flight, rest).await?;
            }
        } else {
            if now >= self.renew_at {
                renew(&mut self.source, &mut self.renew_at, &in_flight).await?;
            }
            let wait = wait.min(self.renew_at.saturating_duration_since(now));
            let received = tokio::select! {
                // Messages that arrived are taken in, also if a stop came at the same moment.
                biased;
                received = self.source.receive(room, wait) => received?,
                () = asked_to_stop(stopped) => return Ok(false),
            };
            came = !received.is_empty();
            if came || idle {
                self.calls.idle_poll.came();
            }
            if !came {
                self.calls.idle_poll.nothing(Instant::now(), self.source.poll_interval());
            }
            for delivery in received {
                self.take_in(delivery);
            }
        }
        self.give_up_lost();
        Ok(came)
    }

    /// Drops lost messages (rebalance), and nacks those that would overtake them. A message in flight is dropped only
    /// when its call has ended: otherwise its copy would be handled at the same time. One that waits for its dead
    /// letter is dropped when that is written: its next consumer finds it done, and only this process knows that it
    /// failed.
    pub(super) fn give_up_lost(&mut self) {
        self.lost.extend(self.source.lost());
        let stays = |queue| self.calls.has(queue) || self.scheduler.awaits_dead_letter(queue);
        let (stay, lost): (Vec<_>, Vec<_>) = std::mem::take(&mut self.lost)
            .into_iter()
            .partition(|receipt| self.scheduler.queue_of(*receipt).is_some_and(stays));
        self.lost = stay;
        if lost.is_empty() {
            return;
        }
        self.observe(|metrics| metrics.lost(lost.len()));
        let behind = self.scheduler.drop_lost(&lost);
        self.unidentified.retain(|unidentified| !lost.contains(&unidentified.delivery.receipt));
        self.pending_acks.retain(|(receipt, _)| !lost.contains(receipt));
        self.pending_acks.extend(behind.into_iter().map(|receipt| (receipt, Settle::Nack)));
    }

    pub(super) fn identify(&self, delivery: &Delivery) -> Result<Identity, MissingIdentity> {
        let source = self.options.source.as_deref().unwrap_or(&delivery.from);
        self.options.identify.identify_as(delivery, source)
    }

    /// A message without an identity is not handled, and blocks no other.
    fn take_in(&mut self, delivery: Delivery) {
        match self.identify(&delivery) {
            Ok(identity) => self.scheduler.add(delivery.receipt, Message::new(identity, delivery)),
            Err(missing) => {
                let error = missing.to_string();
                tracing::warn!(
                    error,
                    consumer = self.name,
                    place = delivery.place,
                    "a message has no identity; it goes to the dead letters without being handled"
                );
                self.unidentified.push(Unidentified::new(delivery, error, self.options.backoff.first));
            }
        }
    }

    pub(super) async fn fold(&mut self, results: Vec<(Receipt, AttemptResult)>, tried: &[QueuedMessage]) {
        let of_dead_letter =
            |queued: &QueuedMessage| queued.dead_letter.map(|dead_letter| (queued.receipt, dead_letter));
        let dead_letters: HashMap<Receipt, i64> = tried.iter().filter_map(of_dead_letter).collect();
        let tried: HashMap<Receipt, &QueuedMessage> =
            tried.iter().map(|queued| (queued.receipt, queued)).collect();
        let round = self.scheduler.round(&results, Instant::now(), &self.options);
        // Before the first await: a message lost meanwhile is found done elsewhere, and only this process knows that it
        // failed.
        let gives_up = self.handler.on_broken_call() == OnBrokenCall::DeadLetter;
        for (receipt, became) in
            results.iter().filter(|(receipt, _)| gives_up && !dead_letters.contains_key(receipt))
        {
            if let AttemptResult::Failed { error, kind: HandlerErrorKind::Permanent, .. } = became {
                self.scheduler.set_pending_dead_letter(*receipt, error);
            }
        }
        let (mut can_dead_letter, mut settle_at) = (true, Instant::now() + self.source.renew_after());
        for (receipt, became) in results {
            self.settle_if_due(&mut settle_at).await;
            let dead_letter = dead_letters.get(&receipt).copied();
            let attempts = tried.get(&receipt).map_or(0, |queued| queued.attempts);
            if became.is_done() {
                self.observe(|metrics| metrics.attempts(attempts.saturating_add(1)));
                self.stats.handled += 1;
                match dead_letter {
                    Some(dead_letter) => self.dead_letter_handled(dead_letter).await,
                    None => self.pending_acks.push((receipt, Settle::Ack)),
                }
            } else if became != AttemptResult::Unclear {
                self.stats.failed += 1;
            }
            let verdict = self.scheduler.tried(receipt, became, round, Instant::now(), &self.options);
            if verdict == Some(Verdict::Retry) {
                self.observe(ConsumerMetrics::retried);
            }
            let Some(Verdict::DeadLetter { error }) = verdict else { continue };
            if let Some(dead_letter) = dead_letter {
                self.dead_letter_failed(dead_letter, &error).await;
                self.scheduler.dead_lettered(receipt);
                continue;
            }
            let Some(queued) = tried.get(&receipt) else { continue };
            // After one failure the others back off: they would wait as long for the same answer.
            can_dead_letter =
                can_dead_letter && self.give_up(queued, &error, queued.attempts.saturating_add(1)).await;
        }
    }
}

/// Runs `work`, and renews the leases at the source meanwhile.
pub(super) async fn while_renewing<S: Source, T>(
    source: &mut S,
    renew_at: &mut Instant,
    in_flight: &[Receipt],
    work: impl Future<Output = T>,
) -> Result<T, SourceError> {
    let mut work = std::pin::pin!(work);
    loop {
        let until = *renew_at;
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            () = tokio::time::sleep_until(until) => renew(source, renew_at, in_flight).await?,
        }
    }
}

/// Renews the leases of messages in flight (heartbeat), and sets when to do so next.
async fn renew<S: Source>(
    source: &mut S,
    renew_at: &mut Instant,
    in_flight: &[Receipt],
) -> Result<(), SourceError> {
    *renew_at = Instant::now() + source.renew_after();
    match source.keep(in_flight).await {
        Err(error) if error.may_retry() => {
            tracing::warn!(%error, "failed to renew the leases of messages in flight; will retry");
            Ok(())
        }
        kept => kept,
    }
}
