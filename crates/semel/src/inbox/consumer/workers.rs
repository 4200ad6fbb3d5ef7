//! The calls under way. A line goes on when its call has ended, whatever the others do.

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
use super::idle_poll::{IdlePoll, LOOK_MAX};
use super::metrics::ConsumerMetrics;
use super::options::ConsumerOptions;
use super::run::{Consumer, keeping};
use super::scheduler::{AttemptResult, Held, KeyScheduler};
use crate::crash;
use crate::source::{Receipt, Source, SourceError};

/// How long calls that were broken off are waited for.
const GONE_MAX: Duration = Duration::from_secs(1);

/// Dropped, they are broken off where they next wait for something: what they commit until then they have committed.
pub(super) struct Workers {
    under_way: JoinSet<Over>,
    /// The lines they are about.
    lines: HashSet<u64>,
    /// How many of them are about lines that fail, and whether the last that was begun is.
    retries: usize,
    retried_last: bool,
    /// Where there is only one call at a time: lines that fail take no more of it than the others.
    fresh_until: Option<Instant>,
    pub(super) look: IdlePoll,
    /// Each call listens, to nothing: when nobody does any more, all are gone, also the tasks in which handlers run.
    alive: watch::Sender<()>,
}

/// A call that has ended.
pub(super) struct Over {
    tried: Batch,
    begun: Instant,
    told: Vec<(Receipt, AttemptResult)>,
}

impl Default for Workers {
    fn default() -> Self {
        Self {
            under_way: JoinSet::new(),
            lines: HashSet::new(),
            retries: 0,
            retried_last: false,
            fresh_until: None,
            look: IdlePoll::default(),
            alive: watch::channel(()).0,
        }
    }
}

impl Workers {
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether one of them is about that line.
    pub(super) fn has(&self, line: u64) -> bool {
        self.lines.contains(&line)
    }

    /// What may be begun beside them.
    pub(super) fn ready(&self, desk: &KeyScheduler, options: &ConsumerOptions) -> Vec<Batch> {
        let concurrency = options.concurrency.max(1);
        // One is left for lines that do not fail. Where there is only one, they take turns.
        let retries_max = concurrency.saturating_sub(1).max(1);
        let now = Instant::now();
        let had_their_time = concurrency == 1 && self.fresh_until.is_some_and(|until| now < until);
        let slots = Slots {
            all: concurrency.saturating_sub(self.under_way.len()),
            retries: retries_max.saturating_sub(self.retries),
            retried_last: self.retried_last || had_their_time,
        };
        desk.ready(now, options, &self.lines, slots)
    }

    fn begin(
        &mut self,
        tried: Batch,
        call: impl Future<Output = Vec<(Receipt, AttemptResult)>> + Send + 'static,
    ) {
        self.lines.extend(tried.held.iter().map(Held::line));
        self.retries += usize::from(tried.retries);
        self.retried_last = tried.retries;
        let begun = Instant::now();
        self.under_way.spawn(async move { Over { told: call.await, tried, begun } }.in_current_span());
    }

    /// The next that ends. Dropped, nothing is lost.
    async fn next(&mut self) -> Option<Over> {
        let ended = self.under_way.join_next().await;
        ended.map(|ended| self.end(ended))
    }

    /// One that has ended by now.
    fn ended(&mut self) -> Option<Over> {
        let ended = self.under_way.try_join_next();
        ended.map(|ended| self.end(ended))
    }

    fn end(&mut self, ended: Result<Over, JoinError>) -> Over {
        match ended {
            Ok(over) => {
                for held in &over.tried.held {
                    self.lines.remove(&held.line());
                }
                if over.tried.retries {
                    self.retries -= 1;
                    self.fresh_until = Some(Instant::now() + over.begun.elapsed());
                }
                self.look.freed();
                over
            }
            // Handlers panic in tasks of their own. This one is ours, and not aborted while it is waited for.
            Err(broken) => std::panic::resume_unwind(broken.into_panic()),
        }
    }

    /// How long calls are waited for before it is looked for something else to do.
    fn patience(&self, due: Option<Instant>) -> Duration {
        let now = Instant::now();
        let left = |left: Duration| Some(left).filter(|left| !left.is_zero());
        // What is due and has not begun stands behind a call, and who is not left alone any more was not asked for lack of
        // room.
        let due = due.and_then(|due| left(due.saturating_duration_since(now)));
        let times = [due, left(self.look.left(now)), Some(LOOK_MAX)];
        times.into_iter().flatten().min().unwrap_or(LOOK_MAX)
    }

