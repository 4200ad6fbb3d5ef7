//! The store's clock, which jumps.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use semel::StoreTime;

use crate::stage::Stage;

/// A day. A claim whose lease ends later than that was made under a clock that was ahead.
const LEASE_LONGEST_MS: i64 = 24 * 60 * 60 * 1_000;

/// Virtual time with jumps. Clones share it.
#[derive(Clone)]
pub(super) struct StoreClock {
    begins_ms: i64,
    stage: Stage,
    jumps: Arc<Mutex<Vec<(Duration, i64)>>>,
}

impl StoreClock {
    pub(super) fn new(stage: &Stage) -> Self {
        let begins = stage.wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { begins_ms: begins.as_millis() as i64, stage: stage.clone(), jumps: Arc::default() }
    }

    fn jumps(&self) -> MutexGuard<'_, Vec<(Duration, i64)>> {
        self.jumps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn jump(&self, ms: i64) {
        self.jumps().push((self.stage.elapsed(), ms));
    }

    pub(super) fn now(&self) -> StoreTime {
        let offset: i64 = self.jumps().iter().map(|(_, ms)| ms).sum();
        let now = self.begins_ms + self.stage.elapsed().as_millis() as i64 + offset;
        StoreTime(now.max(0) as u64)
    }

    /// Whether the clock jumped in the last `span` so that a live owner is believed dead: ahead, or back by more than the
    /// longest lease.
    pub(super) fn hides_owners_in(&self, span: Duration) -> bool {
        let from = self.stage.elapsed().saturating_sub(span);
        let hides = |ms: i64| ms > 0 || ms <= -LEASE_LONGEST_MS;
        self.jumps().iter().any(|(when, ms)| *when >= from && hides(*ms))
    }

    /// The most the clock rose between two moments of this span: what is kept for longer cannot have expired in it.
    pub(super) fn rise_ms(&self, from: Duration, to: Duration) -> u64 {
        let ms = |at: Duration| at.as_millis() as i64;
        // Positions are relative to the beginning of the span.
        let (mut clock, mut at, mut lowest, mut rise) = (0, from, 0, 0);
        for (when, jump) in self.jumps().iter().filter(|(when, _)| (from..=to).contains(when)) {
            clock += ms(*when) - ms(at);
            rise = rise.max(clock - lowest);
            clock += jump;
            at = *when;
            lowest = lowest.min(clock);
            rise = rise.max(clock - lowest);
        }
        clock += ms(to) - ms(at);
        rise.max(clock - lowest).max(0) as u64
    }
}
