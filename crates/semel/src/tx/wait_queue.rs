//! One waiter per intent, database and process: the others wait in memory for that one, not in the database.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;

use crate::intent::identity::IntentId;

type Queue = Arc<tokio::sync::Mutex<()>>;

/// An intent, and the database it is in. `None`: the caller has not asked which one it is.
type QueueKey = (IntentId, Option<String>);

/// Holds only intents that some call waits for, so it is no larger than the number of waiting calls.
static QUEUES: LazyLock<Mutex<HashMap<QueueKey, Queue>>> = LazyLock::new(Mutex::default);

/// The right to poll the database whether the first attempt is done.
pub(super) struct Turn {
    at: QueueKey,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turn {
    /// Waits for the turn until `deadline`.
    pub(super) async fn take(id: IntentId, database: Option<String>, deadline: Instant) -> Option<Self> {
        let at = (id, database);
        let queue = {
            let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(queues.entry(at.clone()).or_default())
        };
        // Created before waiting: a caller that gives up cleans up, too.
        let mut turn = Self { at, guard: None };
        if let Ok(guard) = Arc::clone(&queue).try_lock_owned() {
            turn.guard = Some(guard);
            return Some(turn);
        }
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let waited = tokio::time::timeout(left, queue.lock_owned()).await;
        turn.guard = waited.ok();
        turn.guard.is_some().then_some(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.guard = None;
        let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        // No other call can take a share of it while the map is locked.
        if queues.get(&self.at).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            queues.remove(&self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[tokio::test]
    async fn one_at_a_time_and_nothing_is_left_behind() {
        let id = IntentId::from_bytes([7; 32]);
        let first = Turn::take(id, None, soon()).await.unwrap();
        assert!(Turn::take(id, None, soon()).await.is_none());
        assert!(Turn::take(IntentId::from_bytes([8; 32]), None, soon()).await.is_some());
        let waiting = tokio::spawn(Turn::take(id, None, Instant::now() + Duration::from_secs(10)));
        tokio::task::yield_now().await;
        drop(first);
        let second = waiting.await.unwrap();
        assert!(second.is_some());
        drop(second);
        assert!(!QUEUES.lock().unwrap().contains_key(&(id, None)));
    }

    #[tokio::test]
    async fn an_intent_in_another_database_is_another_one() {
        let id = IntentId::from_bytes([9; 32]);
        let here = Turn::take(id, Some("here".to_owned()), soon()).await;
        assert!(here.is_some());
        assert!(Turn::take(id, Some("here".to_owned()), soon()).await.is_none());
        assert!(Turn::take(id, Some("there".to_owned()), soon()).await.is_some());
    }
}
