//! Guard expiry: a downstream service remembers an idempotency key for a limited time. After that the same key is a new
//! request to it, so a retry that comes later may have its effect a second time.
//!
//! The one rule, used by guards, phases, sagas and clients: **an attempt begins only if it ends before the key may be
//! forgotten**, see [`may_begin`]. The time is set by the first attempt, before its call, and never moves.

use std::time::Duration;

use super::policy::{StoreTime, millis};

/// How long before the key may be forgotten no attempt begins any more, besides the time an attempt may take: clocks
/// differ, and a call may be on its way for a while.
pub const SAFE_MARGIN: Duration = Duration::from_secs(5);

/// How long a key protects the calls of an attempt, as the attempt's operation says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct KeyWindow {
    /// How long the downstream service remembers a key, from the first attempt on, in ms. `None`: nothing is known, and
    /// it never ends.
    pub safe_for_ms: Option<u64>,
    /// How long an attempt may take, with the margin, in ms.
    pub call_ms: u64,
}

impl KeyWindow {
    /// No end is known.
    pub const ENDLESS: Self = Self { safe_for_ms: None, call_ms: 0 };

    /// Of an operation whose downstream remembers a key for `safe_for`, and whose attempts take at most `timeout`. The
    /// timeout counts without `safe_for`, too: an earlier attempt may have stored a time.
    pub fn new(safe_for: Option<Duration>, timeout: Duration) -> Self {
        Self { safe_for_ms: safe_for.map(millis), call_ms: millis(timeout.saturating_add(SAFE_MARGIN)) }
    }

    /// What is left of it if the first attempt began that long ago.
    pub(crate) fn begun_ago(self, ago: Duration) -> Self {
        let left = |ms: u64| ms.saturating_sub(millis(ago));
        Self { safe_for_ms: self.safe_for_ms.map(left), ..self }
    }

    /// Until when the key protects, if the first attempt begins now.
    pub fn begun(&self, now: StoreTime) -> Option<StoreTime> {
        self.safe_for_ms.map(|ms| now.plus_ms(ms))
    }
}

/// Whether an attempt that may take `call_ms` and begins now ends before the key may be forgotten.
///
/// ```
/// use semel::StoreTime;
/// use semel::intent::guard_expiry::may_begin;
///
/// let until = Some(StoreTime(1_000));
/// assert!(may_begin(StoreTime(899), 100, until));
/// assert!(!may_begin(StoreTime(900), 100, until));
/// assert!(may_begin(StoreTime(u64::MAX), 100, None));
/// ```
pub fn may_begin(now: StoreTime, call_ms: u64, safe_until: Option<StoreTime>) -> bool {
    safe_until
        .is_none_or(|until| time_left(Duration::from_millis(until.since_ms(now)), call_ms) > Duration::ZERO)
}

/// The same for clocks that count durations: within what time an attempt that may take `call_ms` has to begin, where the
/// key is remembered for that long from now on. Zero: none may begin.
pub(crate) fn time_left(remembered: Duration, call_ms: u64) -> Duration {
    remembered.saturating_sub(Duration::from_millis(call_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_begins_with_the_first_attempt() {
        let window = KeyWindow::new(Some(Duration::from_secs(60)), Duration::from_secs(10));
        assert_eq!(window, KeyWindow { safe_for_ms: Some(60_000), call_ms: 15_000 });
        assert_eq!(window.begun(StoreTime(7)), Some(StoreTime(60_007)));
        for (ago, left) in [(1, 59_000), (60, 0), (61, 0)] {
            assert_eq!(window.begun_ago(Duration::from_secs(ago)).safe_for_ms, Some(left));
        }
        let endless = KeyWindow::new(None, Duration::from_secs(10));
        assert_eq!(endless, KeyWindow { safe_for_ms: None, call_ms: 15_000 });
        assert_eq!(KeyWindow::ENDLESS.begun_ago(Duration::MAX), KeyWindow::ENDLESS);
        assert_eq!(KeyWindow::ENDLESS.begun(StoreTime(7)), None);
    }

    #[test]
    fn no_attempt_begins_that_may_end_too_late() {
        let until = Some(StoreTime(1_000));
        for (now, call_ms, begins) in [
            (0, 999, true),
            (0, 1_000, false),
            (999, 0, true),
            (1_000, 0, false),
            (899, 100, true),
            (900, 100, false),
            (u64::MAX, 1, false),
            (0, u64::MAX, false),
            (1_001, 0, false),
        ] {
            assert_eq!(may_begin(StoreTime(now), call_ms, until), begins, "{now} {call_ms}");
            assert!(may_begin(StoreTime(now), call_ms, None));
        }
    }
}
