//! Rate limits by token bucket, one per caller, in bounded memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most buckets that are kept. A bucket that is evicted starts full again.
pub(super) const BUCKETS_MAX: usize = 100_000;

/// A rate per second, and the burst.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Rate {
    pub(super) per_s: f64,
    pub(super) burst: u32,
}

#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

/// Two generations: when the younger one is full, the older one is evicted. A bucket in use moves to the younger one,
/// so an evicted bucket was unused for as long as it took to fill a generation.
#[derive(Default)]
struct Generations {
    young: HashMap<u64, Bucket>,
    old: HashMap<u64, Bucket>,
}

/// One bucket per caller.
pub(super) struct Buckets {
    rate: Rate,
    generation_max: usize,
    hasher: RandomState,
    generations: Mutex<Generations>,
}

impl Buckets {
    pub(super) fn new(rate: Rate) -> Self {
        let (hasher, generations) = (RandomState::new(), Mutex::default());
        Self { rate, generation_max: BUCKETS_MAX / 2, hasher, generations }
    }

    /// Takes a token from the caller's bucket, or returns how long until there is one.
    pub(super) fn take(&self, who: impl Hash, now: Instant) -> Result<(), Duration> {
        let per_s = self.rate.per_s;
        self.change(who, now, |tokens| {
            if *tokens >= 1.0 {
                *tokens -= 1.0;
                return Ok(());
            }
            Err(Duration::try_from_secs_f64((1.0 - *tokens) / per_s).unwrap_or(Duration::MAX))
        })
    }

    /// Returns a token that was not needed.
    pub(super) fn give_back(&self, who: impl Hash, now: Instant) {
        let burst = f64::from(self.rate.burst);
        self.change(who, now, |tokens| *tokens = (*tokens + 1.0).min(burst));
    }

    fn change<T>(&self, who: impl Hash, now: Instant, change: impl FnOnce(&mut f64) -> T) -> T {
        let id = self.hasher.hash_one(who);
        let burst = f64::from(self.rate.burst);
        let mut all = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.young.get(&id).or_else(|| all.old.get(&id)).copied();
        let mut bucket = known.unwrap_or(Bucket { tokens: burst, at: now });
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.tokens = (bucket.tokens + passed * self.rate.per_s).min(burst);
        bucket.at = now;
        let changed = change(&mut bucket.tokens);
        if all.young.len() >= self.generation_max && !all.young.contains_key(&id) {
            all.old = std::mem::take(&mut all.young);
        }
        all.young.insert(id, bucket);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate() {
        let buckets = Buckets::new(Rate { per_s: 2.0, burst: 3 });
        let start = Instant::now();
        for _ in 0..3 {
            assert_eq!(buckets.take("acme", start), Ok(()));
        }
        assert_eq!(buckets.take("acme", start), Err(Duration::from_millis(500)));
        assert_eq!(buckets.take("globex", start), Ok(()), "each has its own");
        let later = start + Duration::from_millis(500);
        assert_eq!(buckets.take("acme", later), Ok(()));
        assert!(buckets.take("acme", later).is_err());
        buckets.give_back("acme", later);
        assert_eq!(buckets.take("acme", later), Ok(()));
        let much_later = start + Duration::from_secs(3_600);
        assert_eq!(
            (0..9).filter(|_| buckets.take("acme", much_later).is_ok()).count(),
            3,
            "no more than a burst"
        );
    }

    #[test]
    fn room_is_bounded_and_frequent_callers_stay() {
        let buckets = Buckets { generation_max: 10, ..Buckets::new(Rate { per_s: 0.001, burst: 1 }) };
        let now = Instant::now();
        assert!(buckets.take("often", now).is_ok());
        for n in 0..1_000 {
            assert!(buckets.take(n, now).is_ok());
            assert!(buckets.take("often", now).is_err(), "{n}");
        }
        let all = buckets.generations.lock().unwrap();
        assert!(all.young.len() + all.old.len() <= 20);
    }
}
