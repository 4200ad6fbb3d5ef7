//! Which table's rows are events, and how to read a row.

use uuid::Uuid;

use super::pgoutput::{Relation, Value};
use crate::outbox::Event;
use crate::relay::row::{Columns, Texts, event_uuid};

const JSON: u32 = 114;
const JSONB: u32 = 3802;
const BYTEA: u32 = 17;

/// Another table than `semel_outbox`: each row is an event, routed by its columns.
///
/// ```
/// use semel::relay::cdc::RoutedTable;
///
/// // As Debezium's outbox event router has it.
/// let table = RoutedTable::debezium("shop.outbox");
/// // A table with its own column names.
/// let table = RoutedTable::debezium("outbox").columns("event_id", "kind", "order_id", "name", "body").topic_prefix("");
/// ```
#[derive(Clone, Debug)]
pub struct RoutedTable {
    pub(super) name: String,
    columns: [String; 5],
    prefix: String,
    text_is: String,
}

impl RoutedTable {
    /// A table with the columns `id, aggregatetype, aggregateid, type, payload`. The topic is `outbox.event.` followed
    /// by the aggregate's type, the partition key is the aggregate's id, and the payload is sent unchanged.
    pub fn debezium(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            columns: ["id", "aggregatetype", "aggregateid", "type", "payload"].map(str::to_owned),
            prefix: "outbox.event.".to_owned(),
            text_is: "text/plain; charset=utf-8".to_owned(),
        }
    }

    /// The names of the columns: event id, what decides the topic, partition key, event type, payload.
    pub fn columns(mut self, id: &str, routed_by: &str, key: &str, kind: &str, payload: &str) -> Self {
        self.columns = [id, routed_by, key, kind, payload].map(str::to_owned);
        self
    }

    /// The prefix of topics, before the aggregate's type.
    pub fn topic_prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// The content type of payloads in a text column. Default: `text/plain; charset=utf-8`. Payloads of json and jsonb
    /// have `application/json`, those of bytea `application/octet-stream`.
    pub fn text_is(mut self, content_type: &str) -> Self {
        self.text_is = content_type.to_owned();
        self
    }
}

/// The table whose rows are events.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) schema: String,
    pub(super) name: String,
    /// `None`: `semel_outbox`.
    pub(super) routed: Option<RoutedTable>,
}

/// A row that is an event.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) event: Event,
    /// The transaction that wrote it, if the row has it.
    pub(super) xid: Option<u64>,
    pub(super) made_at: Option<String>,
    /// Why it cannot be published.
    pub(super) unreadable: Option<String>,
}

/// The indices of the columns that we need.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    at: Vec<usize>,
    payload_kind: u32,
    routed: Option<RoutedTable>,
}

const SEMEL: [&str; 14] = [
    "id",
    "topic",
    "type",
    "key",
    "aggregate_type",
    "aggregate_id",
    "content_type",
    "headers",
    "idempotency_key",
    "trace_parent",
    "intent",
    "payload",
    "xid",
    "made_at",
];

impl Table {
    /// How to read rows of this relation; `None`: it is not our table.
    pub(super) fn layout(&self, relation: &Relation) -> Option<Result<Layout, String>> {
        let part = |name: &str| {
            // A publication without publish_via_partition_root names the tables of the ring.
            self.routed.is_none() && matches!(name.strip_prefix("semel_outbox_"), Some("0" | "1" | "2" | "3"))
        };
        if relation.schema != self.schema || (relation.name != self.name && !part(&relation.name)) {
            return None;
        }
        let names: Vec<&str> = match &self.routed {
            Some(routed) => routed.columns.iter().map(String::as_str).collect(),
            None => SEMEL.to_vec(),
        };
        let find = |name: &&str| {
            let at = relation.columns.iter().position(|column| column.name == *name);
            at.ok_or_else(|| {
                format!("{}.{} has no column {name}; check the columns of the table", self.schema, self.name)
            })
        };
        let at: Result<Vec<usize>, String> = names.iter().map(find).collect();
        Some(at.map(|at| {
            let payload = at.get(if self.routed.is_some() { 4 } else { 11 });
            let kind = payload.and_then(|at| relation.columns.get(*at)).map_or(0, |column| column.kind);
            Layout { at, payload_kind: kind, routed: self.routed.clone() }
        }))
    }
}

