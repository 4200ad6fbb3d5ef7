//! The authority's lineage, cached.
//!
//! A restored database has other data, and entries cached from the data before must not be replayed. So the lineage is
//! polled on a schedule of its own, whatever the traffic is, and the cache is trusted only while the last poll is
//! recent: a process that was suspended polls again before it trusts the cache.
//!
//! ```text
//!  asked, answered ──────────── a new lineage ─────────────▶ 10 s after asking: the cache is not used
//!     │◀──── 3 s ────▶│ asked again: the new lineage counts
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use super::Shared;
use crate::store::{ErrorKind, Lineage, Store, StoreError};

/// How long after a new lineage was made an outcome of the old one may still be replayed from the cache.
pub const LINEAGE_WITHIN: Duration = Duration::from_secs(10);
/// Poll interval and timeout. Together they are less than the bound above.
const ASK_EVERY: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// How old the last answer may be while the authority cannot be asked: replays go on through an outage.
const KNOWN_FOR: Duration = Duration::from_secs(5 * 60);

pub(super) struct LineageCache(Mutex<LastAnswer>);

#[derive(Clone, Copy)]
struct LastAnswer {
    lineage: Lineage,
    /// When this answer was asked for.
    asked: Instant,
    /// When it was last asked; later than `asked` while the authority cannot be reached.
    tried: Instant,
}

impl LineageCache {
    pub(super) fn new(lineage: Lineage, asked: Instant) -> Self {
        Self(Mutex::new(LastAnswer { lineage, asked, tried: asked }))
    }

    fn lock(&self) -> MutexGuard<'_, LastAnswer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last lineage the authority gave, however long ago.
    pub(super) fn last(&self) -> Lineage {
        self.lock().lineage
    }

    /// The lineage under which the cache may be used at that moment; `None` while it may not.
    pub(super) fn at(&self, moment: Instant) -> Option<Lineage> {
        let last = self.lock();
        let fresh = moment.duration_since(last.tried) < LINEAGE_WITHIN;
        (fresh && moment.duration_since(last.asked) < KNOWN_FOR).then_some(last.lineage)
    }

    pub(super) fn update(&self, lineage: Lineage, asked: Instant) {
        let mut last = self.lock();
        // An answer that arrives after a newer one is ignored.
        if asked >= last.asked {
            *last = LastAnswer { lineage, asked, tried: asked.max(last.tried) };
        }
    }

    /// The authority was asked and could not be reached, so no other caller can have got a new lineage from it either.
    fn unreachable(&self, asked: Instant) {
        let mut last = self.lock();
        last.tried = last.tried.max(asked);
    }

    /// Records the result of a poll. Other errors prove nothing, and the cache is not used until there is an answer.
    fn record(&self, answer: &Result<Option<Lineage>, StoreError>, asked: Instant) {
        match answer {
            Ok(Some(lineage)) => self.update(*lineage, asked),
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy) => {
                self.unreachable(asked);
            }
            Ok(None) | Err(_) => {}
        }
    }
}

/// Polls the lineage until the store is dropped.
pub(super) async fn poll<S: Store>(shared: Weak<Shared<S>>) {
    let mut turns = tokio::time::interval(ASK_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    turns.tick().await;
    loop {
        turns.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        poll_once(&shared).await;
    }
}

async fn poll_once<S: Store>(shared: &Arc<Shared<S>>) {
    let asked = Instant::now();
    match tokio::time::timeout(ANSWER_MAX, shared.authority.lineage()).await {
        Ok(answer) => shared.lineage.record(&answer, asked),
        Err(_) => shared.lineage.unreachable(asked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Fate;

    #[test]
    fn it_is_known_for_as_long_as_it_is_asked_for() {
        let (one, two) = (Lineage::random(), Lineage::random());
        let start = Instant::now();
        let cache = LineageCache::new(one, start);
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(cache.at(after(9)), Some(one));
        assert_eq!(cache.at(after(10)), None, "the last poll is too old");
        cache.update(one, after(10));
        assert_eq!(cache.at(after(19)), Some(one));
        cache.update(two, after(19));
        assert_eq!((cache.at(after(20)), cache.last()), (Some(two), two));
        cache.update(one, after(18));
        assert_eq!(cache.at(after(20)), Some(two), "a late answer is ignored");
    }

    #[test]
    fn an_outage_is_lived_through_for_a_while_and_another_error_is_not() {
        let lineage = Lineage::random();
        let start = Instant::now();
        let cache = LineageCache::new(lineage, start);
        let failed = |kind| Err(StoreError::new(kind, Fate::NotApplied, "no"));
        cache.record(&failed(ErrorKind::Misconfigured), start + Duration::from_secs(9));
        assert_eq!(cache.at(start + LINEAGE_WITHIN), None);
        let mut at = start;
        for _ in 0..99 {
            at += ASK_EVERY;
            cache.record(&failed(ErrorKind::Unavailable), at);
            assert_eq!(cache.at(at), Some(lineage));
        }
        cache.record(&failed(ErrorKind::Unavailable), start + KNOWN_FOR);
        assert_eq!(cache.at(start + KNOWN_FOR), None);
        assert!(ASK_EVERY + ANSWER_MAX < LINEAGE_WITHIN);
    }
}
