//! The loop: receive, handle side by side, settle, and again.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::dead_letter::Unidentified;
use super::handler::{DeadLetter, DeadLetters, Handler, HandlerError, HandlerErrorKind};
use super::message::Message;
use super::metrics::{ConsumerMetrics, Observer};
use super::options::ConsumerOptions;
use super::pruner::Pruner;
use super::redelivery::Redelivery;
use super::retention::{self, DedupPruner};
use super::scheduler::{AttemptResult, Held, KeyScheduler, Verdict};
use super::workers::Workers;
use crate::crash;
use crate::inbox::Identity;
use crate::source::{Delivery, MissingIdentity, Receipt, Settle, Source, SourceError};

/// How long a source is waited for when nothing is held.
const IDLE: Duration = Duration::from_secs(1);

/// Brings messages from a source to a handler until it is stopped.
///
/// - A message is acknowledged when its handler has said `Ok`, and never before.
/// - Messages of one key are handled in their order, also when one fails; other keys do not wait for it: keys that fail
///   are tried in calls of their own, and what waits behind them is read past ([`ConsumerOptions::held_max`]).
/// - What fails again and again is buried with the error, if there is a place for that; else its key waits.
pub struct Consumer<S, H, D = NoDeadLetters> {
    pub(super) name: String,
    pub(super) source: S,
    pub(super) handler: Arc<H>,
    pub(super) dead: D,
    pub(super) options: Arc<ConsumerOptions>,
    pub(super) stop: watch::Sender<bool>,
    pub(super) desk: KeyScheduler,
    pub(super) calls: Workers,
    /// Messages that cannot be told from others.
    pub(super) unidentified: Vec<Unidentified>,
    /// Until when the last ones may be buried.
    pub(super) bury_until: Option<Instant>,
    /// What the source has not been told yet.
    pub(super) untold: Vec<(Receipt, Settle)>,
    /// Not ours any more, and still under way.
    lost: Vec<Receipt>,
    /// When the source is to be kept.
    pub(super) keep_at: Instant,
    /// When is looked for letters, and how many were taken.
    pub(super) letters: Redelivery,
    pub(super) upkeep: Pruner,
    pub(super) observer: Observer,
    pub(super) ended: ConsumerStats,
}

/// No place to bury messages: what cannot be handled is tried again for ever, and its key waits. With a handler that
/// [gives up at once](Handler::gives_up_at_once) it only waits, until the process ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDeadLetters;

impl DeadLetters for NoDeadLetters {
    async fn dead_letter(&self, _: &str, _: &DeadLetter<'_>) -> Result<(), HandlerError> {
        Err(HandlerError::transient("there is no place for dead letters; its key waits"))
    }
}

/// Stops a consumer in order: what is being handled ends and is settled, and the rest is given back.
#[derive(Clone, Debug)]
pub struct ConsumerStopHandle(pub(in crate::inbox) watch::Sender<bool>);

impl ConsumerStopHandle {
    /// Asks for the end. See [`ConsumerOptions::drain_timeout`].
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// What a consumer did until it was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ConsumerStats {
    /// Messages handled, those that had been handled before included.
    pub handled: u64,
    /// Failures, tries that were repeated included.
    pub failed: u64,
    /// Messages buried.
    pub buried: u64,
}

impl<S: Source, H: Handler> Consumer<S, H> {
    /// A consumer that has not begun. The name is the one of its [`Inbox`](crate::inbox::Inbox).
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
            desk: KeyScheduler::default(),
            calls: Workers::default(),
            unidentified: Vec::new(),
            bury_until: None,
            untold: Vec::new(),
            lost: Vec::new(),
            keep_at: Instant::now(),
            letters: Redelivery::default(),
            upkeep: Pruner::default(),
            observer: Observer::new(name),
            ended: ConsumerStats::default(),
        }
    }

    /// Buries there what cannot be handled.
    pub fn dead_letters<D: DeadLetters>(self, dead: D) -> Consumer<S, H, D> {
        let Self {
            name,
            source,
            handler,
            options,
            stop,
            desk,
            calls,
            unidentified,
            bury_until,
            untold,
            lost,
            keep_at,
            letters,
            upkeep,
            observer,
            ended,
            ..
        } = self;
        Consumer {
            name,
            source,
            handler,
            dead,
            options,
            stop,
            desk,
            calls,
            unidentified,
            bury_until,
            untold,
            lost,
            keep_at,
            letters,
            upkeep,
            observer,
            ended,
        }
    }
}

