//! Retention: deletes expired records.

use std::time::Duration;

use tokio::time::Instant;

use super::SPREAD;
use crate::backoff::spread;
use crate::guard::Guard;
use crate::store::{ErrorKind, Fate, Store, StoreError};
use crate::timeout::bounded;

/// How long one batch may take before it counts as in doubt.
const BATCH_WAIT: Duration = Duration::from_secs(60);
/// The pause after a run that left records: other work gets its turn, and a backlog still goes away.
const PAUSE_WITH_MORE: Duration = Duration::from_secs(1);

/// Bounds of a [`Sweeper`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SweepLimits {
    /// How often to sweep, give or take a half.
    pub every: Duration,
    /// Records deleted by one request to the store: claims wait no longer than that takes.
    pub batch_records: usize,
    /// Records deleted in one run.
    pub run_records_max: usize,
    /// How long one run may take.
    pub run_time_max: Duration,
}

impl Default for SweepLimits {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(30),
            batch_records: 1_000,
            run_records_max: 100_000,
            run_time_max: Duration::from_secs(30),
        }
    }
}

/// The result of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swept {
    /// Records deleted.
    pub records: usize,
    /// A limit ended the run; there are more.
    pub more: bool,
}

/// Periodically deletes records whose retention is over. [`Store::sweep`] never deletes live claims and uncertain
/// intents.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use semel::{Guard, recover::Sweeper, store::memory::MemoryStore};
///
/// let guard = Guard::new(MemoryStore::new());
/// let sweeping = tokio::spawn(Sweeper::new(&guard).run());
/// // … until the service stops:
/// sweeping.abort();
/// # });
/// ```
pub struct Sweeper<S> {
    guard: Guard<S>,
    limits: SweepLimits,
}

impl<S: Store> Sweeper<S> {
    /// Sweeps the guard's store, and counts in its metrics.
    pub fn new(guard: &Guard<S>) -> Self {
        Self { guard: guard.clone(), limits: SweepLimits::default() }
    }

    /// Replaces the default limits.
    pub fn limits(mut self, limits: SweepLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sweeps until nothing is left or a limit is reached. Records deleted before an error stay deleted.
    pub async fn run_once(&self) -> Result<Swept, StoreError> {
        let SweepLimits { batch_records, run_records_max, run_time_max, .. } = self.limits;
        let (began, mut records) = (Instant::now(), 0);
        loop {
            let batch = batch_records.max(1).min(run_records_max.saturating_sub(records));
            if batch == 0 || began.elapsed() >= run_time_max {
                return Ok(Swept { records, more: true });
            }
            let late = || {
                let message = format!("the store did not finish a sweep within {BATCH_WAIT:?}");
                StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message)
            };
            let swept = bounded(BATCH_WAIT, self.guard.store().sweep(batch), late).await?;
            self.guard.metrics().swept(swept);
            records += swept;
            if swept < batch {
                return Ok(Swept { records, more: false });
            }
            // A store that answers without waiting must not block the thread.
            tokio::task::yield_now().await;
        }
    }

    /// Sweeps periodically, until dropped.
    pub async fn run(self) {
        let mut pause = spread(self.limits.every, SPREAD);
        loop {
            tokio::time::sleep(pause).await;
            pause = spread(self.limits.every, SPREAD);
            match self.run_once().await {
                Ok(swept) => {
                    if swept.records > 0 {
                        tracing::debug!(records = swept.records, "deleted expired records");
                    }
                    if swept.more {
                        pause = pause.min(PAUSE_WITH_MORE);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "expired records could not be deleted; the next sweep tries again")
                }
            }
        }
    }
}

impl<S> std::fmt::Debug for Sweeper<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sweeper").field("limits", &self.limits).finish_non_exhaustive()
    }
}
