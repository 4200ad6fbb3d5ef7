//! Parses the messages of the plug-in `pgoutput`, protocol version 1. Pure. Never panics on malformed input: the result
//! is a message or an error.

use bytes::Bytes;

use super::lsn::Lsn;

/// Maximum number of columns of a table.
const COLUMNS_MAX: usize = 1_664;

/// A message of the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StreamMessage {
    /// A message of logical decoding.
    Change(Change),
    /// The server is alive and has come this far. It may request a status message of ours.
    Keepalive { end: Lsn, reply_requested: bool },
}

/// A message of logical decoding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// A transaction begins. `commit`: the LSN of its commit record.
    Begin {
        commit: Lsn,
    },
    /// The transaction is complete. `end`: the LSN after its commit record.
    Commit {
        end: Lsn,
    },
    Relation(Relation),
    Insert {
        relation: u32,
        values: Vec<Value>,
    },
    /// Ignored.
    Other,
}

/// A table, as it was when the rows that follow were written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Relation {
    pub(super) id: u32,
    pub(super) schema: String,
    pub(super) name: String,
    pub(super) columns: Vec<Column>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    /// The OID of its type.
    pub(super) kind: u32,
}

/// A value, as text.
pub(super) type Value = Option<Bytes>;

/// Why a message is malformed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Malformed(pub(super) &'static str);

/// Reads one message of the replication stream.
pub(super) fn read(body: Bytes) -> Result<StreamMessage, Malformed> {
    let mut bytes = Input(body);
    match bytes.byte()? {
        b'w' => {
            // Start, end and the server's clock.
            bytes.take(24)?;
            change(bytes).map(StreamMessage::Change)
        }
        b'k' => {
            let end = bytes.lsn()?;
            bytes.take(8)?;
            Ok(StreamMessage::Keepalive { end, reply_requested: bytes.byte()? != 0 })
        }
        _ => Err(Malformed("unknown kind of stream message")),
    }
}

fn change(mut bytes: Input) -> Result<Change, Malformed> {
    match bytes.byte()? {
        b'B' => {
            let commit = bytes.lsn()?;
            bytes.take(12)?;
            Ok(Change::Begin { commit })
        }
        b'C' => {
            bytes.take(9)?;
            let end = bytes.lsn()?;
            bytes.take(8)?;
            Ok(Change::Commit { end })
        }
        b'R' => relation(bytes).map(Change::Relation),
        b'I' => {
            let relation = bytes.u32()?;
            if bytes.byte()? != b'N' {
                return Err(Malformed("an insert has no new row"));
            }
            Ok(Change::Insert { relation, values: values(bytes)? })
        }
        // Origin, type, update, delete, truncate, message: not needed.
        b'O' | b'Y' | b'U' | b'D' | b'T' | b'M' => Ok(Change::Other),
        _ => Err(Malformed("unknown kind of change")),
    }
}

fn relation(mut bytes: Input) -> Result<Relation, Malformed> {
    let (id, schema, name) = (bytes.u32()?, bytes.text()?, bytes.text()?);
    bytes.byte()?;
    let count = bytes.count()?;
    let mut columns = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        bytes.byte()?;
        let (name, kind) = (bytes.text()?, bytes.u32()?);
        bytes.take(4)?;
        columns.push(Column { name, kind });
    }
    Ok(Relation { id, schema, name, columns })
}

fn values(mut bytes: Input) -> Result<Vec<Value>, Malformed> {
    let count = bytes.count()?;
    let mut values = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        values.push(match bytes.byte()? {
            b'n' => None,
            b't' => {
                let length = usize::try_from(bytes.u32()?).map_err(|_| SHORT)?;
                Some(bytes.take(length)?)
            }
            b'u' => return Err(Malformed("an inserted row omits a value")),
            b'b' => return Err(Malformed("a value is binary instead of text")),
            _ => return Err(Malformed("unknown kind of value")),
        });
    }
    Ok(values)
}

const SHORT: Malformed = Malformed("a message ends too early");

/// Reads bytes from the front.
pub(super) struct Input(pub(super) Bytes);

