//! The calls in flight. A key queue goes on when its call has ended, whatever the other calls do.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::Instrument;

use super::batches::{Batch, Slots};
use super::bisect;
use super::handler::{DeadLetters, Handler};
use super::idle_poll::{IdlePoll, POLL_INTERVAL_MAX};
use super::metrics::ConsumerMetrics;
use super::options::ConsumerOptions;
use super::run::{Consumer, while_renewing};
use super::scheduler::{AttemptResult, KeyScheduler, QueuedMessage};
use crate::crash;
use crate::source::{Receipt, Source, SourceError};

/// How long to wait for aborted calls to be gone.
const ABORT_WAIT_MAX: Duration = Duration::from_secs(1);

/// The calls in flight. When dropped they are aborted at their next await; commits made before that stay.
pub(super) struct Workers {
    in_flight: JoinSet<EndedCall>,
    /// Their key queues.
    queues: HashSet<u64>,
    /// How many of them are for failing queues, and whether the last one started is.
    retries: usize,
    retried_last: bool,
    /// With only one call at a time: until when healthy queues go first, so that failing ones get no more time than
    /// they do.
    fresh_until: Option<Instant>,
    pub(super) idle_poll: IdlePoll,
    /// Each call holds a receiver. When none is left all calls are gone, also the tasks in which handlers run.
    alive: watch::Sender<()>,
}

/// A call that has ended.
pub(super) struct EndedCall {
    tried: Batch,
    begun: Instant,
    results: Vec<(Receipt, AttemptResult)>,
}

impl Default for Workers {
    fn default() -> Self {
        Self {
            in_flight: JoinSet::new(),
            queues: HashSet::new(),
            retries: 0,
            retried_last: false,
            fresh_until: None,
            idle_poll: IdlePoll::default(),
            alive: watch::channel(()).0,
        }
    }
}

impl Workers {
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Whether one of them is for that queue.
    pub(super) fn has(&self, queue: u64) -> bool {
        self.queues.contains(&queue)
    }

    /// What may start beside them.
    pub(super) fn ready(&self, scheduler: &KeyScheduler, options: &ConsumerOptions) -> Vec<Batch> {
        let concurrency = options.concurrency.max(1);
        // One call is reserved for healthy queues. If there is only one, they take turns.
        let retries_max = concurrency.saturating_sub(1).max(1);
        let now = Instant::now();
        let had_their_time = concurrency == 1 && self.fresh_until.is_some_and(|until| now < until);
        let slots = Slots {
            all: concurrency.saturating_sub(self.in_flight.len()),
            retries: retries_max.saturating_sub(self.retries),
            retried_last: self.retried_last || had_their_time,
        };
        scheduler.ready(now, options, &self.queues, slots)
    }

    fn begin(
        &mut self,
        tried: Batch,
        call: impl Future<Output = Vec<(Receipt, AttemptResult)>> + Send + 'static,
    ) {
        self.queues.extend(tried.messages.iter().map(QueuedMessage::queue));
        self.retries += usize::from(tried.retries);
        self.retried_last = tried.retries;
        let begun = Instant::now();
        self.in_flight
            .spawn(async move { EndedCall { results: call.await, tried, begun } }.in_current_span());
    }

    /// The next call that ends. Cancel safe.
    async fn next(&mut self) -> Option<EndedCall> {
        let ended = self.in_flight.join_next().await;
        ended.map(|ended| self.end(ended))
    }

    /// A call that has already ended.
    fn ended(&mut self) -> Option<EndedCall> {
        let ended = self.in_flight.try_join_next();
        ended.map(|ended| self.end(ended))
    }

    fn end(&mut self, ended: Result<EndedCall, JoinError>) -> EndedCall {
        match ended {
            Ok(call) => {
                for queued in &call.tried.messages {
                    self.queues.remove(&queued.queue());
                }
                if call.tried.retries {
                    self.retries -= 1;
                    self.fresh_until = Some(Instant::now() + call.begun.elapsed());
                }
                self.idle_poll.freed();
                call
            }
            // Handlers panic in tasks of their own. This task is ours, and is not aborted while it is awaited.
            Err(broken) => std::panic::resume_unwind(broken.into_panic()),
        }
    }

    /// How long to wait for calls before looking for other work.
    fn patience(&self, due: Option<Instant>) -> Duration {
        let now = Instant::now();
        let left = |left: Duration| Some(left).filter(|left| !left.is_zero());
        // A due message that has not started waits behind a call; a source that is due was not polled for lack of room.
        let due = due.and_then(|due| left(due.saturating_duration_since(now)));
        let times = [due, left(self.idle_poll.left(now)), Some(POLL_INTERVAL_MAX)];
        times.into_iter().flatten().min().unwrap_or(POLL_INTERVAL_MAX)
    }

