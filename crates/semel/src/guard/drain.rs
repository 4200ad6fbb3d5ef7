//! Counting what is under way, so that it is bounded and can be waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::GuardError;

/// What was left when a drain ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drained {
    /// Calls still under way: their work goes on until the process ends, and may then be uncertain.
    pub calls: usize,
    /// Outcomes not recorded yet: their intents will be uncertain.
    pub unrecorded: usize,
}

impl Drained {
    /// Nothing is left: the process may end without leaving doubt behind.
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

/// Claims in doubt that are asked about for as long as the store is down. Others are left to their lease sooner.
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

    /// A place among the calls under way, given back when dropped.
    pub(super) fn enter(&self) -> Result<OwnedSemaphorePermit, GuardError> {
        if self.draining.load(Ordering::SeqCst) {
            return Err(GuardError::Draining);
        }
        let permit = Arc::clone(&self.calls).try_acquire_owned();
        let permit = permit.map_err(|_| GuardError::Busy { calls_max: self.calls_max })?;
        // A drain that began in between waits for this permit, or this call sees the drain: not neither.
        if self.draining.load(Ordering::SeqCst) {
            return Err(GuardError::Draining);
        }
        Ok(permit)
    }

    /// A place among the outcomes being tried again; `None` when there are too many.
    pub(super) fn unrecorded(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.unrecorded).try_acquire_owned().ok()
    }

    /// Permits asking about a claim in doubt for as long as the store is down; `None` when there are too many. A drain waits
    /// for these claims up to its limit, as for outcomes: whoever gives one back in the background counts among those, too.
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
