//! Backoff between lookups of an intent whose lookup did not know.

use std::collections::HashMap;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::intent::identity::{Epoch, IntentId};

/// Exponential backoff per intent, in bounded memory. An intent that does not fit is looked up again in every pass,
/// which costs a lookup and nothing else.
pub(super) struct LookupBackoff {
    tried: HashMap<IntentId, Tried>,
    backoff: Backoff,
    intents_max: usize,
}

struct Tried {
    /// A new epoch starts over: it has not been looked up yet.
    epoch: Epoch,
    times: u32,
    not_before: Instant,
}

impl LookupBackoff {
    pub(super) fn new(backoff: Backoff, intents_max: usize) -> Self {
        Self { tried: HashMap::new(), backoff: backoff.jitter(0.25), intents_max }
    }

    pub(super) fn is_due(&self, id: &IntentId, epoch: Epoch, now: Instant) -> bool {
        self.tried.get(id).is_none_or(|tried| tried.epoch != epoch || tried.not_before <= now)
    }

    /// The lookup did not know: waits before the next one. The wait doubles each time.
    pub(super) fn put_off(&mut self, id: IntentId, epoch: Epoch, now: Instant) {
        let before = self.tried.get(&id).filter(|tried| tried.epoch == epoch);
        let times = before.map_or(0, |tried| tried.times.saturating_add(1));
        if before.is_none() && !self.tried.contains_key(&id) && self.tried.len() >= self.intents_max {
            return;
        }
        self.tried.insert(id, Tried { epoch, times, not_before: now + self.backoff.delay(times) });
    }

    pub(super) fn forget(&mut self, id: &IntentId) {
        self.tried.remove(id);
    }

    /// Forgets intents that have been due for longer than `max`: if they were still uncertain, they would have been
    /// looked up meanwhile.
    pub(super) fn forget_gone(&mut self, now: Instant) {
        let max = self.backoff.max;
        self.tried.retain(|_, tried| now < tried.not_before + max);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MIN: Duration = Duration::from_secs(10);
    const MAX: Duration = Duration::from_secs(60);

    fn id(n: u8) -> IntentId {
        IntentId::from_bytes([n; 32])
    }

    #[test]
    fn pauses_double_up_to_their_cap() {
        let (mut backoff, mut now) = (LookupBackoff::new(Backoff::new(MIN, MAX), 10), Instant::now());
        assert!(backoff.is_due(&id(1), Epoch(1), now));
        for longest_s in [10, 20, 40, 60, 60, 60] {
            backoff.put_off(id(1), Epoch(1), now);
            let longest = Duration::from_secs(longest_s);
            assert!(!backoff.is_due(&id(1), Epoch(1), now + longest * 7 / 10), "{longest_s}");
            assert!(backoff.is_due(&id(1), Epoch(1), now + longest), "{longest_s}");
            now += longest;
        }
    }

    #[test]
    fn a_new_epoch_is_a_new_story() {
        let (mut backoff, now) = (LookupBackoff::new(Backoff::new(MIN, MAX), 10), Instant::now());
        backoff.put_off(id(1), Epoch(1), now);
        assert!(backoff.is_due(&id(1), Epoch(2), now));
        backoff.forget(&id(1));
        assert!(backoff.is_due(&id(1), Epoch(1), now));
    }

    #[test]
    fn memory_is_bounded_and_gives_room_again() {
        let (mut backoff, now) = (LookupBackoff::new(Backoff::new(MIN, MAX), 2), Instant::now());
        for n in 0..5 {
            backoff.put_off(id(n), Epoch(1), now);
        }
        assert_eq!(backoff.tried.len(), 2);
        backoff.forget_gone(now + MIN);
        assert_eq!(backoff.tried.len(), 2, "they are due now");
        backoff.forget_gone(now + MIN + MAX);
        assert_eq!(backoff.tried.len(), 0);
    }
}
