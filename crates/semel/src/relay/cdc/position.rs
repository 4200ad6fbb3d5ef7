//! Positions of events: the part of a batch's position that follows the lineage.

use std::fmt;
use std::str::FromStr;

use super::lsn::Lsn;

/// A position in the log or in the table scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CdcPosition {
    /// The timeline of the server's log. On another one the same LSN may be another commit.
    pub(super) timeline: String,
    pub(super) at: Cursor,
    /// Numbers of the parked events that were retried at this position.
    pub(super) parked: Vec<i64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Cursor {
    /// In the stream: this event of the transaction, and all before it.
    Stream(StreamPosition),
    /// In a table scan, when the stream lacks events: up to this seq of what the snapshot sees.
    Table { high: String, seq: i64 },
}

/// An event of the stream. The LSN of the commit alone does not identify one: a transaction has many.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct StreamPosition {
    pub(super) commit: Lsn,
    /// Counted from 1. 0: before the first.
    pub(super) index: u64,
}

impl FromStr for CdcPosition {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let read = || {
            let (timeline, text) = text.strip_prefix('t')?.split_once(' ')?;
            let (at, parked) = text.split_once(" parked ").unwrap_or((text, ""));
            let parked = parked.split(',').filter(|n| !n.is_empty()).map(|n| n.parse().ok());
            let (timeline, parked) = (timeline.to_owned(), parked.collect::<Option<_>>()?);
            Some(Self { timeline, at: Cursor::read(at)?, parked })
        };
        read().ok_or(())
    }
}

impl Cursor {
    fn read(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix("table ") {
            let (high, seq) = rest.split_once(' ')?;
            return Some(Self::Table { high: high.to_owned(), seq: seq.parse().ok()? });
        }
        let (commit, index) = text.split_once('+')?;
        Some(Self::Stream(StreamPosition { commit: Lsn::read(commit)?, index: index.parse().ok()? }))
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(StreamPosition { commit, index }) => write!(f, "{commit}+{index}"),
            Self::Table { high, seq } => write!(f, "table {high} {seq}"),
        }
    }
}

impl fmt::Display for CdcPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{} {}", self.timeline, self.at)?;
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
    fn a_position_reads_what_it_wrote() {
        let stream = Cursor::Stream(StreamPosition { commit: Lsn(0x1_0000_00ff), index: 3 });
        let table = Cursor::Table { high: "3:9:4,5".into(), seq: 7 };
        for at in [stream, table] {
            for parked in [vec![], vec![1], vec![1, 22]] {
                let position = CdcPosition { timeline: "1".into(), at: at.clone(), parked };
                assert_eq!(position.to_string().parse(), Ok(position));
            }
        }
        let at = Cursor::Stream(StreamPosition { commit: Lsn(0x1_0000_00ff), index: 3 });
        let position = CdcPosition { timeline: "1".into(), at, parked: vec![1, 22] };
        assert_eq!(position.to_string(), "t1 1/FF+3 parked 1,22", "it is stored in sinks");
        for bad in
            ["", "t1 1/2", "1/2+3", "t1 1/2+x", "t1 table 3:3:", "t1 1/2+3 parked x", "[0, 1] 3:3:..4:4: 0-9"]
        {
            assert_eq!(bad.parse::<CdcPosition>(), Err(()), "{bad}");
        }
    }

    #[test]
    fn events_of_one_commit_have_an_order() {
        let position = |commit, index| StreamPosition { commit: Lsn(commit), index };
        assert!(position(1, 2) < position(1, 3) && position(1, 3) < position(2, 0));
    }

    #[test]
    fn contract_positions_that_a_sink_has_stored() {
        let stream = Cursor::Stream(StreamPosition { commit: Lsn(0x1_0000_00ff), index: 3 });
        let table = Cursor::Table { high: "3:9:4,5".into(), seq: 7 };
        let mut listing = String::new();
        for (at, parked) in [(stream, vec![]), (table, vec![1, 22])] {
            listing += &format!("{}\n", CdcPosition { timeline: "1".into(), at, parked });
        }
        crate::contracts::pinned("bytes.cdc_position", &listing);
    }
}