    /// Breaks them off, and waits a little until they are gone: what is given back now should not be committed beside whoever
    /// gets it. Those that had ended by then.
    async fn break_off(mut self) -> Vec<Over> {
        self.under_way.abort_all();
        if tokio::time::timeout(GONE_MAX, self.alive.closed()).await.is_err() {
            tracing::warn!("a handler cannot be broken off; it may go on when its messages are given back");
        }
        std::iter::from_fn(|| self.under_way.try_join_next()).flatten().collect()
    }
}

impl<S: Source, H: Handler, D: DeadLetters> Consumer<S, H, D> {
    /// Begins calls with what may be handled now, side by side.
    pub(super) fn begin_calls(&mut self, stopped: &watch::Receiver<bool>) {
        if *stopped.borrow() {
            return;
        }
        let ready = self.calls.ready(&self.desk, &self.options);
        if self.calls.is_empty() && !ready.is_empty() {
            self.observe(ConsumerMetrics::round_begins);
        }
        for batch in ready {
            let (handler, options) = (Arc::clone(&self.handler), Arc::clone(&self.options));
            let (observer, stopped) = (self.observer.clone(), stopped.clone());
            let alive = self.calls.alive.subscribe();
            self.desk.begin(&batch);
            self.calls.begin(batch.clone(), async move {
                bisect::handle(handler, batch.held, &options, &observer, &stopped, &alive).await
            });
        }
    }

    /// Takes in what has ended, and says whether anything has. Waits for the first only where the source had nothing.
    pub(super) async fn end_calls(&mut self, came: bool) -> Result<bool, SourceError> {
        let mut over = Vec::new();
        if !came && !self.calls.is_empty() {
            let patience = self.calls.patience(self.desk.due());
            let held = self.held();
            let next = tokio::time::timeout(patience, self.calls.next());
            let ended = keeping(&mut self.source, &mut self.keep_at, &held, next).await?;
            over.extend(ended.ok().flatten());
        }
        Ok(self.take_in_ended(over).await)
    }

    /// Waits for the last calls, as long as a farewell takes, and takes in what became of them, whatever the source says
    /// meanwhile.
    pub(super) async fn last_calls(&mut self) -> Result<(), SourceError> {
        let (held, mut over) = (self.held(), Vec::new());
        let kept = {
            let last = async {
                while let Some(ended) = self.calls.next().await {
                    over.push(ended);
                }
            };
            let mut last = std::pin::pin!(tokio::time::timeout(self.options.drain_timeout, last));
            let kept = keeping(&mut self.source, &mut self.keep_at, &held, last.as_mut()).await;
            if kept.is_err() {
                // It is not kept any more. What is under way is still the handler's, and may be committed by now.
                let _ = last.await;
            }
            kept.map(drop)
        };
        self.bury_until = Some(Instant::now() + self.options.drain_timeout);
        self.take_in_ended(over).await;
        kept
    }

    /// These did not end, and are broken off. Their messages are given back.
    pub(super) async fn drop_calls(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let over = std::mem::take(&mut self.calls).break_off().await;
        if over.is_empty() {
            self.observe(|metrics| metrics.round_ends(std::iter::empty()));
        }
        self.take_in_ended(over).await;
    }

    /// These and what else has ended by now. Whether that is anything.
    pub(super) async fn take_in_ended(&mut self, mut over: Vec<Over>) -> bool {
        while let Some(ended) = self.calls.ended() {
            over.push(ended);
        }
        if over.is_empty() {
            return false;
        }
        self.observe(|metrics| {
            metrics.round_ends(over.iter().flat_map(|over| &over.told).map(|(_, tried)| tried));
            if !self.calls.is_empty() {
                metrics.round_begins();
            }
        });
        let (mut tried, mut told) = (Vec::new(), Vec::new());
        for mut over in over {
            tried.append(&mut over.tried.held);
            told.append(&mut over.told);
        }
        crash::point(crash::BEFORE_ACK);
        self.fold(told, &tried).await;
        true
    }
}