impl<S: Source, H: Handler, D: DeadLetters> Consumer<S, H, D> {
    /// Counts what it does.
    #[must_use]
    pub fn observed_by(mut self, metrics: &ConsumerMetrics) -> Self {
        self.observer.metrics = Some(metrics.clone());
        self
    }

    /// Forgets marks there that are older than the [window](ConsumerOptions::window), beside the work and in bounded bites.
    /// Without it whoever has the inbox calls [`Inbox::prune_tx`](crate::inbox::Inbox::prune_tx).
    #[must_use]
    pub fn forgets(mut self, marks: impl DedupPruner) -> Self {
        self.upkeep.chunk = Some(retention::chunk(marks, &self.name));
        self
    }

    /// Stops it.
    pub fn stop_handle(&self) -> ConsumerStopHandle {
        ConsumerStopHandle(self.stop.clone())
    }

    /// Runs until it is stopped, or until the source cannot go on. Dropping the future is like a crash: nothing is lost,
    /// and what was not settled comes again.
    ///
    /// # Errors
    /// When trying again would not help the source. What is under way then may end before, as after a stop.
    pub async fn run(mut self) -> Result<ConsumerStats, SourceError> {
        let mut stopped = self.stop.subscribe();
        let mut pause = self.options.pause.0;
        let _forgetting = self.forget_marks();
        while !*stopped.borrow() {
            let turn = async {
                self.tell().await?;
                self.take_letters().await;
                let came = self.receive(&mut stopped).await?;
                self.ask_retention().await;
                self.bury_nameless().await;
                self.bury_doomed().await;
                self.begin_calls(&stopped);
                let ended = self.end_calls(came).await?;
                self.tell().await?;
                Ok(ended || self.calls.is_empty())
            };
            let turned: Result<bool, SourceError> = turn.await;
            self.observe(|metrics| {
                let (held, oldest) = self.desk.held();
                metrics.holds(held + self.unidentified.len(), oldest);
                match &turned {
                    Ok(got_on) => {
                        if *got_on {
                            metrics.turned();
                        }
                        metrics.source_answered();
                    }
                    Err(error) => metrics.source_is_away(error),
                }
            });
            match turned {
                Ok(_) => pause = self.options.pause.0,
                Err(error) if error.may_retry() => {
                    self.observe(ConsumerMetrics::source_failed);
                    tracing::warn!(%error, consumer = self.name, "the source failed; trying again");
                    let rest = tokio::time::timeout(pause, asked_to_stop(&mut stopped));
                    let held = self.held();
                    let _ = keeping(&mut self.source, &mut self.keep_at, &held, rest).await;
                    // A source that gives nothing may still hear what became of the rest.
                    self.take_in_ended(Vec::new()).await;
                    pause = (pause * 2).min(self.options.pause.1);
                }
                Err(error) => {
                    tracing::error!(%error, consumer = self.name, "the consumer stops");
                    // What is under way is not the source's fault. Some of it may still be heard.
                    let _ = self.end().await;
                    let _ = self.source.leave().await;
                    return Err(error);
                }
            }
        }
        let ended = self.end().await;
        self.source.leave().await?;
        ended.map(|()| self.ended)
    }

    /// What is under way may end, and is told. What the source does not hear now comes again; the rest is given back all
    /// the same.
    async fn end(&mut self) -> Result<(), SourceError> {
        let last = self.last_calls().await;
        self.drop_calls().await;
        self.bury_last().await;
        last.and(self.tell().await)
    }

