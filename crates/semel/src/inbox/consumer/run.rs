//! The loop: receive, handle side by side, settle, and again.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;

use super::bisect;
use super::desk::{Desk, Held, Tried, Verdict};
use super::handler::{Buried, DeadLetters, Failed, Handler};
use super::message::Message;
use super::options::ConsumerOptions;
use crate::crash;
use crate::source::{Delivery, Receipt, Settle, Source, SourceError};

/// How long a source is waited for when nothing is held.
const IDLE: Duration = Duration::from_secs(1);

/// Brings messages from a source to a handler until it is stopped.
///
/// - A message is acknowledged when its handler has said `Ok`, and never before.
/// - Messages of one key are handled in their order, also when one fails; other keys do not wait for it.
/// - What fails again and again is buried with the error, if there is a place for that; else its key waits.
pub struct Consumer<S, H, D = Nowhere> {
    name: String,
    source: S,
    handler: Arc<H>,
    dead: D,
    options: ConsumerOptions,
    stop: watch::Sender<bool>,
    desk: Desk,
    /// What has failed since anything was handled.
    suspects: HashSet<Receipt>,
    ended: Ended,
}

/// No place to bury messages: what cannot be handled is tried again for ever, and its key waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nowhere;

impl DeadLetters for Nowhere {
    async fn bury(&self, _: &str, _: &Buried<'_>) -> Result<(), Failed> {
        Err(Failed::later("there is no place for dead letters; its key waits"))
    }
}

/// Stops a consumer in order: what is being handled ends and is settled, and the rest is given back.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// Asks for the end. See [`ConsumerOptions::farewell`].
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// What a consumer did until it was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Ended {
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
        Self {
            name: name.to_owned(),
            source,
            handler: Arc::new(handler),
            dead: Nowhere,
            options,
            stop,
            desk: Desk::default(),
            suspects: HashSet::new(),
            ended: Ended::default(),
        }
    }

    /// Buries there what cannot be handled.
    pub fn dead_letters<D: DeadLetters>(self, dead: D) -> Consumer<S, H, D> {
        let Self { name, source, handler, options, stop, desk, suspects, ended, .. } = self;
        Consumer { name, source, handler, dead, options, stop, desk, suspects, ended }
    }
}

