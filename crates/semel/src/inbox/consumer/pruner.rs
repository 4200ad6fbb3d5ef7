//! Retention of marks: asks the source how long it keeps messages, and runs the task that prunes old marks.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::call::AbortOnDrop;
use super::handler::{DeadLetters, Handler};
use super::retention::{self, PruneChunk};
use super::run::Consumer;
use crate::source::Source;

/// How often to ask the source for its retention, and how long to wait for the answer.
const ASK_EVERY: Duration = Duration::from_secs(3_600);
const ASK_WAIT: Duration = Duration::from_secs(5);
/// How soon to ask a source again that gave no answer, and how often before assuming that it never will. Until then
/// nothing is pruned, because the window is not known.
const ASK_AGAIN: Duration = Duration::from_secs(60);
const ASKS_MAX: u32 = 30;

/// The window as far as it is known, and what prunes.
pub(super) struct Pruner {
    pub(super) chunk: Option<PruneChunk>,
    window: watch::Sender<Option<Duration>>,
    /// When to ask the source for its retention next.
    ask_at: Option<Instant>,
    retention: Option<Duration>,
    /// How often it was asked without ever answering.
    asked: u32,
}

impl Default for Pruner {
    fn default() -> Self {
        Self { chunk: None, window: watch::channel(None).0, ask_at: None, retention: None, asked: 0 }
    }
}

impl<S: Source, H: Handler, D: DeadLetters> Consumer<S, H, D> {
    /// Prunes old marks until the returned guard is dropped.
    pub(super) fn start_pruning(&self) -> Option<AbortOnDrop> {
        let chunk = self.pruner.chunk.clone()?;
        let (metrics, window) = (self.observer.metrics.clone(), self.pruner.window.subscribe());
        let count = move |marks| metrics.iter().for_each(|metrics| metrics.forgotten(marks));
        let prune = retention::prune(chunk, self.name.clone(), self.options.prune_interval, window, count);
        Some(AbortOnDrop(tokio::spawn(prune).abort_handle()))
    }

    /// Asks the source for its retention, and sets the window of marks by it.
    pub(super) async fn ask_retention(&mut self) {
        let nothing_to_prune = self.pruner.chunk.is_none() && self.options.window.is_none();
        if nothing_to_prune || self.pruner.ask_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        self.pruner.ask_at = Some(Instant::now() + ASK_EVERY);
        let answer = tokio::time::timeout(ASK_WAIT, self.source.retention()).await.ok().flatten();
        // Without an answer now, an earlier one still holds.
        let retention = answer.or(self.pruner.retention);
        if retention.is_none() && self.options.window.is_none() && self.pruner.asked < ASKS_MAX {
            self.pruner.asked += 1;
            self.pruner.ask_at = Some(Instant::now() + ASK_AGAIN);
            return;
        }
        let first = self.pruner.window.borrow().is_none();
        let changed = std::mem::replace(&mut self.pruner.retention, retention) != retention;
        let kept = retention::kept(self.options.window, retention);
        self.pruner.window.send_replace(Some(kept.window));
        self.observe(|metrics| metrics.keeps(kept.window, retention));
        let (window, consumer) = (kept.window, &self.name);
        match kept.too_short_for {
            Some(retention) if first || changed => tracing::error!(
                ?window,
                ?retention,
                consumer,
                "the dedup window is shorter than the broker's retention: a message redelivered after the window is \
                 handled AGAIN; make the window longer than the retention"
            ),
            _ if first => tracing::info!(?window, ?retention, consumer, "the dedup window is set"),
            _ => {}
        }
    }
}
