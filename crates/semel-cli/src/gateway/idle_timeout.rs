//! Idle timeouts of client connections.
//!
//! There is no timer per phase: the code that uses a connection records the time, and the connection's own task checks
//! these times at an interval.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Not set.
const NEVER: u64 = u64::MAX;

/// The timeouts of a connection's phases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Phases {
    /// From the first byte of a request's head to its last.
    pub(super) header_read: Duration,
    /// Between two requests.
    pub(super) idle: Duration,
    /// While the client reads nothing.
    pub(super) write_idle: Duration,
}

impl Phases {
    /// The interval of checks: late by at most a quarter of the shortest timeout.
    pub(super) fn check_every(&self) -> Duration {
        let shortest = self.header_read.min(self.idle).min(self.write_idle);
        (shortest / 4).clamp(Duration::from_millis(20), Duration::from_secs(5))
    }
}

/// What to do with a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    Nothing,
    /// It has been idle: shut it down gracefully.
    Idle,
    /// A head was never completed, or the client does not read: close it.
    Stuck,
}

/// The recorded activity of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    born: Instant,
    active: AtomicUsize,
    idle_since: AtomicU64,
    head_since: AtomicU64,
    blocked_since: AtomicU64,
}

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            born: Instant::now(),
            active: AtomicUsize::new(0),
            idle_since: AtomicU64::new(0),
            // A new connection is expected to send a head, as if it had begun one.
            head_since: AtomicU64::new(0),
            blocked_since: AtomicU64::new(NEVER),
        })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(NEVER - 1)
    }

    /// A head has begun, now or earlier.
    pub(super) fn head_begun(&self) {
        if self.head_since.load(Ordering::Relaxed) == NEVER {
            self.head_since.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    pub(super) fn head_whole(&self) {
        self.head_since.store(NEVER, Ordering::Relaxed);
    }

    pub(super) fn write_blocked(&self) {
        if self.blocked_since.load(Ordering::Relaxed) == NEVER {
            self.blocked_since.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    pub(super) fn write_went_on(&self) {
        if self.blocked_since.load(Ordering::Relaxed) != NEVER {
            self.blocked_since.store(NEVER, Ordering::Relaxed);
        }
    }

    /// A request is in flight until the returned guard is dropped.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.active.fetch_add(1, Ordering::SeqCst);
        Busy(Arc::clone(self))
    }

    /// No request is in flight, and nothing waits to be written.
    pub(super) fn is_quiet(&self) -> bool {
        self.active.load(Ordering::SeqCst) == 0 && self.blocked_since.load(Ordering::Relaxed) == NEVER
    }

    pub(super) fn due(&self, phases: &Phases) -> Due {
        let now = self.now_ms();
        let over = |since: u64, limit: Duration| {
            since != NEVER && u128::from(now.saturating_sub(since)) > limit.as_millis()
        };
        if over(self.blocked_since.load(Ordering::Relaxed), phases.write_idle) {
            return Due::Stuck;
        }
        if self.active.load(Ordering::SeqCst) > 0 {
            return Due::Nothing;
        }
        if over(self.head_since.load(Ordering::Relaxed), phases.header_read) {
            return Due::Stuck;
        }
        if over(self.idle_since.load(Ordering::Relaxed), phases.idle) { Due::Idle } else { Due::Nothing }
    }
}

/// See [`Activity::busy`].
#[derive(Debug)]
pub(super) struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.now_ms(), Ordering::Relaxed);
        // If the next head has begun meanwhile, its time counts from now.
        let head = &self.0.head_since;
        if head.load(Ordering::Relaxed) != NEVER {
            head.store(self.0.now_ms(), Ordering::Relaxed);
        }
        self.0.active.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Phases =
        Phases { header_read: Duration::ZERO, idle: Duration::ZERO, write_idle: Duration::ZERO };
    const LATER: Phases = Phases {
        header_read: Duration::from_secs(60),
        idle: Duration::from_secs(60),
        write_idle: Duration::from_secs(60),
    };

    #[test]
    fn each_phase_has_its_end() {
        let activity = Activity::new();
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(activity.due(&LATER), Due::Nothing);
        assert_eq!(activity.due(&NOW), Due::Stuck, "it never sent anything");
        activity.head_whole();
        let busy = activity.busy();
        assert_eq!(activity.due(&NOW), Due::Nothing, "a request in flight has its own timeouts");
        activity.write_blocked();
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(activity.due(&NOW), Due::Stuck, "the client does not read the answer");
        activity.write_went_on();
        drop(busy);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(activity.due(&NOW), Due::Idle);
        assert_eq!(activity.due(&Phases { idle: Duration::from_secs(60), ..NOW }), Due::Nothing);
        activity.head_begun();
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(activity.due(&Phases { idle: Duration::from_secs(60), ..NOW }), Due::Stuck);
    }
}
