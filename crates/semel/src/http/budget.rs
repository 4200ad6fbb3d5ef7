//! Bounds how many bytes of request bodies are buffered at once.
//!
//! A body is read before anything is claimed, because it is part of the fingerprint. Each body has its own bound, but
//! many at once could still use up the memory. So bytes are taken from one budget before they are read. They are taken
//! as the body arrives, not all at the start: otherwise a few clients that announce much and send nothing would use up
//! the budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::observe::{Counter, Gauge};

/// How many bytes of request bodies are buffered at once by default: 256 MiB.
pub const BUFFERED_BYTES_MAX: usize = 256 << 20;

/// How many bytes are taken ahead of those that have arrived.
pub(super) const AHEAD_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicUsize,
    buffered: Gauge,
    refused: Counter,
}

impl Budget {
    pub(super) fn new(bytes: usize, (buffered, refused): (Gauge, Counter)) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(bytes), buffered, refused })
    }

    /// A body that has taken nothing yet.
    pub(super) fn open(self: &Arc<Self>) -> Taken {
        Taken { budget: Arc::clone(self), bytes: 0 }
    }

    fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        let taken = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        if taken {
            self.buffered.inc_by(signed(bytes));
        }
        taken
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::SeqCst);
        self.buffered.dec_by(signed(bytes));
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The bytes that one body has taken; given back on drop.
#[derive(Debug)]
pub(crate) struct Taken {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Taken {
    /// Takes what is missing up to this many bytes, at most `bytes_max`. False if the budget has less left.
    pub(super) fn cover(&mut self, bytes: usize, bytes_max: usize) -> bool {
        let missing = bytes.saturating_sub(self.bytes);
        if missing == 0 {
            return true;
        }
        // Doubles each time, so that a large body takes only a few times; but only what is missing if the budget
        // has no more.
        let twice = bytes.max(self.bytes.saturating_mul(2)).min(bytes_max.max(bytes)) - self.bytes;
        let Some(taken) = [twice, missing].into_iter().find(|more| self.budget.take(*more)) else {
            self.budget.refused.inc();
            return false;
        };
        self.bytes += taken;
        true
    }

    /// Gives back what is not needed.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let over = self.bytes.saturating_sub(bytes);
        if over > 0 {
            self.bytes -= over;
            self.budget.give_back(over);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_exact_and_everything_is_given_back() {
        let counters = (Gauge::default(), Counter::default());
        let budget = Budget::new(100, counters.clone());
        let (mut one, mut two) = (budget.open(), budget.open());
        assert!(one.cover(0, 100) && counters.0.get() == 0, "zero bytes take nothing");
        assert!(one.cover(30, 100) && one.cover(20, 100));
        assert_eq!(counters.0.get(), 30);
        // Doubles; then takes only what is missing.
        assert!(one.cover(31, 100));
        assert_eq!(counters.0.get(), 60);
        assert!(one.cover(61, 90));
        assert_eq!(counters.0.get(), 90, "at most what the body may have");
        assert!(two.cover(10, 10) && !two.cover(11, 20));
        assert_eq!((counters.0.get(), counters.1.get()), (100, 1));
        one.shrink(50);
        assert!(two.cover(11, 20));
        assert_eq!(counters.0.get(), 50 + 20);
        drop((one, two));
        assert_eq!((counters.0.get(), budget.left.load(Ordering::SeqCst)), (0, 100));
    }
}
