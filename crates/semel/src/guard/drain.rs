//! Counts the calls in flight, so that they are bounded and a graceful shutdown can wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::GuardError;

/// What was left when a drain ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drained {
    /// Calls still in flight: their work goes on until the process ends, and may then be uncertain.
    pub calls: usize,
    /// Outcomes not recorded yet: their intents will become uncertain.
    pub unrecorded: usize,
}

impl Drained {
    /// Nothing is left: the process may end without leaving an intent uncertain.
    pub fn is_clean(&self) -> bool {
        self.calls == 0 && self.unrecorded == 0
    }
}

pub(super) struct Tracker {
    calls: Arc<Semaphore>,
    calls_max: usize,
    unrecorded: Arc<Semaphore>,
    unrecorded_max: usize,
    give_backs: Arc<Semaphore>,
    draining: AtomicBool,
}

/// Claims in doubt that are retried for as long as the store is down. Others are left to their lease sooner.
const GIVE_BACKS_MAX: usize = 1_000;

impl Tracker {
    pub(super) fn new(calls_max: usize, unrecorded_max: usize) -> Self {
        let (calls_max, unrecorded_max) = (bounded(calls_max), bounded(unrecorded_max));
        Self {
            calls: Arc::new(Semaphore::new(calls_max)),
            calls_max,
            unrecorded: Arc::new(Semaphore::new(unrecorded_max)),
            unrecorded_max,
            give_backs: Arc::new(Semaphore::new(GIVE_BACKS_MAX)),
            draining: AtomicBool::new(false),
        }
    }

    /// A permit for one call in flight, released on drop.
    pub(super) fn enter(&self) -> Result<OwnedSemaphorePermit, GuardError> {
        if self.draining.load(Ordering::SeqCst) {
            return Err(GuardError::Draining);
        }
        let permit = Arc::clone(&self.calls).try_acquire_owned();
        let permit = permit.map_err(|_| GuardError::Busy { calls_max: self.calls_max })?;
        // A drain that began in between either waits for this permit, or is seen by this check.
        if self.draining.load(Ordering::SeqCst) {
            return Err(GuardError::Draining);
        }
        Ok(permit)
    }

    /// A permit for one outcome that is being retried; `None` when there are too many.
    pub(super) fn unrecorded(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.unrecorded).try_acquire_owned().ok()
    }

    /// A permit to retry a claim in doubt for as long as the store is down; `None` when there are too many. A drain
    /// waits for these claims up to its limit: one that is given back in the background also holds a permit of
    /// [`unrecorded`](Self::unrecorded).
    pub(super) fn give_back_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.give_backs).try_acquire_owned().ok()
    }

    pub(super) async fn drain(&self, limit: Duration) -> Drained {
        self.draining.store(true, Ordering::SeqCst);
        let done = async {
            // Calls first: the last of them may still hand an outcome over to be recorded.
            let _calls = self.calls.acquire_many(self.calls_max as u32).await;
            let _unrecorded = self.unrecorded.acquire_many(self.unrecorded_max as u32).await;
        };
        let _ = tokio::time::timeout(limit, done).await;
        Drained {
            calls: self.calls_max - self.calls.available_permits(),
            unrecorded: self.unrecorded_max - self.unrecorded.available_permits(),
        }
    }
}

fn bounded(max: usize) -> usize {
    max.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize))
}
