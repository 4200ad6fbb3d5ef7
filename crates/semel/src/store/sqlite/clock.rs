//! The store's clock: the machine's, monotonic within a process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::intent::policy::StoreTime;
use crate::store::encoding::MS_MAX;

pub(super) struct Clock {
    source: Box<dyn Fn() -> StoreTime + Send + Sync>,
    latest: AtomicU64,
}

impl Clock {
    pub(super) fn new(source: impl Fn() -> StoreTime + Send + Sync + 'static) -> Self {
        Self { source: Box::new(source), latest: AtomicU64::new(0) }
    }

    /// If the machine's clock is set back, this one stands still until it has caught up: an expired lease must not
    /// become valid again.
    pub(super) fn now(&self) -> StoreTime {
        let now = (self.source)().0.min(MS_MAX);
        StoreTime(self.latest.fetch_max(now, Ordering::Relaxed).max(now))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            StoreTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_clock_set_back_stands_still() {
        let source = Arc::new(AtomicU64::new(100));
        let clock = Clock::new({
            let source = source.clone();
            move || StoreTime(source.load(Ordering::Relaxed))
        });
        let seen = [100, 90, 101, u64::MAX].map(|ms| {
            source.store(ms, Ordering::Relaxed);
            clock.now().0
        });
        assert_eq!(seen, [100, 100, 101, MS_MAX]);
    }
}