    pub(super) fn observe(&self, tell: impl FnOnce(&ConsumerMetrics)) {
        if let Some(metrics) = &self.observer.metrics {
            tell(metrics);
        }
    }

    /// Everything that was received and not settled.
    pub(super) fn held(&self) -> Vec<Receipt> {
        let mut held = self.desk.receipts();
        held.extend(self.unidentified.iter().map(|unidentified| unidentified.delivery.receipt));
        held
    }

    /// Tells the source what became of messages, until it has heard it.
    pub(super) async fn tell(&mut self) -> Result<(), SourceError> {
        self.give_up_lost();
        if self.untold.is_empty() {
            return Ok(());
        }
        self.untold.sort_by_key(|(receipt, _)| *receipt);
        self.source.settle(&self.untold).await?;
        self.untold.clear();
        crash::point(crash::AFTER_ACK);
        Ok(())
    }

    /// Takes in what there is room for, and says whether anything came. Waits only where there is nothing to be handled and
    /// nothing under way.
    async fn receive(&mut self, stopped: &mut watch::Receiver<bool>) -> Result<bool, SourceError> {
        let now = Instant::now();
        let held = self.held();
        let room = self.desk.room(self.unidentified.len(), &self.options);
        let idle = self.calls.is_empty() && self.calls.ready(&self.desk, &self.options).is_empty();
        let unidentified = self.unidentified.iter().map(|unidentified| unidentified.due);
        let due = self.desk.due().into_iter().chain(self.letters.due()).chain(unidentified).min();
        let until_due = due.map_or(IDLE, |due| due.saturating_duration_since(now).min(IDLE));
        let wait = if idle { until_due } else { Duration::ZERO };
        // One that had nothing a moment ago is left alone for a while, where there is something else to do.
        let quiet = !idle && !self.calls.look.left(now).is_zero();
        let mut came = false;
        if room == 0 || quiet {
            // Where there is no wait, calls are waited for, and the source is kept then.
            if !wait.is_zero() {
                let rest = tokio::time::timeout(wait, asked_to_stop(stopped));
                let _ = keeping(&mut self.source, &mut self.keep_at, &held, rest).await?;
            }
        } else {
            if now >= self.keep_at {
                keep(&mut self.source, &mut self.keep_at, &held).await?;
            }
            let wait = wait.min(self.keep_at.saturating_duration_since(now));
            let received = tokio::select! {
                // What has come is taken in, also when the stop was asked for at the same moment.
                biased;
                received = self.source.receive(room, wait) => received?,
                () = asked_to_stop(stopped) => return Ok(false),
            };
            came = !received.is_empty();
            if came || idle {
                self.calls.look.came();
            }
            if !came {
                self.calls.look.nothing(Instant::now(), self.source.poll_interval());
            }
            for delivery in received {
                self.take_in(delivery);
            }
        }
        self.give_up_lost();
        Ok(came)
    }

    /// What is not ours any more is forgotten, and what would overtake it is given back. What is under way is so only when
    /// its call has ended: else it would come again and be handled beside itself. What waits to be buried is so when it is:
    /// whoever gets it finds it done, and nobody else knows that it failed.
    pub(super) fn give_up_lost(&mut self) {
        self.lost.extend(self.source.lost());
        let stays = |line| self.calls.has(line) || self.desk.is_doomed(line);
        let (stay, lost): (Vec<_>, Vec<_>) = std::mem::take(&mut self.lost)
            .into_iter()
            .partition(|receipt| self.desk.line_of(*receipt).is_some_and(stays));
        self.lost = stay;
        if lost.is_empty() {
            return;
        }
        self.observe(|metrics| metrics.lost(lost.len()));
        let behind = self.desk.drop_lost(&lost);
        self.unidentified.retain(|unidentified| !lost.contains(&unidentified.delivery.receipt));
        self.untold.retain(|(receipt, _)| !lost.contains(receipt));
        self.untold.extend(behind.into_iter().map(|receipt| (receipt, Settle::Nack)));
    }

