//! Decodes messages of the stream into events with their positions. Pure.

use std::collections::HashMap;

use bytes::Bytes;

use super::error::CdcError;
use super::lsn::Lsn;
use super::pgoutput::{self, Change, StreamMessage};
use super::position::StreamPosition;
use super::table::{Layout, Row, Table};

/// The state of decoding.
pub(super) struct Decoder {
    table: Table,
    /// Tables announced so far; `None`: not ours.
    layouts: HashMap<u32, Option<Layout>>,
    /// The transaction being read.
    within: Option<Lsn>,
    /// The last event read.
    position: StreamPosition,
    /// Every transaction committed up to here has been read completely.
    complete: Lsn,
}

/// A decoded message.
#[derive(Debug)]
pub(super) enum Read {
    Event(StreamPosition, Box<Row>),
    /// The server wants a status message.
    StatusRequested,
    Nothing,
}

impl Decoder {
    pub(super) fn new(table: Table, from: Lsn) -> Self {
        Self {
            table,
            layouts: HashMap::new(),
            within: None,
            position: StreamPosition::default(),
            complete: from,
        }
    }

    /// Whether the rest of a transaction is still to come.
    pub(super) fn is_within(&self) -> bool {
        self.within.is_some()
    }

    pub(super) fn position(&self) -> StreamPosition {
        self.position
    }

    pub(super) fn complete(&self) -> Lsn {
        self.complete
    }

    pub(super) fn take(&mut self, body: Bytes) -> Result<Read, CdcError> {
        match pgoutput::read(body)? {
            StreamMessage::Keepalive { end, reply_requested } => {
                // The server has sent everything up to there. Not true within a transaction.
                if self.within.is_none() {
                    self.complete = self.complete.max(end);
                }
                Ok(if reply_requested { Read::StatusRequested } else { Read::Nothing })
            }
            StreamMessage::Change(change) => self.change(change),
        }
    }

    fn change(&mut self, change: Change) -> Result<Read, CdcError> {
        match change {
            Change::Begin { commit } => {
                self.within = Some(commit);
                self.position = StreamPosition { commit, index: 0 };
            }
            Change::Commit { end } => {
                self.within = None;
                self.complete = self.complete.max(end);
            }
            Change::Relation(relation) => {
                let layout = self.table.layout(&relation).transpose().map_err(CdcError::Refused)?;
                self.layouts.insert(relation.id, layout);
            }
            Change::Insert { relation, values } => {
                let layout = self.layouts.get(&relation);
                let layout = layout.ok_or_else(|| CdcError::Malformed("a row of an unknown table".into()))?;
                let Some(layout) = layout else { return Ok(Read::Nothing) };
                if self.within.is_none() {
                    return Err(CdcError::Malformed("a row outside of a transaction".into()));
                }
                self.position.index += 1;
                return Ok(Read::Event(
                    self.position,
                    Box::new(layout.row(&values).map_err(CdcError::Malformed)?),
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

    fn decoder() -> Decoder {
        let routed = Some(RoutedTable::debezium("outbox"));
        Decoder::new(Table { schema: "s".into(), name: "outbox".into(), routed }, Lsn(5))
    }

    const COLUMNS: [&str; 5] = ["id", "aggregatetype", "aggregateid", "type", "payload"];

    fn row(id: &str) -> [Option<&str>; 5] {
        [Some(id), Some("a"), Some("k"), Some("t"), Some("p")]
    }

    #[test]
    fn a_transaction_is_whole_when_its_end_was_read() {
        let mut decoder = decoder();
        let mut positions = Vec::new();
        for message in [
            begin(10),
            table(1, "s", "outbox", &COLUMNS),
            table(2, "s", "other", &COLUMNS),
            insert(1, &row("1")),
            insert(2, &row("x")),
            // Within a transaction a keepalive says nothing about the rest of it.
            alive(99, true),
            insert(1, &row("2")),
        ] {
            if let Read::Event(position, _) = decoder.take(message).unwrap() {
                positions.push((position.commit.0, position.index));
            }
        }
        assert_eq!(positions, [(10, 1), (10, 2)]);
        assert_eq!(decoder.complete(), Lsn(5));
        decoder.take(commit(10, 12)).unwrap();
        assert_eq!(decoder.complete(), Lsn(12));
        assert!(matches!(decoder.take(alive(40, false)).unwrap(), Read::Nothing));
        assert_eq!(decoder.complete(), Lsn(40));
        assert!(matches!(decoder.take(alive(41, true)).unwrap(), Read::StatusRequested));
    }

    #[test]
    fn what_comes_out_of_turn_is_refused() {
        let mut decoder = decoder();
        assert!(decoder.take(insert(1, &row("1"))).is_err());
        decoder.take(table(1, "s", "outbox", &COLUMNS)).unwrap();
        assert!(decoder.take(insert(1, &row("1"))).is_err());
        assert!(decoder.take(table(1, "s", "outbox", &["id"])).is_err());
    }
}
