//! From messages of the stream to events with their places. Pure.

use std::collections::HashMap;

use bytes::Bytes;

use super::error::CdcError;
use super::lsn::Lsn;
use super::pgoutput::{self, Change, Sent};
use super::position::StreamPosition;
use super::table::{Layout, Row, Table};

/// What has been read so far.
pub(super) struct Decoder {
    table: Table,
    /// Tables that were named; `None`: not ours.
    known: HashMap<u32, Option<Layout>>,
    /// The transaction that is being read.
    within: Option<Lsn>,
    /// The event that was read last.
    spot: StreamPosition,
    /// Everything that was committed up to here has been read whole.
    whole: Lsn,
}

/// What a message was.
#[derive(Debug)]
pub(super) enum Read {
    Event(StreamPosition, Box<Row>),
    /// The server wants to hear of us.
    Answer,
    Nothing,
}

impl Decoder {
    pub(super) fn new(table: Table, from: Lsn) -> Self {
        Self { table, known: HashMap::new(), within: None, spot: StreamPosition::default(), whole: from }
    }

    /// Whether more of a transaction is to come.
    pub(super) fn is_within(&self) -> bool {
        self.within.is_some()
    }

    pub(super) fn spot(&self) -> StreamPosition {
        self.spot
    }

    pub(super) fn whole(&self) -> Lsn {
        self.whole
    }

    pub(super) fn take(&mut self, body: Bytes) -> Result<Read, CdcError> {
        match pgoutput::read(body)? {
            Sent::Alive { end, answer } => {
                // Up to there the server has nothing for us that it has not sent. Not so while it is still sending.
                if self.within.is_none() {
                    self.whole = self.whole.max(end);
                }
                Ok(if answer { Read::Answer } else { Read::Nothing })
            }
            Sent::Change(change) => self.change(change),
        }
    }

    fn change(&mut self, change: Change) -> Result<Read, CdcError> {
        match change {
            Change::Begin { commit } => {
                self.within = Some(commit);
                self.spot = StreamPosition { commit, index: 0 };
            }
            Change::Commit { end } => {
                self.within = None;
                self.whole = self.whole.max(end);
            }
            Change::Relation(relation) => {
                let layout = self.table.layout(&relation).transpose().map_err(CdcError::Refused)?;
                self.known.insert(relation.id, layout);
            }
            Change::Insert { relation, values } => {
                let known = self.known.get(&relation);
                let known = known.ok_or_else(|| CdcError::Nonsense("a row of a table never named".into()))?;
                let Some(layout) = known else { return Ok(Read::Nothing) };
                if self.within.is_none() {
                    return Err(CdcError::Nonsense("a row outside of a transaction".into()));
                }
                self.spot.index += 1;
                return Ok(Read::Event(
                    self.spot,
                    Box::new(layout.row(&values).map_err(CdcError::Nonsense)?),
                ));
            }
            Change::Other => {}
        }
        Ok(Read::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pgoutput::tests::{alive, begin, commit, insert, table};
    use super::super::table::RoutedTable;
    use super::*;

    fn reader() -> Decoder {
        let routed = Some(RoutedTable::debezium("outbox"));
        Decoder::new(Table { schema: "s".into(), name: "outbox".into(), routed }, Lsn(5))
    }

    const COLUMNS: [&str; 5] = ["id", "aggregatetype", "aggregateid", "type", "payload"];

    fn row(id: &str) -> [Option<&str>; 5] {
        [Some(id), Some("a"), Some("k"), Some("t"), Some("p")]
    }

    #[test]
    fn a_transaction_is_whole_when_its_end_was_read() {
        let mut reader = reader();
        let mut spots = Vec::new();
        for message in [
            begin(10),
            table(1, "s", "outbox", &COLUMNS),
            table(2, "s", "other", &COLUMNS),
            insert(1, &row("1")),
            insert(2, &row("x")),
            // In the middle of a transaction it says nothing about what is still to come of it.
            alive(99, true),
            insert(1, &row("2")),
        ] {
            if let Read::Event(spot, _) = reader.take(message).unwrap() {
                spots.push((spot.commit.0, spot.index));
            }
        }
        assert_eq!(spots, [(10, 1), (10, 2)]);
        assert_eq!(reader.whole(), Lsn(5));
        reader.take(commit(10, 12)).unwrap();
        assert_eq!(reader.whole(), Lsn(12));
        assert!(matches!(reader.take(alive(40, false)).unwrap(), Read::Nothing));
        assert_eq!(reader.whole(), Lsn(40));
        assert!(matches!(reader.take(alive(41, true)).unwrap(), Read::Answer));
    }

    #[test]
    fn what_comes_out_of_turn_is_refused() {
        let mut reader = reader();
        assert!(reader.take(insert(1, &row("1"))).is_err());
        reader.take(table(1, "s", "outbox", &COLUMNS)).unwrap();
        assert!(reader.take(insert(1, &row("1"))).is_err());
        assert!(reader.take(table(1, "s", "outbox", &["id"])).is_err());
    }
}
