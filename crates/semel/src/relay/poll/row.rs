//! An event as the table has it. Services in other languages write rows too, so nothing is refused here: what cannot be
//! read is left out, and what the sink does not take it says.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::intent::identity::IntentId;
use crate::intent::key::Key;
use crate::outbox::Event;

/// An id is a UUID; what is none becomes one, always the same.
pub(in crate::relay) fn named(id: &str) -> Uuid {
    Uuid::parse_str(id).unwrap_or_else(|_| {
        let digest = Sha256::digest(id.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    })
}

/// The columns.
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
}

impl Columns {
    pub(in crate::relay) fn event(self) -> Event {
        let kind = self.aggregate_type;
        Event {
            id: self.id,
            topic: self.topic,
            kind: self.kind,
            key: self.key,
            // Order is kept by the id alone, as in the lanes.
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
    fn headers_of_any_language_become_text() {
        let told = headers(r#"{"a": "x", "n": 7, "o": {"p": true}}"#);
        let told: Vec<_> = told.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        assert_eq!(told, [("a", "x"), ("n", "7"), ("o", r#"{"p":true}"#)]);
        assert_eq!(headers("[1]"), []);
        assert_eq!(headers("nonsense"), []);
    }
}