impl<S: Source, H: Handler, D: DeadLetters> Consumer<S, H, D> {
    /// Stops it.
    pub fn stop_handle(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Runs until it is stopped, or until the source cannot go on. Dropping the future is like a crash: nothing is lost,
    /// and what was not settled comes again.
    ///
    /// # Errors
    /// When trying again would not help the source.
    pub async fn run(mut self) -> Result<Ended, SourceError> {
        let mut stopped = self.stop.subscribe();
        let mut pause = self.options.pause.0;
        while !*stopped.borrow() {
            let turn = async {
                self.receive(&mut stopped).await?;
                self.handle().await
            };
            match turn.await {
                Ok(()) => pause = self.options.pause.0,
                Err(error) if error.may_retry() => {
                    tracing::warn!(%error, consumer = self.name, "the source failed; trying again");
                    let _ = tokio::time::timeout(pause, stopped.wait_for(|stopped| *stopped)).await;
                    pause = (pause * 2).min(self.options.pause.1);
                }
                Err(error) => {
                    tracing::error!(%error, consumer = self.name, "the consumer stops");
                    let _ = self.source.leave().await;
                    return Err(error);
                }
            }
        }
        self.source.leave().await?;
        Ok(self.ended)
    }

    /// Takes in what there is room for. Waits only where there is nothing to be handled.
    async fn receive(&mut self, stopped: &mut watch::Receiver<bool>) -> Result<(), SourceError> {
        let now = Instant::now();
        let room = self.options.held_max.saturating_sub(self.desk.len());
        let idle = self.desk.ready(now, &self.options).is_empty();
        let until_due = self.desk.due().map_or(IDLE, |due| due.saturating_duration_since(now).min(IDLE));
        let wait = if idle { until_due } else { Duration::ZERO };
        if room == 0 {
            if idle {
                let held = self.desk.receipts();
                let rest = async { tokio::time::timeout(wait, stopped.wait_for(|stopped| *stopped)).await };
                let _ = keeping(&mut self.source, &held, rest).await?;
            }
        } else {
            let received = tokio::select! {
                received = self.source.receive(room, wait) => received?,
                _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
            };
            let mut received = received.into_iter();
            while let Some(delivery) = received.next() {
                if let Err(error) = self.take_in(delivery).await {
                    // Not every source has a lease that brings back what nobody speaks of any more.
                    let rest: Vec<_> = received.map(|rest| (rest.receipt, Settle::Again)).collect();
                    self.source.settle(&rest).await?;
                    return Err(error);
                }
            }
        }
        self.give_up_lost().await
    }

    async fn give_up_lost(&mut self) -> Result<(), SourceError> {
        let lost = self.source.lost();
        if lost.is_empty() {
            return Ok(());
        }
        let behind = self.desk.drop_lost(&lost);
        let again: Vec<_> = behind.into_iter().map(|receipt| (receipt, Settle::Again)).collect();
        if again.is_empty() { Ok(()) } else { self.source.settle(&again).await }
    }

    /// A message that cannot be told from others is not handled: it is buried, or stands in the way of nobody but itself.
    async fn take_in(&mut self, delivery: Delivery) -> Result<(), SourceError> {
        let receipt = delivery.receipt;
        match self.options.identify.identify(&delivery) {
            Ok(identity) => self.desk.add(receipt, Message::new(identity, delivery)),
            Err(unnamed) => {
                let error = unnamed.to_string();
                tracing::warn!(%error, consumer = self.name, place = delivery.place, "a message without a name");
                let buried = Buried { delivery: &delivery, id: None, error: &error, tries: 0 };
                let settle = match self.dead.bury(&self.name, &buried).await {
                    Ok(()) => {
                        self.ended.buried += 1;
                        Settle::Done
                    }
                    Err(_) => Settle::Again,
                };
                self.source.settle(&[(receipt, settle)]).await?;
                if settle == Settle::Again {
                    return Err(SourceError::later(error));
                }
            }
        }
        Ok(())
    }

    /// Handles what may be handled now, side by side, and settles it.
    async fn handle(&mut self) -> Result<(), SourceError> {
        let batches = self.desk.ready(Instant::now(), &self.options);
        if batches.is_empty() {
            return Ok(());
        }
        let tried: Vec<Held> = batches.iter().flatten().cloned().collect();
        let held = self.desk.receipts();
        let work = async {
            let handler = &self.handler;
            let calls =
                batches.into_iter().map(|batch| bisect::handle(Arc::clone(handler), batch, &self.options));
            let mut calls: FuturesUnordered<_> = calls.collect();
            let mut told = Vec::with_capacity(tried.len());
            while let Some(of_batch) = calls.next().await {
                told.extend(of_batch);
            }
            told
        };
        let told = keeping(&mut self.source, &held, work).await?;
        crash::point(crash::BEFORE_ACK);
        let settled = self.fold(told, &tried).await;
        self.give_up_lost().await?;
        if !settled.is_empty() {
            self.source.settle(&settled).await?;
        }
        crash::point(crash::AFTER_ACK);
        Ok(())
    }

    /// Not where many fail and none succeeds, over as many rounds as it takes: lines that failed do not come back together.
    fn is_a_message_to_blame(&mut self, told: &[(Receipt, Tried)]) -> bool {
        let well = told.iter().any(|(_, tried)| *tried == Tried::Done);
        if well {
            self.suspects.clear();
        }
        let failed = told.iter().filter(|(_, tried)| *tried != Tried::Done).map(|(receipt, _)| *receipt);
        self.suspects.extend(failed.take(self.options.suspects_max));
        well || self.suspects.len() < self.options.suspects_max
    }

    async fn fold(&mut self, told: Vec<(Receipt, Tried)>, tried: &[Held]) -> Vec<(Receipt, Settle)> {
        let counted = self.is_a_message_to_blame(&told);
        let mut settled = Vec::with_capacity(told.len());
        for (receipt, became) in told {
            if became == Tried::Done {
                self.ended.handled += 1;
                settled.push((receipt, Settle::Done));
            } else {
                self.ended.failed += 1;
            }
            let verdict = self.desk.tried(receipt, became, counted, Instant::now(), &self.options);
            let Some(Verdict::Bury { error }) = verdict else { continue };
            let Some(held) = tried.iter().find(|held| held.receipt == receipt) else { continue };
            let buried = Buried {
                delivery: held.message.delivery(),
                id: Some(held.message.identity().id()),
                error: &error,
                tries: held.tries.saturating_add(1),
            };
            match self.dead.bury(&self.name, &buried).await {
                Ok(()) => {
                    tracing::warn!(error, consumer = self.name, id = buried.id, "a message was buried");
                    self.ended.buried += 1;
                    self.desk.buried(receipt);
                    settled.push((receipt, Settle::Done));
                }
                Err(not) => {
                    tracing::warn!(error, %not, consumer = self.name, id = buried.id, "a message cannot be handled");
                }
            }
        }
        settled.sort_unstable_by_key(|(receipt, _)| *receipt);
        settled
    }
}

/// Does something that takes long while the source is kept.
async fn keeping<S: Source, T>(
    source: &mut S,
    held: &[Receipt],
    work: impl Future<Output = T>,
) -> Result<T, SourceError> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            () = tokio::time::sleep(source.keep_in()) => {}
        }
        match source.keep(held).await {
            Ok(()) => {}
            Err(error) if !error.may_retry() => return Err(error),
            Err(error) => tracing::warn!(%error, "messages under way were not kept; trying again"),
        }
    }
}
