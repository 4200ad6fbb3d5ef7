//! Old marks, and how old that is: what the source tells, and the task that forgets them.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::call::AbortOnDrop;
use super::handler::{DeadLetters, Handler};
use super::retention::{self, PruneChunk};
use super::run::Consumer;
use crate::source::Source;

/// How often the source is asked how long it keeps messages, and how long that may take.
const ASK_EVERY: Duration = Duration::from_secs(3_600);
const ASK_WAIT: Duration = Duration::from_secs(5);
/// How soon a source that did not tell is asked again, and how often, before it is taken for one that never does. Until then
/// nothing is forgotten: what is old is not known.
const ASK_AGAIN: Duration = Duration::from_secs(60);
const ASKS_MAX: u32 = 30;

/// What is known of the window, and who forgets.
pub(super) struct Pruner {
    pub(super) chunk: Option<PruneChunk>,
    window: watch::Sender<Option<Duration>>,
    /// When the source is asked how long it keeps messages.
    ask_at: Option<Instant>,
    retention: Option<Duration>,
    /// How often it was asked and has never told.
    asked: u32,
}

impl Default for Pruner {
    fn default() -> Self {
        Self { chunk: None, window: watch::channel(None).0, ask_at: None, retention: None, asked: 0 }
    }
}

impl<S: Source, H: Handler, D: DeadLetters> Consumer<S, H, D> {
    /// Old marks are forgotten until this is dropped.
    pub(super) fn forget_marks(&self) -> Option<AbortOnDrop> {
        let chunk = self.upkeep.chunk.clone()?;
        let (metrics, window) = (self.observer.metrics.clone(), self.upkeep.window.subscribe());
        let told = move |marks| metrics.iter().for_each(|metrics| metrics.forgotten(marks));
        let forget = retention::forget(chunk, self.name.clone(), self.options.prune_every, window, told);
        Some(AbortOnDrop(tokio::spawn(forget).abort_handle()))
    }

    /// Asks the source how long it keeps messages, and sees that marks are kept for as long.
    pub(super) async fn ask_retention(&mut self) {
        let nobody_forgets = self.upkeep.chunk.is_none() && self.options.window.is_none();
        if nobody_forgets || self.upkeep.ask_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        self.upkeep.ask_at = Some(Instant::now() + ASK_EVERY);
        let told = tokio::time::timeout(ASK_WAIT, self.source.retention()).await.ok().flatten();
        // What it does not tell now it may have told before.
        let retention = told.or(self.upkeep.retention);
        if retention.is_none() && self.options.window.is_none() && self.upkeep.asked < ASKS_MAX {
            self.upkeep.asked += 1;
            self.upkeep.ask_at = Some(Instant::now() + ASK_AGAIN);
            return;
        }
        let first = self.upkeep.window.borrow().is_none();
        let changed = std::mem::replace(&mut self.upkeep.retention, retention) != retention;
        let kept = retention::kept(self.options.window, retention);
        self.upkeep.window.send_replace(Some(kept.window));
        self.observe(|metrics| metrics.keeps(kept.window, retention));
        let (window, consumer) = (kept.window, &self.name);
        match kept.too_short_for {
            Some(retention) if first || changed => tracing::error!(
                ?window,
                ?retention,
                consumer,
                "marks are forgotten before the broker forgets messages: one that comes again after the window is \
                 handled AGAIN; make the window longer than the retention"
            ),
            _ if first => tracing::info!(?window, ?retention, consumer, "marks are kept"),
            _ => {}
        }
    }
}
