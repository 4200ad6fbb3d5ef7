//! A PostgreSQL snapshot (`pg_snapshot`): which transactions had ended when it was taken.

use std::cmp::Ordering;
use std::fmt;

/// `xmin:xmax:xip,…`. All below xmin had ended, none from xmax on, and in between all except those listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::relay) struct Snapshot {
    text: String,
    xmin: u64,
    xmax: u64,
    /// Transactions in progress. Sorted.
    in_progress: Vec<u64>,
}

impl Snapshot {
    pub(in crate::relay) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (xmin, xmax) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let list = parts.next()?.split(',').filter(|xid| !xid.is_empty());
        let mut in_progress = list.map(|xid| xid.parse().ok()).collect::<Option<Vec<u64>>>()?;
        in_progress.sort_unstable();
        parts.next().is_none().then(|| Self { text: text.to_owned(), xmin, xmax, in_progress })
    }

    pub(in crate::relay) fn text(&self) -> &str {
        &self.text
    }

    pub(in crate::relay) fn xmax(&self) -> u64 {
        self.xmax
    }

    /// Orders two snapshots of one server by age. The later one sees all that the earlier one sees: xmax only grows,
    /// and while it stays the same, the list of open transactions only shrinks.
    pub(in crate::relay) fn age(&self, other: &Self) -> Ordering {
        self.xmax.cmp(&other.xmax).then(other.in_progress.len().cmp(&self.in_progress.len()))
    }

    /// Whether this transaction had ended.
    pub(in crate::relay) fn sees(&self, xid: u64) -> bool {
        xid < self.xmin || (xid < self.xmax && self.in_progress.binary_search(&xid).is_err())
    }

    /// Whether all transactions with lower ids had ended.
    pub(in crate::relay) fn has_all_before(&self, xid: u64) -> bool {
        self.xmin >= xid
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_have_an_order() {
        let read = |text| Snapshot::read(text).unwrap();
        assert_eq!(read("3:9:3,5").age(&read("5:9:5")), Ordering::Less);
        assert_eq!(read("3:9:3,5").age(&read("3:10:3,5,9")), Ordering::Less);
        assert_eq!(read("3:3:").age(&read("3:3:")), Ordering::Equal);
        assert_eq!(Snapshot::read("3:x:"), None);
        assert_eq!(Snapshot::read("3:4"), None);
        assert_eq!(Snapshot::read("3:4:x"), None);
    }

    #[test]
    fn a_snapshot_sees_what_had_ended() {
        let snapshot = Snapshot::read("5:9:5,7").unwrap();
        let seen: Vec<u64> = (3..11).filter(|xid| snapshot.sees(*xid)).collect();
        assert_eq!(seen, [3, 4, 6, 8]);
    }

    #[test]
    fn who_came_later_is_not_waited_for() {
        let snapshot = Snapshot::read("5:9:5,7").unwrap();
        assert!(snapshot.has_all_before(4) && snapshot.has_all_before(5) && !snapshot.has_all_before(6));
        // Transaction 9 may be in progress although it is not listed.
        assert!(!Snapshot::read("9:9:").unwrap().has_all_before(10));
    }
}
