//! Which data the authority holds, as far as it is known without asking.
//!
//! A database that was restored is another one, and what is cached of the one before must not be replayed. So the
//! lineage is asked for on a schedule of its own, whatever the traffic is, and the cache is believed only while the
//! last question is young: a process that stood still asks before it believes.
//!
//! ```text
//!  asked, answered ──────────── a new lineage ─────────────▶ 10 s after the question: nobody is answered by the cache
//!     │◀──── 3 s ────▶│ asked again: the new one counts
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use super::Shared;
use crate::store::{ErrorKind, Lineage, Store, StoreError};

/// How long after a new lineage was made an outcome of the old one may still be replayed from the cache.
pub const LINEAGE_WITHIN: Duration = Duration::from_secs(10);
/// How often it is asked for, and how long the answer may take. Both together are less than the bound.
const ASK_EVERY: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// How old the last answer may be while the authority cannot be asked: replays go on through an outage.
const KNOWN_FOR: Duration = Duration::from_secs(5 * 60);

pub(super) struct Known(Mutex<Told>);

#[derive(Clone, Copy)]
struct Told {
    lineage: Lineage,
    /// When the question was asked that was answered like this.
    asked: Instant,
    /// When it was last asked; later than `asked` while the authority cannot be reached.
    tried: Instant,
}

impl Known {
    pub(super) fn new(lineage: Lineage, asked: Instant) -> Self {
        Self(Mutex::new(Told { lineage, asked, tried: asked }))
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last that was heard, however long ago.
    pub(super) fn last(&self) -> Lineage {
        self.told().lineage
    }

    /// What the cache may be asked about.
    pub(super) fn at(&self, moment: Instant) -> Option<Lineage> {
        let told = self.told();
        let fresh = moment.duration_since(told.tried) < LINEAGE_WITHIN;
        (fresh && moment.duration_since(told.asked) < KNOWN_FOR).then_some(told.lineage)
    }

    pub(super) fn tell(&self, lineage: Lineage, asked: Instant) {
        let mut told = self.told();
        // An answer that was overtaken by a later one is worth nothing.
        if asked >= told.asked {
            *told = Told { lineage, asked, tried: asked.max(told.tried) };
        }
    }

    /// It was asked, and cannot be reached: so it cannot have answered anybody as another one either.
    fn unreachable(&self, asked: Instant) {
        let mut told = self.told();
        told.tried = told.tried.max(asked);
    }

    /// What came of a question. Any other error says nothing, and the cache rests until there is an answer.
    fn heard(&self, answer: &Result<Option<Lineage>, StoreError>, asked: Instant) {
        match answer {
            Ok(Some(lineage)) => self.tell(*lineage, asked),
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy) => {
                self.unreachable(asked);
            }
            Ok(None) | Err(_) => {}
        }
    }
}

/// Asks until the store is gone.
pub(super) async fn follow<S: Store>(shared: Weak<Shared<S>>) {
    let mut turns = tokio::time::interval(ASK_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    turns.tick().await;
    loop {
        turns.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        ask(&shared).await;
    }
}

async fn ask<S: Store>(shared: &Arc<Shared<S>>) {
    let asked = Instant::now();
    match tokio::time::timeout(ANSWER_MAX, shared.authority.lineage()).await {
        Ok(answer) => shared.lineage.heard(&answer, asked),
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
        let known = Known::new(one, start);
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(known.at(after(9)), Some(one));
        assert_eq!(known.at(after(10)), None, "nobody asked");
        known.tell(one, after(10));
        assert_eq!(known.at(after(19)), Some(one));
        known.tell(two, after(19));
        assert_eq!((known.at(after(20)), known.last()), (Some(two), two));
        known.tell(one, after(18));
        assert_eq!(known.at(after(20)), Some(two), "a late answer is no news");
    }

    #[test]
    fn an_outage_is_lived_through_for_a_while_and_another_error_is_not() {
        let lineage = Lineage::random();
        let start = Instant::now();
        let known = Known::new(lineage, start);
        let failed = |kind| Err(StoreError::new(kind, Fate::NotApplied, "no"));
        known.heard(&failed(ErrorKind::Misconfigured), start + Duration::from_secs(9));
        assert_eq!(known.at(start + LINEAGE_WITHIN), None);
        let mut at = start;
        for _ in 0..99 {
            at += ASK_EVERY;
            known.heard(&failed(ErrorKind::Unavailable), at);
            assert_eq!(known.at(at), Some(lineage));
        }
        known.heard(&failed(ErrorKind::Unavailable), start + KNOWN_FOR);
        assert_eq!(known.at(start + KNOWN_FOR), None);
        assert!(ASK_EVERY + ANSWER_MAX < LINEAGE_WITHIN);
    }
}
