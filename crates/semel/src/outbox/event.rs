//! An event to be published, validated before it is appended.

use bytes::Bytes;
use uuid::Uuid;

use crate::intent::identity::{Intent, IntentId};
use crate::intent::key::Key;

/// Longest topic, type, content type, aggregate type or header name, in bytes.
pub const NAME_BYTES_MAX: usize = 200;
/// Longest partition key, aggregate id or header value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1_000;
/// Most headers of one event.
pub const HEADERS_MAX: usize = 32;
/// Largest payload in bytes: the default limit of brokers, less some room for headers.
pub const PAYLOAD_BYTES_MAX: usize = 1_000_000;

/// Something that happened, to be published once the transaction it is appended in has committed.
///
/// ```
/// use semel::outbox::Event;
///
/// let event = Event::new("payments", "payment.completed", r#"{"payment":7,"cents":4200}"#)?
///     .key("account-7")?
///     .aggregate("payment", "7")?
///     .header("region", "eu")?;
/// assert_eq!(event.topic(), "payments");
/// # Ok::<(), semel::outbox::EventError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Event {
    pub(crate) id: Uuid,
    pub(crate) topic: String,
    pub(crate) kind: String,
    pub(crate) key: Option<String>,
    pub(crate) aggregate: Option<(String, String)>,
    pub(crate) content_type: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) idempotency_key: Option<Key>,
    pub(crate) trace_parent: Option<String>,
    pub(crate) intent: Option<IntentId>,
    pub(crate) payload: Bytes,
}

/// Why an event is invalid. Nothing was appended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// See [`NAME_BYTES_MAX`].
    #[error("{what} must have 1 to {NAME_BYTES_MAX} printable ASCII characters and no space")]
    Name {
        /// Which name.
        what: &'static str,
    },
    /// See [`VALUE_BYTES_MAX`].
    #[error("{what} must have 1 to {VALUE_BYTES_MAX} bytes of text without control characters")]
    Value {
        /// Which value.
        what: &'static str,
    },
    /// See [`HEADERS_MAX`].
    #[error("an event must have at most {HEADERS_MAX} headers")]
    Headers,
    /// Reserved header names.
    #[error("a header's name must not begin with `semel-` or `ce_`: the relay sets those")]
    Reserved,
    /// Two headers with the same name.
    #[error("the event already has a header {name:?}")]
    Twice {
        /// Its name.
        name: String,
    },
    /// See [`PAYLOAD_BYTES_MAX`].
    #[error(
        "the payload has {len} bytes, but at most {PAYLOAD_BYTES_MAX} are allowed: store it and send a reference to it"
    )]
    Payload {
        /// Its length.
        len: usize,
    },
    /// Not `00-…-…-…` as defined by W3C Trace Context.
    #[error("{text:?} is not a traceparent: 00-<32 hex digits>-<16 hex digits>-<2 hex digits>")]
    Trace {
        /// What was given.
        text: String,
    },
}