impl Input {
    pub(super) fn take(&mut self, length: usize) -> Result<Bytes, Malformed> {
        if self.0.len() < length { Err(SHORT) } else { Ok(self.0.split_to(length)) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.as_ref().try_into().map_err(|_| SHORT)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn lsn(&mut self) -> Result<Lsn, Malformed> {
        Ok(Lsn(u64::from_be_bytes(self.array()?)))
    }

    pub(super) fn count(&mut self) -> Result<usize, Malformed> {
        let count = usize::from(u16::from_be_bytes(self.array()?));
        if count > COLUMNS_MAX { Err(Malformed("more columns than a table can have")) } else { Ok(count) }
    }

    /// Text up to the next zero byte.
    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        let length = self.0.iter().position(|byte| *byte == 0).ok_or(SHORT)?;
        let text = self.take(length)?;
        self.byte()?;
        String::from_utf8(text.to_vec()).map_err(|_| Malformed("a name is not UTF-8"))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A change, wrapped as in the stream.
    pub(crate) fn wrapped(change: &[u8]) -> Bytes {
        let mut bytes = vec![b'w'];
        bytes.extend([0; 24]);
        bytes.extend(change);
        bytes.into()
    }

    pub(crate) fn begin(commit: u64) -> Bytes {
        let mut bytes = vec![b'B'];
        bytes.extend(commit.to_be_bytes());
        bytes.extend([0; 12]);
        wrapped(&bytes)
    }

    pub(crate) fn commit(commit: u64, end: u64) -> Bytes {
        let mut bytes = vec![b'C', 0];
        bytes.extend(commit.to_be_bytes());
        bytes.extend(end.to_be_bytes());
        bytes.extend([0; 8]);
        wrapped(&bytes)
    }

    pub(crate) fn table(id: u32, schema: &str, name: &str, columns: &[&str]) -> Bytes {
        let mut bytes = vec![b'R'];
        bytes.extend(id.to_be_bytes());
        for text in [schema, name] {
            bytes.extend(text.bytes());
            bytes.push(0);
        }
        bytes.push(b'd');
        bytes.extend(u16::try_from(columns.len()).unwrap().to_be_bytes());
        for column in columns {
            bytes.push(0);
            bytes.extend(column.bytes());
            bytes.push(0);
            bytes.extend(25_u32.to_be_bytes());
            bytes.extend([0xff; 4]);
        }
        wrapped(&bytes)
    }

    pub(crate) fn insert(id: u32, values: &[Option<&str>]) -> Bytes {
        let mut bytes = vec![b'I'];
        bytes.extend(id.to_be_bytes());
        bytes.push(b'N');
        bytes.extend(u16::try_from(values.len()).unwrap().to_be_bytes());
        for value in values {
            match value {
                None => bytes.push(b'n'),
                Some(text) => {
                    bytes.push(b't');
                    bytes.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
                    bytes.extend(text.bytes());
                }
            }
        }
        wrapped(&bytes)
    }

    pub(crate) fn alive(end: u64, reply_requested: bool) -> Bytes {
        let mut bytes = vec![b'k'];
        bytes.extend(end.to_be_bytes());
        bytes.extend([0; 8]);
        bytes.push(u8::from(reply_requested));
        bytes.into()
    }

    #[test]
    fn every_kind_is_read() {
        let change = |bytes| match read(bytes) {
            Ok(StreamMessage::Change(change)) => change,
            other => panic!("{other:?}"),
        };
        assert_eq!(change(begin(7)), Change::Begin { commit: Lsn(7) });
        assert_eq!(change(commit(7, 9)), Change::Commit { end: Lsn(9) });
        let Change::Relation(relation) = change(table(5, "s", "t", &["a", "b"])) else { panic!() };
        assert_eq!((relation.id, relation.schema.as_str(), relation.name.as_str()), (5, "s", "t"));
        assert_eq!(relation.columns[1], Column { name: "b".into(), kind: 25 });
        let values = vec![None, Some(Bytes::from_static("grün".as_bytes()))];
        assert_eq!(change(insert(5, &[None, Some("grün")])), Change::Insert { relation: 5, values });
        assert_eq!(change(wrapped(b"Mxyz")), Change::Other);
        assert_eq!(read(alive(3, true)), Ok(StreamMessage::Keepalive { end: Lsn(3), reply_requested: true }));
    }

    #[test]
    fn whatever_ends_too_soon_is_refused() {
        let whole = [
            begin(7),
            commit(7, 9),
            table(5, "s", "t", &["a", "b"]),
            insert(5, &[None, Some("x")]),
            alive(1, false),
        ];
        for message in whole {
            for length in 0..message.len() {
                assert!(read(message.slice(..length)).is_err(), "{length} of {message:?}");
            }
            assert!(read(message).is_ok());
        }
    }

    #[test]
    fn what_lies_about_its_lengths_is_refused() {
        let mut many = vec![b'I', 0, 0, 0, 5, b'N'];
        many.extend(u16::MAX.to_be_bytes());
        assert_eq!(read(wrapped(&many)), Err(Malformed("more columns than a table can have")));
        let long = [b'I', 0, 0, 0, 5, b'N', 0, 1, b't', 0xff, 0xff, 0xff, 0xff, b'x'];
        assert_eq!(read(wrapped(&long)), Err(SHORT));
        for kind in [b'u', b'b', b'?'] {
            assert!(read(wrapped(&[b'I', 0, 0, 0, 5, b'N', 0, 1, kind])).is_err());
        }
        assert!(read(wrapped(b"?")).is_err() && read(Bytes::from_static(b"?")).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, kind in 0..8_usize, at: usize, byte: u8) {
            let _ = read(bytes.clone().into());
            let kinds = [b'B', b'C', b'R', b'I', b'O', b'M', b'Y', b'?'];
            let mut change = vec![kinds[kind]];
            change.extend(&bytes);
            let _ = read(wrapped(&change));
            // A good one with one wrong byte.
            let good = [begin(1), commit(1, 2), table(1, "s", "t", &["a"]), insert(1, &[Some("abc"), None])];
            let mut bad = good[kind % good.len()].to_vec();
            let at = at % bad.len();
            bad[at] = byte;
            let _ = read(bad.into());
        }
    }
}
