//! Parses Redis' answers into stream entries. Pure.

use bytes::Bytes;
use redis::Value;

use super::options::RedisStreamSourceOptions;
use crate::source::{Delivery, Receipt};

/// The id of an entry: milliseconds, and a sequence number within them. Sorts in the stream's order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct EntryId(u64, u64);

impl EntryId {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (millis, n) = text.split_once('-')?;
        Some(Self(millis.parse().ok()?, n.parse().ok()?))
    }
}

impl std::fmt::Display for EntryId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// An entry and its fields; `None` if it was trimmed.
pub(super) type Entry = (EntryId, Option<Vec<(Bytes, Bytes)>>);

/// The answer of `XREADGROUP` for one stream; empty if there are no entries.
pub(super) fn read(answer: Value) -> Option<Vec<Entry>> {
    let stream = match answer {
        Value::Nil => return Some(Vec::new()),
        Value::Array(streams) => streams.into_iter().next(),
        // RESP3 has maps.
        Value::Map(streams) => return entries(streams.into_iter().next()?.1),
        _ => return None,
    };
    let Some(Value::Array(stream)) = stream else { return Some(Vec::new()) };
    entries(stream.into_iter().nth(1)?)
}

/// The answer of `XAUTOCLAIM`: the next cursor, the claimed entries, and the trimmed ones.
pub(super) fn claimed(answer: Value) -> Option<(String, Vec<Entry>, Vec<EntryId>)> {
    let Value::Array(parts) = answer else { return None };
    let mut parts = parts.into_iter();
    let cursor = text(&parts.next()?)?;
    let claimed = entries(parts.next()?)?;
    let trimmed = parts.next().map_or(Some(Vec::new()), ids)?;
    Some((cursor, claimed, trimmed))
}

pub(super) fn ids(answer: Value) -> Option<Vec<EntryId>> {
    let Value::Array(ids) = answer else { return None };
    ids.iter().map(|id| EntryId::parse(&text(id)?)).collect()
}

/// The answer of `XPENDING`: how often each entry was delivered.
pub(super) fn deliveries(answer: Value) -> Option<Vec<(EntryId, u32)>> {
    let Value::Array(pending) = answer else { return None };
    let one = |entry: &Value| match entry {
        Value::Array(parts) => match (parts.first(), parts.get(3)) {
            (Some(id), Some(Value::Int(count))) => {
                Some((EntryId::parse(&text(id)?)?, u32::try_from(*count).unwrap_or(u32::MAX)))
            }
            _ => None,
        },
        _ => None,
    };
    pending.iter().map(one).collect()
}

/// The answer of `XRANGE`: the milliseconds of the first entry, if there is one.
pub(super) fn first(answer: Value) -> Option<Option<u64>> {
    Some(entries(answer)?.first().map(|(EntryId(millis, _), _)| *millis))
}

fn entries(answer: Value) -> Option<Vec<Entry>> {
    let Value::Array(all) = answer else { return None };
    // Redis 6 returns nil for a trimmed entry.
    all.into_iter().filter(|entry| *entry != Value::Nil).map(entry).collect()
}

fn entry(answer: Value) -> Option<Entry> {
    let Value::Array(parts) = answer else { return None };
    let mut parts = parts.into_iter();
    let id = EntryId::parse(&text(&parts.next()?)?)?;
    let fields = match parts.next()? {
        Value::Nil => return Some((id, None)),
        Value::Array(fields) => fields,
        _ => return None,
    };
    let fields: Option<Vec<Bytes>> = fields.into_iter().map(bytes).collect();
    let pairs = fields?.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    Some((id, Some(pairs)))
}

fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        Value::SimpleString(text) => Some(text.into()),
        _ => None,
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

pub(super) fn delivery(
    id: EntryId,
    fields: Vec<(Bytes, Bytes)>,
    count: Option<u32>,
    options: &RedisStreamSourceOptions,
) -> Delivery {
    let position = format!("{}/{id}", options.stream);
    let mut delivery = Delivery::new(Receipt(0), &options.stream, position, "");
    delivery.deliveries = count;
    let mut payload = None;
    for (name, value) in fields {
        if name == options.payload.as_bytes() {
            // Only the first one is the payload; a second one was a header of the same name.
            payload.get_or_insert(value);
            continue;
        }
        let (Ok(name), Ok(text)) = (std::str::from_utf8(&name), std::str::from_utf8(&value)) else {
            continue;
        };
        if name == options.key {
            delivery.key = Some(text.to_owned());
        } else {
            delivery.headers.push((name.to_owned(), text.to_owned()));
        }
    }
    delivery.payload = payload.unwrap_or_default();
    delivery
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn list(of: &[Value]) -> Value {
        Value::Array(of.to_vec())
    }

    #[test]
    fn entries_are_read_and_trimmed_ones_are_reported() {
        assert_eq!(read(Value::Nil), Some(Vec::new()));
        let there = list(&[bulk("7-1"), list(&[bulk("a"), bulk("1")])]);
        let gone = list(&[bulk("10-0"), Value::Nil]);
        let answer = list(&[list(&[bulk("s"), list(&[there.clone(), gone])])]);
        let fields = vec![(Bytes::from("a"), Bytes::from("1"))];
        assert_eq!(read(answer), Some(vec![(EntryId(7, 1), Some(fields.clone())), (EntryId(10, 0), None)]));
        let answer = list(&[bulk("0-0"), list(&[there]), list(&[bulk("3-0")])]);
        let wanted = ("0-0".to_owned(), vec![(EntryId(7, 1), Some(fields))], vec![EntryId(3, 0)]);
        assert_eq!(claimed(answer), Some(wanted));
        assert_eq!(read(bulk("?")), None, "an unknown answer is not an empty one");
    }

    #[test]
    fn a_second_payload_is_none() {
        let options = RedisStreamSourceOptions::new("redis://127.0.0.1", "s", "g").unwrap();
        let field = |name: &str, text: &str| (Bytes::from(name.to_owned()), Bytes::from(text.to_owned()));
        let fields =
            vec![field(&options.payload, "mine"), field("region", "eu"), field(&options.payload, "forged")];
        let delivery = delivery(EntryId(7, 1), fields, None, &options);
        assert_eq!((delivery.payload.as_ref(), delivery.header("region")), (&b"mine"[..], Some("eu")));
        assert_eq!(delivery.headers.len(), 1);
    }

    #[test]
    fn ids_have_the_order_of_the_stream() {
        let id = |text| EntryId::parse(text).unwrap();
        assert!(id("9-2") < id("10-1") && id("9-2") < id("9-10"));
        assert_eq!(id("9-2").to_string(), "9-2");
        assert_eq!(EntryId::parse("9"), None);
    }

    #[test]
    fn deliveries_are_counted_by_the_group() {
        let answer = list(&[list(&[bulk("7-1"), bulk("me"), Value::Int(12), Value::Int(3)])]);
        assert_eq!(deliveries(answer), Some(vec![(EntryId(7, 1), 3)]));
    }
}
