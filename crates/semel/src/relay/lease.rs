//! A relay's lease on partitions, as it knows it, and its share of them.

use std::time::{Duration, Instant};

use super::outbox_reader::OutboxLineage;

/// Number of partitions (column `lane` or `part`). Each has one cursor and one owner.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::relay) const PARTITIONS: i16 = 16;

/// A lease.
#[derive(Debug)]
pub struct RelayLease {
    pub(in crate::relay) me: String,
    pub(in crate::relay) lineage: OutboxLineage,
    /// Until then no other relay takes what we own. Counted from before the server was asked.
    pub(in crate::relay) safe_until: Instant,
    pub(in crate::relay) heartbeat_at: Instant,
    /// The other relays were read since the last rebalance. A busy relay reads them while a batch is in flight.
    pub(in crate::relay) rebalance_due: bool,
}

impl RelayLease {
    /// No lease yet: the first heartbeat is due.
    pub(in crate::relay) fn new(me: &str, lineage: OutboxLineage) -> Self {
        let now = Instant::now();
        Self { me: me.to_owned(), lineage, safe_until: now, heartbeat_at: now, rebalance_due: false }
    }

    pub(in crate::relay) fn is_safe(&self) -> bool {
        Instant::now() < self.safe_until
    }

    pub(in crate::relay) fn heartbeat_due(&self) -> bool {
        Instant::now() >= self.heartbeat_at
    }

    /// The server has renewed it for `lease`, after it was asked at `asked`.
    pub(in crate::relay) fn renewed(&mut self, asked: Instant, lease: Duration) {
        // 1/8 is a safety margin: clocks differ in speed, and what we send takes time to arrive.
        self.safe_until = asked + lease * 7 / 8;
        self.heartbeat_at = asked + lease / 3;
    }

    /// The next heartbeat is soon, but not at once.
    pub(in crate::relay) fn retry_soon(&mut self, lease: Duration) {
        self.heartbeat_at = Instant::now() + lease / 10;
    }
}

/// The partitions that are this relay's share, beside the others with a lease.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::relay) fn share_of(me: &str, others: &[String]) -> Vec<i16> {
    share(others.iter().filter(|other| other.as_str() < me).count(), others.len() + 1)
}

/// The partitions of the relay with this index among so many.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn share(index: usize, relays: usize) -> Vec<i16> {
    (0..PARTITIONS)
        .filter(|partition| usize::from(partition.unsigned_abs()) % relays.max(1) == index)
        .collect()
}

#[cfg(all(test, any(feature = "postgres", feature = "mysql")))]
mod tests {
    use super::*;

    #[test]
    fn every_partition_falls_to_one_relay_and_shares_are_fair() {
        for relays in 1..20 {
            let shares: Vec<Vec<i16>> = (0..relays).map(|index| share(index, relays)).collect();
            let mut all = shares.concat();
            all.sort_unstable();
            assert_eq!(all, (0..PARTITIONS).collect::<Vec<_>>());
            let sizes = || shares.iter().map(Vec::len);
            assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        }
    }
}
