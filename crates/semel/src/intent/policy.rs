//! What protects the effect, and for how long things hold.

use std::fmt;
use std::time::Duration;

use super::key::Key;

/// A moment by the store's clock, in ms since 1970. Leases and expiry are judged by this clock only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct StoreTime(pub u64);

impl StoreTime {
    /// This moment plus `ms`.
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds since `earlier`; zero if that is later.
    pub fn since_ms(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The longest lease, in ms. One that ends later than this was made while the store's clock was wrong.
pub const LEASE_MS_MAX: u64 = 24 * 60 * 60 * 1_000;

/// What protects the effect itself: the question semel is built around.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Effect {
    /// Nothing else protects. After a crash, a lost lease or a broken call its fate is unknown: uncertain.
    #[default]
    Opaque,
    /// The downstream honours our key: running again, even concurrently, is safe.
    Keyed,
    /// Claim, rows and outcome are one commit: before it nothing happened, so it may run again at once.
    Atomic,
}

impl Effect {
    /// All of them, for tables.
    pub const ALL: [Self; 3] = [Self::Opaque, Self::Keyed, Self::Atomic];

    /// Whether running again is safe when the fate of an earlier run is unknown.
    pub fn may_rerun(self) -> bool {
        !matches!(self, Self::Opaque)
    }

    /// Its name in configuration and docs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Opaque => "opaque",
            Self::Keyed => "keyed",
            Self::Atomic => "atomic",
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How long an outcome is remembered, from the moment it was recorded: the window in which duplicates are
/// caught. A correctness setting, not housekeeping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Retention {
    /// For this many milliseconds.
    Ms(u64),
    /// Until it is deleted by hand.
    Forever,
}

impl Retention {
    /// A day, the default.
    pub const DAY: Self = Self::Ms(24 * 60 * 60 * 1000);

    /// When an outcome recorded at `now` is forgotten.
    pub fn expiry(self, now: StoreTime) -> Option<StoreTime> {
        match self {
            Self::Ms(ms) => Some(now.plus_ms(ms)),
            Self::Forever => None,
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self::DAY
    }
}

impl From<Duration> for Retention {
    fn from(duration: Duration) -> Self {
        Self::Ms(millis(duration))
    }
}

/// Whole milliseconds, rounded up so that a short duration never becomes none.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Ready-made settings for common kinds of work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Preset {
    /// Seven days, and the authority is asked before a replay.
    Payment,
    /// Seven days.
    Order,
    /// One hour.
    Notification,
}

impl Preset {
    /// Its retention.
    pub fn retention(self) -> Retention {
        const HOUR_MS: u64 = 60 * 60 * 1000;
        match self {
            Self::Payment | Self::Order => Retention::Ms(7 * 24 * HOUR_MS),
            Self::Notification => Retention::Ms(HOUR_MS),
        }
    }

    /// Whether the authority is asked before a replay, where a cache stands in front of it.
    pub fn verify(self) -> bool {
        self == Self::Payment
    }
}

/// What a later caller of an intent in flight gets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum InFlight {
    /// "In progress", at once.
    #[default]
    Reject,
    /// The outcome, if it comes within this time; "in progress" otherwise.
    Wait(Duration),
}

/// What happens when the store cannot be asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum StoreDown {
    /// Nothing runs. The default: an unguarded payment is worse than none.
    #[default]
    Closed,
    /// The work runs unguarded, and reports it.
    Open,
}

/// What keys look like, where the operation restricts them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum KeyFormat {
    /// Any key. After retention a late retry is a new intent.
    #[default]
    Any,
    /// UUIDv7 or ULID: the key carries the time the intent was made, so a retry that comes after its outcome may have
    /// been forgotten can be refused instead of run.
    TimeOrdered {
        /// How far the clock that made the key may be off, in ms.
        skew_ms: u64,
    },
}

/// What [`KeyFormat::judge`] found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyAge {
    /// Nothing speaks against it.
    Fine,
    /// So old that its outcome may have been forgotten.
    Expired,
    /// Made later than now, beyond the skew: it would outlive its own protection.
    FromFuture,
    /// Not a time-ordered key.
    NotTimeOrdered,
}

impl KeyFormat {
    /// Judges a key's age. An outcome is kept for `retention` from its finish, and the finish is not before
    /// the key was made: a key younger than retention minus skew cannot have been forgotten.
    pub fn judge(self, key: &Key, retention: Retention, now: StoreTime) -> KeyAge {
        let Self::TimeOrdered { skew_ms } = self else { return KeyAge::Fine };
        let Some(made_ms) = key.time_ms() else { return KeyAge::NotTimeOrdered };
        if made_ms > now.0.saturating_add(skew_ms) {
            return KeyAge::FromFuture;
        }
        match retention {
            Retention::Ms(ms) if now.0.saturating_sub(made_ms) > ms.saturating_sub(skew_ms) => {
                KeyAge::Expired
            }
            _ => KeyAge::Fine,
        }
    }

    /// How long [`judge`](Self::judge) will still find nothing against the key's age. `None`: forever.
    pub(crate) fn fine_for_ms(self, key: &Key, retention: Retention, now: StoreTime) -> Option<u64> {
        let (Self::TimeOrdered { skew_ms }, Retention::Ms(ms)) = (self, retention) else { return None };
        let expires = key.time_ms()?.saturating_add(ms.saturating_sub(skew_ms));
        Some(expires.saturating_sub(now.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_a_day_at_most() {
        assert_eq!(LEASE_MS_MAX, 86_400_000);
    }

    #[test]
    fn presets_are_what_they_say() {
        let week = Retention::Ms(604_800_000);
        let presets = [Preset::Payment, Preset::Order, Preset::Notification];
        assert_eq!(presets.map(Preset::retention), [week, week, Retention::Ms(3_600_000)]);
        assert_eq!(presets.map(Preset::verify), [true, false, false]);
    }

    #[test]
    fn late_and_early_keys_are_distinguished() {
        let made = 0x017f_22e2_79b0;
        let key = Key::new("017f22e2-79b0-7cc3-98c4-dc0c0c07398f").unwrap();
        let format = KeyFormat::TimeOrdered { skew_ms: 100 };
        let hour = Retention::Ms(3_600_000);
        for (now, retention, age) in [
            (made, hour, KeyAge::Fine),
            (made - 100, hour, KeyAge::Fine),
            (made - 101, hour, KeyAge::FromFuture),
            (made + 3_599_900, hour, KeyAge::Fine),
            (made + 3_599_901, hour, KeyAge::Expired),
            (made + 3_599_901, Retention::Forever, KeyAge::Fine),
            (made, Retention::Ms(50), KeyAge::Fine),
            (made + 1, Retention::Ms(50), KeyAge::Expired),
        ] {
            assert_eq!(format.judge(&key, retention, StoreTime(now)), age, "{now} {retention:?}");
            assert_eq!(KeyFormat::Any.judge(&key, retention, StoreTime(now)), KeyAge::Fine);
            // What is fine is fine for that long, and a moment later it is not.
            if let (KeyAge::Fine, Some(ms)) = (age, format.fine_for_ms(&key, retention, StoreTime(now))) {
                assert_eq!(format.judge(&key, retention, StoreTime(now + ms)), KeyAge::Fine);
                assert_eq!(format.judge(&key, retention, StoreTime(now + ms + 1)), KeyAge::Expired);
            }
        }
        let plain = Key::new("order-1").unwrap();
        assert_eq!(format.judge(&plain, hour, StoreTime(made)), KeyAge::NotTimeOrdered);
    }

    #[test]
    fn durations_round_up_to_milliseconds() {
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(5)), 5);
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}