impl Layout {
    pub(super) fn row(&self, values: &[Value]) -> Result<Row, String> {
        let value = |n: usize| self.at.get(n).and_then(|at| values.get(*at)).cloned().flatten();
        let mut texts = Texts::default();
        let name = |n: usize| match &self.routed {
            Some(routed) => routed.columns.get(n).map_or("", String::as_str),
            None => SEMEL.get(n).copied().unwrap_or(""),
        };
        let mut text = |n: usize| value(n).map(|bytes| texts.read(name(n), &bytes));
        if let Some(routed) = &self.routed {
            let (id, payload) = (text(0).unwrap_or_default(), value(4).unwrap_or_default());
            let (payload, content_type) = match self.payload_kind {
                BYTEA if payload.is_empty() => (Vec::new(), "application/octet-stream"),
                BYTEA => (unhex(&payload)?, "application/octet-stream"),
                JSON | JSONB => (payload.to_vec(), "application/json"),
                _ => (payload.to_vec(), routed.text_is.as_str()),
            };
            let (aggregate_type, key) = (text(1).unwrap_or_default(), text(2));
            let columns = Columns {
                id: event_uuid(&id),
                topic: format!("{}{aggregate_type}", routed.prefix),
                kind: text(3).unwrap_or_default(),
                key: key.clone(),
                aggregate_type: Some(aggregate_type),
                aggregate_id: key,
                content_type: content_type.to_owned(),
                headers: None,
                idempotency_key: None,
                trace_parent: None,
                intent: None,
                payload,
                unreadable: None,
            };
            let mut event = columns.event();
            // Consumers of Debezium's router expect it there.
            event.headers.push(("id".to_owned(), id));
            return Ok(Row { event, xid: None, made_at: None, unreadable: texts.unreadable });
        }
        let columns = Columns {
            id: Uuid::parse_str(&text(0).unwrap_or_default()).map_err(|error| error.to_string())?,
            topic: text(1).unwrap_or_default(),
            kind: text(2).unwrap_or_default(),
            key: text(3),
            aggregate_type: text(4),
            aggregate_id: text(5),
            content_type: text(6).unwrap_or_default(),
            headers: text(7),
            idempotency_key: text(8),
            trace_parent: text(9),
            intent: value(10).map(|hex| unhex(&hex)).transpose()?,
            payload: unhex(&value(11).unwrap_or_default())?,
            unreadable: None,
        };
        let (xid, made_at) = (text(12).and_then(|xid| xid.parse().ok()), text(13));
        Ok(Row { event: columns.event(), xid, made_at, unreadable: texts.unreadable })
    }
}

/// `\x6162`, as the server writes bytes.
fn unhex(text: &[u8]) -> Result<Vec<u8>, String> {
    let wrong = || "a bytea value is not in hexadecimal form".to_owned();
    let digits = text.strip_prefix(b"\\x").ok_or_else(wrong)?;
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(wrong());
    }
    let mut bytes = Vec::with_capacity(pairs.len());
    for [high, low] in pairs {
        let (high, low) = (DIGITS[usize::from(*high)], DIGITS[usize::from(*low)]);
        if high | low > 0xf {
            return Err(wrong());
        }
        bytes.push(high << 4 | low);
    }
    Ok(bytes)
}

