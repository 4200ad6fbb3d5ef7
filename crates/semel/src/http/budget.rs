//! How many bytes of request bodies are held at once.
//!
//! A body is read before anything is claimed, because it is part of what was asked for. Each has its own bound, and
//! many at once would still be more than a process has. So bytes are taken from one budget before they are read. They
//! are taken as the body comes, and not all at the beginning: else a few clients that announce much and send nothing
//! would hold all of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

/// How many bytes of request bodies are held at once, unless the builder says otherwise: 256 MiB.
pub const BUFFERED_BYTES_MAX: usize = 256 << 20;

/// How far ahead of what has come bytes are taken.
pub(super) const AHEAD_BYTES: usize = 64 << 10;

/// The bytes of one layer.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicUsize,
    held: Gauge,
    refused: Counter,
}

impl Budget {
    pub(super) fn new(bytes: usize, (held, refused): (Gauge, Counter)) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(bytes), held, refused })
    }

    /// A body that has taken nothing yet.
    pub(super) fn open(self: &Arc<Self>) -> Taken {
        Taken { budget: Arc::clone(self), bytes: 0 }
    }

    fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        let taken = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        if taken {
            self.held.inc_by(signed(bytes));
        }
        taken
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::SeqCst);
        self.held.dec_by(signed(bytes));
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// What one body has taken; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Taken {
    /// Takes what is missing to this many bytes, of at most `bytes_max`. False when that is more than is left.
    pub(super) fn cover(&mut self, bytes: usize, bytes_max: usize) -> bool {
        let missing = bytes.saturating_sub(self.bytes);
        if missing == 0 {
            return true;
        }
        // Twice as much each time, so that a large body asks a few times only; but no more than is missing where
        // that is all there is.
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
        assert!(one.cover(0, 100) && counters.0.get() == 0, "nothing is nothing");
        assert!(one.cover(30, 100) && one.cover(20, 100));
        assert_eq!(counters.0.get(), 30);
        // Twice as much; then no more than is missing.
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
