//! Where an event is: what a position says after the lineage.

use std::fmt;

use super::lsn::Lsn;

/// How far something has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) at: At,
    /// Parked events that were tried again there.
    pub(super) parked: Vec<i64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum At {
    /// In the stream: that event of the transaction, and all before it.
    Stream(Spot),
    /// In the table, when it is read because the stream cannot be: up to this seq of what the snapshot sees.
    Table { high: String, seq: i64 },
}

/// An event of the stream. The place of the commit alone does not name one: a transaction has many.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Spot {
    pub(super) commit: Lsn,
    /// Counted from 1. 0: before the first.
    pub(super) index: u64,
}

impl Place {
    pub(super) fn read(text: &str) -> Option<Self> {
        let (at, parked) = text.split_once(" parked ").unwrap_or((text, ""));
        let parked = parked.split(',').filter(|n| !n.is_empty()).map(|n| n.parse().ok());
        Some(Self { at: At::read(at)?, parked: parked.collect::<Option<_>>()? })
    }
}

impl At {
    fn read(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix("table ") {
            let (high, seq) = rest.split_once(' ')?;
            return Some(Self::Table { high: high.to_owned(), seq: seq.parse().ok()? });
        }
        let (commit, index) = text.split_once('+')?;
        Some(Self::Stream(Spot { commit: Lsn::read(commit)?, index: index.parse().ok()? }))
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(Spot { commit, index }) => write!(f, "{commit}+{index}"),
            Self::Table { high, seq } => write!(f, "table {high} {seq}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.at)?;
        for (at, n) in self.parked.iter().enumerate() {
            write!(f, "{}{n}", if at == 0 { " parked " } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_what_it_wrote() {
        let stream = At::Stream(Spot { commit: Lsn(0x1_0000_00ff), index: 3 });
        let table = At::Table { high: "3:9:4,5".into(), seq: 7 };
        for at in [stream, table] {
            for parked in [vec![], vec![1], vec![1, 22]] {
                let place = Place { at: at.clone(), parked };
                assert_eq!(Place::read(&place.to_string()), Some(place));
            }
        }
        for bad in ["", "1/2", "1/2+x", "table 3:3:", "1/2+3 parked x", "[0, 1] 3:3:..4:4: 0-9"] {
            assert_eq!(Place::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn events_of_one_commit_have_an_order() {
        let spot = |commit, index| Spot { commit: Lsn(commit), index };
        assert!(spot(1, 2) < spot(1, 3) && spot(1, 3) < spot(2, 0));
    }
}
