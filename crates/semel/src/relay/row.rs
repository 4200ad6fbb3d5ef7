//! From a row to an event. Services in other languages write rows too, so nothing is refused here: unreadable values
//! are left out, and the sink rejects what it does not accept. A row with text that is not UTF-8 cannot be published:
//! it is parked, with the reason.

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::intent::identity::IntentId;
use crate::intent::key::Key;
use crate::outbox::Event;
use crate::relay::outbox_reader::Pending;

/// A row of one of the drivers.
pub trait OutboxRow {
    /// The error of a value that cannot be read.
    type Error;

    /// A text as raw bytes, which need not be UTF-8.
    fn text(&self, at: usize) -> Result<Option<&[u8]>, Self::Error>;

    /// Bytes.
    fn bytes(&self, at: usize) -> Result<Option<Vec<u8>>, Self::Error>;

    /// A number.
    fn int(&self, at: usize) -> Result<i64, Self::Error>;

    /// The error of a row that this version cannot read.
    fn unreadable(why: String) -> Self::Error;

    /// A text for display, with `\u{fffd}` in place of invalid bytes.
    fn readable_if_any(&self, at: usize) -> Result<Option<String>, Self::Error> {
        Ok(self.text(at)?.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
    }

    /// The same, or nothing for NULL.
    fn readable(&self, at: usize) -> Result<String, Self::Error> {
        Ok(self.readable_if_any(at)?.unwrap_or_default())
    }
}

/// The id as a UUID. Other text is hashed into one, always the same.
pub(in crate::relay) fn event_uuid(id: &str) -> Uuid {
    Uuid::parse_str(id).unwrap_or_else(|_| {
        let digest = Sha256::digest(id.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    })
}

/// Most bytes shown of a text that is not UTF-8.
const SHOWN_BYTES_MAX: usize = 200;

/// The texts of one row. The first that is not UTF-8 is why it cannot be published.
#[derive(Debug, Default)]
pub(in crate::relay) struct Texts {
    pub(in crate::relay) unreadable: Option<String>,
}

impl Texts {
    /// The text of a column, with `\u{fffd}` in place of invalid bytes.
    pub(in crate::relay) fn read(&mut self, column: &str, bytes: &[u8]) -> String {
        let text = String::from_utf8_lossy(bytes);
        if let std::borrow::Cow::Owned(_) = text {
            self.unreadable.get_or_insert_with(|| {
                let shown = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
                let hex = shown.iter().fold(String::new(), |mut hex, byte| {
                    let _ = write!(hex, "{byte:02x}");
                    hex
                });
                format!(
                    "the column {column} is not UTF-8 (its bytes are {hex}); correct the row in semel_outbox_parked \
                     and retry it, or skip it"
                )
            });
        }
        text.into_owned()
    }
}

pub(in crate::relay) struct Columns {
    pub(in crate::relay) id: Uuid,
    pub(in crate::relay) topic: String,
    pub(in crate::relay) kind: String,
    pub(in crate::relay) key: Option<String>,
    pub(in crate::relay) aggregate_type: Option<String>,
    pub(in crate::relay) aggregate_id: Option<String>,
    pub(in crate::relay) content_type: String,
    pub(in crate::relay) headers: Option<String>,
    pub(in crate::relay) idempotency_key: Option<String>,
    pub(in crate::relay) trace_parent: Option<String>,
    pub(in crate::relay) intent: Option<Vec<u8>>,
    pub(in crate::relay) payload: Vec<u8>,
    /// Why the row cannot be published.
    pub(in crate::relay) unreadable: Option<String>,
}

impl Columns {
    /// The event in the twelve columns from `first` on.
    pub(in crate::relay) fn read<R: OutboxRow>(row: &R, first: usize) -> Result<Self, R::Error> {
        let mut texts = Texts::default();
        let mut text = |at: usize, column: &str| -> Result<Option<String>, R::Error> {
            Ok(row.text(first + at)?.map(|bytes| texts.read(column, bytes)))
        };
        let mut needed = |at: usize, column: &str| {
            text(at, column)?.ok_or_else(|| R::unreadable(format!("the column {column} is null")))
        };
        let (id, topic) = (needed(0, "id")?, needed(1, "topic")?);
        let (kind, content_type) = (needed(2, "type")?, needed(6, "content_type")?);
        Ok(Self {
            id: event_uuid(&id),
            topic,
            kind,
            key: text(3, "key")?,
            aggregate_type: text(4, "aggregate_type")?,
            aggregate_id: text(5, "aggregate_id")?,
            content_type,
            headers: text(7, "headers")?,
            idempotency_key: text(8, "idempotency_key")?,
            trace_parent: text(9, "trace_parent")?,
            intent: row.bytes(first + 10)?,
            payload: row.bytes(first + 11)?.unwrap_or_default(),
            unreadable: texts.unreadable,
        })
    }

    /// As an event of a batch. `held`: an earlier event of its key is parked.
    pub(in crate::relay) fn pending(mut self, held: bool) -> Pending {
        let unreadable = self.unreadable.take();
        Pending { event: Arc::new(self.event()), held, unreadable }
    }

    pub(in crate::relay) fn event(self) -> Event {
        let kind = self.aggregate_type;
        Event {
            id: self.id,
            topic: self.topic,
            kind: self.kind,
            key: self.key,
            // The id alone decides the order, as it decides the partition.
            aggregate: self.aggregate_id.map(|id| (kind.unwrap_or_default(), id)),
            content_type: self.content_type,
            headers: self.headers.as_deref().map(headers).unwrap_or_default(),
            idempotency_key: self.idempotency_key.and_then(|key| Key::new(key).ok()),
            trace_parent: self.trace_parent,
            intent: self.intent.and_then(|id| id.try_into().ok()).map(IntentId::from_bytes),
            payload: Bytes::from(self.payload),
        }
    }
}

fn headers(json: &str) -> Vec<(String, String)> {
    let Ok(serde_json::Value::Object(named)) = serde_json::from_str(json) else { return Vec::new() };
    let text = |value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    named.into_iter().map(|(name, value)| (name, text(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_text_that_is_not_utf8_is_the_reason() {
        let mut texts = Texts::default();
        assert_eq!((texts.read("id", b"1").as_str(), &texts.unreadable), ("1", &None));
        assert_eq!(texts.read("topic", b"t\xff"), "t\u{fffd}");
        assert_eq!(texts.read("key", &[0xff; 10_000]).chars().count(), 10_000);
        let reason = texts.unreadable.unwrap();
        assert!(reason.contains("topic") && reason.contains("74ff") && !reason.contains("key"), "{reason}");
    }

    #[test]
    fn headers_of_any_language_become_text() {
        let read = headers(r#"{"a": "x", "n": 7, "o": {"p": true}}"#);
        let read: Vec<_> = read.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        assert_eq!(read, [("a", "x"), ("n", "7"), ("o", r#"{"p":true}"#)]);
        assert_eq!(headers("[1]"), []);
        assert_eq!(headers("nonsense"), []);
    }
}