/// The value of a character as a hexadecimal digit; 0xff if it is not one.
const DIGITS: [u8; 256] = {
    let mut digits = [0xff; 256];
    let mut n = 0;
    while n < 16 {
        digits[b"0123456789abcdef"[n as usize] as usize] = n;
        digits[b"0123456789ABCDEF"[n as usize] as usize] = n;
        n += 1;
    }
    digits
};

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::relay::cdc::pgoutput::Column;

    fn relation(name: &str, columns: &[(&str, u32)]) -> Relation {
        let columns =
            columns.iter().map(|(name, kind)| Column { name: (*name).into(), kind: *kind }).collect();
        Relation { id: 1, schema: "s".into(), name: name.into(), columns }
    }

    fn values(texts: &[Option<&str>]) -> Vec<Value> {
        texts.iter().map(|text| text.map(|text| Bytes::copy_from_slice(text.as_bytes()))).collect()
    }

    #[test]
    fn a_routed_row_goes_where_the_router_would_send_it() {
        let table = Table {
            schema: "s".into(),
            name: "outbox".into(),
            routed: Some(RoutedTable::debezium("outbox")),
        };
        let columns = [
            ("payload", JSONB),
            ("id", 2950),
            ("more", 23),
            ("aggregatetype", 25),
            ("aggregateid", 25),
            ("type", 25),
        ];
        let layout = table.layout(&relation("outbox", &columns)).unwrap().unwrap();
        let id = "0190163d-8694-739b-aea5-966c26f8ad91";
        let row =
            values(&[Some(r#"{"a": 1}"#), Some(id), None, Some("order"), Some("7"), Some("OrderCreated")]);
        let event = layout.row(&row).unwrap().event;
        assert_eq!(
            (event.topic(), event.kind(), event.ordered_by()),
            ("outbox.event.order", "OrderCreated", Some("7"))
        );
        assert_eq!((event.id().to_string().as_str(), event.media_type()), (id, "application/json"));
        assert_eq!(event.payload().as_ref(), br#"{"a": 1}"#);
        assert_eq!(event.headers().collect::<Vec<_>>(), [("id", id)]);
        assert!(table.layout(&relation("other", &columns)).is_none());
        assert!(table.layout(&relation("outbox", &columns[1..])).unwrap().is_err());
        // Bytes arrive as hexadecimal digits, and null as an empty payload.
        let bytes = columns.map(|(name, kind)| (name, if name == "payload" { BYTEA } else { kind }));
        let layout = table.layout(&relation("outbox", &bytes)).unwrap().unwrap();
        for (given, wanted) in [(Some("\\x6162"), &b"ab"[..]), (Some("\\x"), b""), (None, b"")] {
            let row = values(&[given, Some(id), None, Some("order"), Some("7"), Some("OrderCreated")]);
            assert_eq!(layout.row(&row).unwrap().event.payload().as_ref(), wanted);
        }
        assert_eq!(event_uuid("order-7"), event_uuid("order-7"));
        assert_ne!(event_uuid("order-7"), event_uuid("order-8"));
    }

    #[test]
    fn bytes_are_read_or_refused() {
        assert_eq!(unhex(b"\\x6100fF").unwrap(), [0x61, 0, 0xff]);
        assert!(unhex(b"\\x").unwrap().is_empty());
        for bad in [&b"61"[..], b"", b"\\x6", b"\\x6g", b"abc"] {
            assert!(unhex(bad).is_err());
        }
    }

    #[test]
    fn the_ring_is_known_by_its_root_and_its_tables() {
        let table = Table { schema: "s".into(), name: "semel_outbox".into(), routed: None };
        let columns: Vec<(&str, u32)> = SEMEL.iter().map(|name| (*name, 25)).collect();
        for name in ["semel_outbox", "semel_outbox_0", "semel_outbox_3"] {
            assert!(table.layout(&relation(name, &columns)).is_some());
        }
        for name in ["semel_outbox_4", "semel_outbox_key", "semel_outbox_parked"] {
            assert!(table.layout(&relation(name, &columns)).is_none());
        }
    }
}
