//! A snapshot of PostgreSQL's: which transactions had ended when it was taken.

use std::cmp::Ordering;
use std::fmt;

/// `xmin:xmax:xip,…`. All below xmin had ended, none from xmax on, and in between all but the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Snapshot {
    text: String,
    xmax: u64,
    under_way: usize,
}

impl Snapshot {
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (_, xmax, list) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
        let under_way = list.split(',').filter(|xid| !xid.is_empty()).count();
        parts.next().is_none().then(|| Self { text: text.to_owned(), xmax, under_way })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn xmax(&self) -> u64 {
        self.xmax
    }

    /// Which one was taken first. Of one server's snapshots one always sees all that the other sees: xmax only grows,
    /// and while it stays, the list only shrinks.
    pub(super) fn age(&self, other: &Self) -> Ordering {
        self.xmax.cmp(&other.xmax).then(other.under_way.cmp(&self.under_way))
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
    }
}
