//! The authority's clock, as far as it is known without asking.
//!
//! Whether an outcome has expired is the authority's to say, and the cache is there so that it need not be asked. So
//! its time is remembered with the moment before the question and the moment after the answer, by this machine's
//! monotonic clock. Since then no more can have passed than since the question, and no less than since the answer;
//! Redis' clock is not part of it. Two clocks may drift apart, by less than a thousandth. That an authority's clock
//! was set forward is noticed with the next answer, at most [`ASK_AGAIN`] later when there is traffic.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::intent::policy::{StoreTime, millis};

/// How old the last answer may be before somebody asks again.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(10);
/// How old it may be to be worth anything, while the authority does not answer.
const KNOWN_FOR: Duration = Duration::from_secs(5 * 60);
/// One part in this many is how far two clocks may drift apart.
const DRIFT: u32 = 1_000;

#[derive(Default)]
pub(super) struct Clock(Mutex<Option<Told>>);

#[derive(Clone, Copy)]
struct Told {
    now: StoreTime,
    asked: Instant,
    answered: Instant,
    /// Somebody asks again.
    asking: bool,
}

/// Between these two is the authority's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Between {
    pub(super) earliest: StoreTime,
    pub(super) latest: StoreTime,
}

impl Clock {
    fn told(&self) -> MutexGuard<'_, Option<Told>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The authority said `now`.
    pub(super) fn tell(&self, now: StoreTime, asked: Instant, answered: Instant) {
        *self.told() = Some(Told { now, asked, answered, asking: false });
    }

    pub(super) fn at(&self, moment: Instant) -> Option<Between> {
        let told = (*self.told())?;
        let (most, least) = (moment.duration_since(told.asked), moment.duration_since(told.answered));
        if most > KNOWN_FOR {
            return None;
        }
        let earliest = told.now.plus_ms((least - least / DRIFT).as_millis() as u64);
        let latest = told.now.plus_ms(millis(most + most / DRIFT) + 1);
        Some(Between { earliest, latest })
    }

    /// Whether it is time to ask again; says yes to one at a time.
    pub(super) fn ask_again(&self, moment: Instant) -> bool {
        match &mut *self.told() {
            Some(told) if moment.duration_since(told.answered) < ASK_AGAIN || told.asking => false,
            Some(told) => {
                told.asking = true;
                true
            }
            None => true,
        }
    }

    /// The one who asked got no answer.
    pub(super) fn not_told(&self) {
        if let Some(told) = &mut *self.told() {
            told.asking = false;
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
        clock.tell(StoreTime(1_000), asked, asked + Duration::from_millis(40));
        let between = clock.at(asked + Duration::from_millis(140)).unwrap();
        assert_eq!(between.earliest, StoreTime(1_099));
        assert_eq!(between.latest, StoreTime(1_142));
        assert_eq!(clock.at(asked + KNOWN_FOR * 2), None);
    }

    #[test]
    fn one_asks_again() {
        let clock = Clock::default();
        let now = Instant::now();
        clock.tell(StoreTime(1), now, now);
        assert!(!clock.ask_again(now));
        let later = now + ASK_AGAIN;
        assert!(clock.ask_again(later) && !clock.ask_again(later));
        clock.not_told();
        assert!(clock.ask_again(later));
    }
}