    /// Aborts all calls and waits a little until they are gone: a message returned to the source should not be
    /// committed here while another consumer handles it. Returns calls that had ended by then.
    async fn abort_all_and_wait(mut self) -> Vec<EndedCall> {
        self.in_flight.abort_all();
        if tokio::time::timeout(ABORT_WAIT_MAX, self.alive.closed()).await.is_err() {
            tracing::warn!(
                "a handler did not stop when aborted; it may still run after its messages are returned to the source"
            );
        }
        std::iter::from_fn(|| self.in_flight.try_join_next()).flatten().collect()
    }
}

impl<S: Source, H: Handler, D: DeadLetters> Consumer<S, H, D> {
    /// Starts calls with what may be handled now, concurrently.
    pub(super) fn begin_calls(&mut self, stopped: &watch::Receiver<bool>) {
        if *stopped.borrow() {
            return;
        }
        let ready = self.calls.ready(&self.scheduler, &self.options);
        if self.calls.is_empty() && !ready.is_empty() {
            self.observe(ConsumerMetrics::round_begins);
        }
        for batch in ready {
            let (handler, options) = (Arc::clone(&self.handler), Arc::clone(&self.options));
            let (observer, stopped) = (self.observer.clone(), stopped.clone());
            let alive = self.calls.alive.subscribe();
            self.scheduler.begin(&batch);
            self.calls.begin(batch.clone(), async move {
                bisect::handle(handler, batch.messages, &options, &observer, &stopped, &alive).await
            });
        }
    }

    /// Records calls that ended, and returns whether any did. Waits for the first only if the source had nothing.
    pub(super) async fn end_calls(&mut self, came: bool) -> Result<bool, SourceError> {
        let mut ended_calls = Vec::new();
        if !came && !self.calls.is_empty() {
            let patience = self.calls.patience(self.scheduler.due());
            let in_flight = self.in_flight();
            let next = tokio::time::timeout(patience, self.calls.next());
            let ended = while_renewing(&mut self.source, &mut self.renew_at, &in_flight, next).await?;
            ended_calls.extend(ended.ok().flatten());
        }
        Ok(self.take_in_ended(ended_calls).await)
    }

    /// Drains: waits for the last calls, up to the drain timeout, and records their results, whatever the source says
    /// meanwhile.
    pub(super) async fn last_calls(&mut self) -> Result<(), SourceError> {
        let (in_flight, mut ended_calls) = (self.in_flight(), Vec::new());
        let kept = {
            let last = async {
                while let Some(ended) = self.calls.next().await {
                    ended_calls.push(ended);
                }
            };
            let mut last = std::pin::pin!(tokio::time::timeout(self.options.drain_timeout, last));
            let kept = while_renewing(&mut self.source, &mut self.renew_at, &in_flight, last.as_mut()).await;
            if kept.is_err() {
                // Leases are not renewed any more. The calls still run, and may have committed by now.
                let _ = last.await;
            }
            kept.map(drop)
        };
        self.dead_letter_deadline = Some(Instant::now() + self.options.drain_timeout);
        self.take_in_ended(ended_calls).await;
        kept
    }

    /// Aborts the calls that did not finish. Their messages are returned to the source.
    pub(super) async fn drop_calls(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let ended_calls = std::mem::take(&mut self.calls).abort_all_and_wait().await;
        if ended_calls.is_empty() {
            self.observe(|metrics| metrics.round_ends(std::iter::empty()));
        }
        self.take_in_ended(ended_calls).await;
    }

    /// Records these calls and any others that have ended. Returns whether there were any.
    pub(super) async fn take_in_ended(&mut self, mut ended_calls: Vec<EndedCall>) -> bool {
        while let Some(ended) = self.calls.ended() {
            ended_calls.push(ended);
        }
        if ended_calls.is_empty() {
            return false;
        }
        self.observe(|metrics| {
            metrics.round_ends(ended_calls.iter().flat_map(|call| &call.results).map(|(_, tried)| tried));
            if !self.calls.is_empty() {
                metrics.round_begins();
            }
        });
        let (mut tried, mut results) = (Vec::new(), Vec::new());
        for mut call in ended_calls {
            tried.append(&mut call.tried.messages);
            results.append(&mut call.results);
        }
        crash::point(crash::BEFORE_ACK);
        self.fold(results, &tried).await;
        true
    }
}
