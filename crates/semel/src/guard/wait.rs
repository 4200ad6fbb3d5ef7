//! Wait: duplicates that wait for the first call, woken in the same process, polling with backoff across processes.
//! A waiter holds no connection, no lock and no thread.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::answer::GuardError;
use super::operation::Guarded;
use crate::backoff::Backoff;
use crate::intent::identity::{FirstBytes, IntentId};
use crate::intent::policy::InFlight;
use crate::intent::state::State;
use crate::observe::Phase;
use crate::store::{Existing, Store};

/// When a caller that got "in progress" should retry.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const SHARDS: usize = 16;
/// Between two polls of the store. With jitter, so that many waiters do not poll at the same moment.
const POLL_BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500)).jitter(0.5);

/// What a duplicate gets that does not wait, or has waited long enough.
pub(super) fn in_flight() -> GuardError {
    GuardError::InFlight { retry_after: RETRY_AFTER }
}

/// How one caller waits.
pub(super) struct Wait {
    deadline: Option<Instant>,
    claimed_again: bool,
    /// The last pause between two polls.
    pause: Duration,
}

impl Wait {
    pub(super) fn new(in_flight: InFlight) -> Self {
        let deadline = match in_flight {
            InFlight::Reject => None,
            InFlight::Wait(wait) => Some(Instant::now() + wait),
        };
        Self { deadline, claimed_again: false, pause: Duration::ZERO }
    }
}

impl<S: Store> Guarded<S> {
    /// Returns when another claim makes sense, or with "in progress" when this caller may wait no longer.
    pub(super) async fn wait_for(&self, existing: Existing, wait: &mut Wait) -> Result<(), GuardError> {
        let id = existing.record.intent.id();
        let Some(deadline) = wait.deadline.filter(|deadline| Instant::now() < *deadline) else {
            self.of.metrics.in_progress();
            return Err(in_flight());
        };
        let end = self.of.guard.inner.waiters.end_of(&id);
        if end.is_none() && !wait.claimed_again {
            // It may have ended here between our claim and this check: claim once more before polling.
            wait.claimed_again = true;
            return Ok(());
        }
        match end {
            Some(end) => {
                let _ = tokio::time::timeout_at(deadline, end).await;
            }
            None => self.poll_until_changed(&existing, deadline, wait).await,
        }
        Ok(())
    }

    /// Another process has it: polls, reading only, until the record has changed or time is up.
    async fn poll_until_changed(&self, existing: &Existing, deadline: Instant, wait: &mut Wait) {
        let id = existing.record.intent.id();
        let seen = existing.record.head;
        while Instant::now() < deadline {
            wait.pause = POLL_BACKOFF.next(wait.pause);
            tokio::time::sleep_until((Instant::now() + POLL_BACKOFF.jittered(wait.pause)).min(deadline))
                .await;
            match self.ask(Phase::Read, pin!(self.of.guard.inner.store.get(id))).await {
                // A renewal changes the lease, nothing else.
                Ok(Some(record))
                    if record.head.state == State::InProgress && record.head.epoch == seen.epoch => {}
                Ok(_) => return,
                Err(_) => {}
            }
        }
    }
}

type Shard = HashMap<IntentId, Mark, BuildHasherDefault<FirstBytes>>;

/// A task of this process is working on an intent. Most have no waiters, so the first waiter makes the [`Notify`].
struct Mark {
    number: u64,
    notify: Option<Arc<Notify>>,
}

/// The intents this process is working on.
pub(super) struct Waiters {
    shards: Arc<[Mutex<Shard>]>,
    marks: AtomicU64,
}

impl Default for Waiters {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), marks: AtomicU64::new(0) }
    }
}

fn locked<'a>(shards: &'a [Mutex<Shard>], id: &IntentId) -> MutexGuard<'a, Shard> {
    let shard = usize::from(id.as_bytes()[30]) % SHARDS;
    // No panic can leave this map half changed, so a poisoned lock is fine.
    shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiters {
    /// Marks an intent as worked on in this process. Dropping the mark wakes all waiters.
    pub(super) fn working_on(&self, id: IntentId) -> WorkingOn {
        let number = self.marks.fetch_add(1, Ordering::Relaxed);
        let before = locked(&self.shards, &id).insert(id, Mark { number, notify: None });
        // A protected effect was taken over: waiters of the previous task claim again, and find this one.
        wake(before);
        WorkingOn { shards: Arc::clone(&self.shards), id, number }
    }

    /// Whether a task of this process works on the intent.
    pub(super) fn is_worked_on(&self, id: &IntentId) -> bool {
        locked(&self.shards, id).contains_key(id)
    }

    /// Resolves when this process no longer works on the intent; `None` if it does not now.
    pub(super) fn end_of(&self, id: &IntentId) -> Option<impl Future<Output = ()> + Send + 'static> {
        let mut shard = locked(&self.shards, id);
        let notify = shard.get_mut(id)?.notify.get_or_insert_default();
        // Subscribed before this returns, so an end before the first poll is not missed.
        Some(Arc::clone(notify).notified_owned())
    }
}

/// See [`Waiters::working_on`].
pub(super) struct WorkingOn {
    shards: Arc<[Mutex<Shard>]>,
    id: IntentId,
    number: u64,
}

impl Drop for WorkingOn {
    fn drop(&mut self) {
        let mut shard = locked(&self.shards, &self.id);
        // Another task here may have taken over a protected effect: its mark is not ours to remove.
        if shard.get(&self.id).is_none_or(|mark| mark.number != self.number) {
            return;
        }
        let mark = shard.remove(&self.id);
        drop(shard);
        wake(mark);
    }
}

fn wake(mark: Option<Mark>) {
    if let Some(notify) = mark.and_then(|mark| mark.notify) {
        notify.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_is_not_missed_between_looking_and_waiting() {
        let waiters = Waiters::default();
        let id = IntentId::from_bytes([7; 32]);
        assert!(waiters.end_of(&id).is_none());
        let working = waiters.working_on(id);
        let end = waiters.end_of(&id).unwrap();
        drop(working);
        end.await;
        assert!(waiters.end_of(&id).is_none());
    }
}
