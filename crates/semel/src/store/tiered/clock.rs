//! An estimate of the authority's clock, without asking it.
//!
//! The authority's clock decides whether an outcome has expired, and the cache is there so that it need not be asked.
//! So its time is kept together with two readings of this machine's monotonic clock: before the request and after the
//! answer. At most the time since the request has passed since, and at least the time since the answer; Redis' clock
//! does not matter. Two clocks may drift apart by less than a thousandth. If the authority's clock was set forward, the
//! next answer shows it, at most [`ASK_AGAIN`] later when there is traffic.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::intent::policy::{StoreTime, millis};

/// Age of the last answer after which one caller asks again.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Age up to which the last answer is used while the authority does not answer.
const KNOWN_FOR: Duration = Duration::from_secs(5 * 60);
/// Two clocks may drift apart by one part in this many.
const DRIFT: u32 = 1_000;

#[derive(Default)]
pub(super) struct Clock(Mutex<Option<LastAnswer>>);

#[derive(Clone, Copy)]
struct LastAnswer {
    now: StoreTime,
    asked: Instant,
    answered: Instant,
    /// A caller is asking again.
    asking: bool,
}

/// The authority's time is between these two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Between {
    pub(super) earliest: StoreTime,
    pub(super) latest: StoreTime,
}

impl Clock {
    fn lock(&self) -> MutexGuard<'_, Option<LastAnswer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the authority answered `now`.
    pub(super) fn update(&self, now: StoreTime, asked: Instant, answered: Instant) {
        *self.lock() = Some(LastAnswer { now, asked, answered, asking: false });
    }

    pub(super) fn at(&self, moment: Instant) -> Option<Between> {
        let last = (*self.lock())?;
        let (most, least) = (moment.duration_since(last.asked), moment.duration_since(last.answered));
        if most > KNOWN_FOR {
            return None;
        }
        let earliest = last.now.plus_ms((least - least / DRIFT).as_millis() as u64);
        let latest = last.now.plus_ms(millis(most + most / DRIFT) + 1);
        Some(Between { earliest, latest })
    }

    /// Whether it is time to ask again; `true` for one caller at a time.
    pub(super) fn ask_again(&self, moment: Instant) -> bool {
        match &mut *self.lock() {
            Some(last) if moment.duration_since(last.answered) < ASK_AGAIN || last.asking => false,
            Some(last) => {
                last.asking = true;
                true
            }
            None => true,
        }
    }

    /// The caller that asked got no answer.
    pub(super) fn ask_failed(&self) {
        if let Some(last) = &mut *self.lock() {
            last.asking = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_bounded_from_both_sides() {
        let clock = Clock::default();
        let asked = Instant::now();
        assert_eq!(clock.at(asked), None);
        clock.update(StoreTime(1_000), asked, asked + Duration::from_millis(40));
        let between = clock.at(asked + Duration::from_millis(140)).unwrap();
        assert_eq!(between.earliest, StoreTime(1_099));
        assert_eq!(between.latest, StoreTime(1_142));
        assert_eq!(clock.at(asked + KNOWN_FOR * 2), None);
    }

    #[test]
    fn one_asks_again() {
        let clock = Clock::default();
        let now = Instant::now();
        clock.update(StoreTime(1), now, now);
        assert!(!clock.ask_again(now));
        let later = now + ASK_AGAIN;
        assert!(clock.ask_again(later) && !clock.ask_again(later));
        clock.ask_failed();
        assert!(clock.ask_again(later));
    }
}