impl Event {
    /// An event of this type for this topic, with a new id (UUIDv7).
    pub fn new(topic: &str, kind: &str, payload: impl Into<Bytes>) -> Result<Self, EventError> {
        let payload = payload.into();
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(EventError::Payload { len: payload.len() });
        }
        Ok(Self {
            id: Uuid::now_v7(),
            topic: name("the topic", topic)?,
            kind: name("the event's type", kind)?,
            key: None,
            aggregate: None,
            content_type: "application/json".to_owned(),
            headers: Vec::new(),
            idempotency_key: None,
            trace_parent: None,
            intent: None,
            payload,
        })
    }

    /// The partition key. Events with the same key are published in the order in which their transactions appended
    /// them, and go to the same partition of the broker, if any. Without a key: the aggregate's id; without that, no
    /// order.
    pub fn key(mut self, key: &str) -> Result<Self, EventError> {
        self.key = Some(value("the partition key", key)?);
        Ok(self)
    }

    /// The aggregate that the event is about.
    pub fn aggregate(mut self, kind: &str, id: &str) -> Result<Self, EventError> {
        self.aggregate = Some((name("the aggregate's type", kind)?, value("the aggregate's id", id)?));
        Ok(self)
    }

    /// The payload's content type: by default `application/json`.
    pub fn content_type(mut self, content_type: &str) -> Result<Self, EventError> {
        self.content_type = value("the content type", content_type)?;
        Ok(self)
    }

    /// Adds a header, which the relay passes to the broker.
    pub fn header(mut self, header: &str, text: &str) -> Result<Self, EventError> {
        let header = name("a header's name", header)?;
        let lower = header.to_ascii_lowercase();
        if lower.starts_with("semel-") || lower.starts_with("ce_") {
            return Err(EventError::Reserved);
        }
        if self.headers.len() == HEADERS_MAX {
            return Err(EventError::Headers);
        }
        if self.headers.iter().any(|(there, _)| *there == header) {
            return Err(EventError::Twice { name: header });
        }
        self.headers.push((header, value("a header's value", text)?));
        Ok(self)
    }

    /// The idempotency key. While the outbox remembers it, a second event with this key is a duplicate.
    pub fn once(mut self, key: Key) -> Self {
        self.idempotency_key = Some(key);
        self
    }

    /// The event's W3C trace context: `00-<trace>-<span>-<flags>`.
    pub fn trace_parent(mut self, trace_parent: &str) -> Result<Self, EventError> {
        if !is_trace_parent(trace_parent) {
            return Err(EventError::Trace { text: trace_parent.to_owned() });
        }
        self.trace_parent = Some(trace_parent.to_owned());
        Ok(self)
    }

    /// The intent that caused it.
    pub fn caused_by(mut self, intent: &Intent) -> Self {
        self.intent = Some(intent.id());
        self
    }

    /// The event's id, by which a consumer can deduplicate: the same however often it is published.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Sets the id, so that the caller's own retries have the same one.
    pub fn with_id(mut self, id: Uuid) -> Self {
        self.id = id;
        self
    }

    /// The event's type.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The payload.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The payload's content type.
    pub fn media_type(&self) -> &str {
        &self.content_type
    }

    /// The headers, in the order they were given.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// The W3C trace context.
    pub fn trace(&self) -> Option<&str> {
        self.trace_parent.as_deref()
    }

    /// The intent that caused it.
    pub fn intent(&self) -> Option<&IntentId> {
        self.intent.as_ref()
    }

    /// The aggregate: type and id.
    pub fn subject(&self) -> Option<(&str, &str)> {
        self.aggregate.as_ref().map(|(kind, id)| (kind.as_str(), id.as_str()))
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The key that the event is ordered by: the partition key, or the aggregate's id.
    pub fn ordered_by(&self) -> Option<&str> {
        self.key.as_deref().or(self.aggregate.as_ref().map(|(_, id)| id.as_str()))
    }
}

fn name(what: &'static str, text: &str) -> Result<String, EventError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(text.to_owned()) } else { Err(EventError::Name { what }) }
}

fn value(what: &'static str, text: &str) -> Result<String, EventError> {
    let fits = (1..=VALUE_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    if fits { Ok(text.to_owned()) } else { Err(EventError::Value { what }) }
}

fn is_trace_parent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &str, len| {
        part.len() == len && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let [version, trace, span, flags] = parts[..] else { return false };
    let named = |part: &str| part.bytes().any(|byte| byte != b'0');
    version == "00" && hex(trace, 32) && hex(span, 16) && hex(flags, 2) && named(trace) && named(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event::new("payments", "payment.completed", "{}").unwrap()
    }

    #[test]
    fn what_no_broker_would_take_is_refused_here() {
        assert_eq!(Event::new("", "a", "").unwrap_err(), EventError::Name { what: "the topic" });
        assert!(Event::new("a b", "a", "").is_err());
        assert!(Event::new(&"t".repeat(NAME_BYTES_MAX + 1), "a", "").is_err());
        let large = vec![0; PAYLOAD_BYTES_MAX + 1];
        assert_eq!(
            Event::new("t", "a", large).unwrap_err(),
            EventError::Payload { len: PAYLOAD_BYTES_MAX + 1 }
        );
        assert!(event().key("").is_err());
        assert!(event().key("a\nb").is_err());
        assert!(event().key("Grüße").is_ok());
        assert!(event().content_type("application/json; charset=utf-8").is_ok());
    }

    #[test]
    fn headers_are_few_and_named_once() {
        assert_eq!(event().header("Semel-Id", "1").unwrap_err(), EventError::Reserved);
        assert_eq!(event().header("ce_id", "1").unwrap_err(), EventError::Reserved);
        let one = event().header("a", "1").unwrap();
        assert_eq!(one.header("a", "2").unwrap_err(), EventError::Twice { name: "a".into() });
        let mut full = event();
        for n in 0..HEADERS_MAX {
            full = full.header(&format!("h{n}"), "v").unwrap();
        }
        assert_eq!(full.header("more", "v").unwrap_err(), EventError::Headers);
    }

    #[test]
    fn order_is_kept_by_the_key_or_by_the_aggregate() {
        assert_eq!(event().ordered_by(), None);
        let about = event().aggregate("payment", "7").unwrap();
        assert_eq!(about.ordered_by(), Some("7"));
        assert_eq!(about.key("account-3").unwrap().ordered_by(), Some("account-3"));
    }

    #[test]
    fn a_trace_parent_is_checked() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(event().trace_parent(good).is_ok());
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        ] {
            assert!(event().trace_parent(bad).is_err(), "{bad}");
        }
    }
}