    pub(super) fn identify(&self, delivery: &Delivery) -> Result<Identity, MissingIdentity> {
        let source = self.options.source.as_deref().unwrap_or(&delivery.from);
        self.options.identify.identify_as(delivery, source)
    }

    /// A message that cannot be told from others is not handled, and stands in the way of nobody.
    fn take_in(&mut self, delivery: Delivery) {
        match self.identify(&delivery) {
            Ok(identity) => self.desk.add(delivery.receipt, Message::new(identity, delivery)),
            Err(unnamed) => {
                let error = unnamed.to_string();
                tracing::warn!(
                    error,
                    consumer = self.name,
                    place = delivery.place,
                    "a message without a name"
                );
                self.unidentified.push(Unidentified::new(delivery, error, self.options.pause.0));
            }
        }
    }

    pub(super) async fn fold(&mut self, told: Vec<(Receipt, AttemptResult)>, tried: &[Held]) {
        let of_letter = |held: &Held| held.letter.map(|letter| (held.receipt, letter));
        let letters: HashMap<Receipt, i64> = tried.iter().filter_map(of_letter).collect();
        let tried: HashMap<Receipt, &Held> = tried.iter().map(|held| (held.receipt, held)).collect();
        let round = self.desk.round(&told, Instant::now(), &self.options);
        // Before anything is waited for: what is taken away meanwhile is found done elsewhere, and only we know that it failed.
        let gives_up_at_once = self.handler.gives_up_at_once();
        for (receipt, became) in
            told.iter().filter(|(receipt, _)| gives_up_at_once && !letters.contains_key(receipt))
        {
            if let AttemptResult::Failed { error, kind: HandlerErrorKind::Permanent, .. } = became {
                self.desk.doom(*receipt, error);
            }
        }
        let (mut can_bury, mut tell_at) = (true, Instant::now() + self.source.renew_after());
        for (receipt, became) in told {
            self.tell_if_due(&mut tell_at).await;
            let letter = letters.get(&receipt).copied();
            let tries = tried.get(&receipt).map_or(0, |held| held.tries);
            if became.is_done() {
                self.observe(|metrics| metrics.attempts(tries.saturating_add(1)));
                self.ended.handled += 1;
                match letter {
                    Some(letter) => self.letter_handled(letter).await,
                    None => self.untold.push((receipt, Settle::Ack)),
                }
            } else {
                self.ended.failed += 1;
            }
            let verdict = self.desk.tried(receipt, became, round, Instant::now(), &self.options);
            if verdict == Some(Verdict::Again) {
                self.observe(ConsumerMetrics::retried);
            }
            let Some(Verdict::Bury { error }) = verdict else { continue };
            if let Some(letter) = letter {
                self.letter_failed(letter, &error).await;
                self.desk.buried(receipt);
                continue;
            }
            let Some(held) = tried.get(&receipt) else { continue };
            // Where one was not kept, the others would have to wait as long for the same answer: they rest.
            can_bury = can_bury && self.give_up(held, &error, held.tries.saturating_add(1)).await;
        }
    }
}

pub(in crate::inbox) async fn asked_to_stop(stopped: &mut watch::Receiver<bool>) {
    // The sender is the consumer's: it outlives the wait.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Does something that takes long while the source is kept.
pub(super) async fn keeping<S: Source, T>(
    source: &mut S,
    keep_at: &mut Instant,
    held: &[Receipt],
    work: impl Future<Output = T>,
) -> Result<T, SourceError> {
    let mut work = std::pin::pin!(work);
    loop {
        let until = *keep_at;
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            () = tokio::time::sleep_until(until) => keep(source, keep_at, held).await?,
        }
    }
}

/// Says that these are still held, and when that is to be said again.
async fn keep<S: Source>(source: &mut S, keep_at: &mut Instant, held: &[Receipt]) -> Result<(), SourceError> {
    *keep_at = Instant::now() + source.renew_after();
    match source.keep(held).await {
        Err(error) if error.may_retry() => {
            tracing::warn!(%error, "messages under way were not kept; trying again");
            Ok(())
        }
        kept => kept,
    }
}
