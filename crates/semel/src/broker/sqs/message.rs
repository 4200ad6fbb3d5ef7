//! Encodes an event as an SQS message. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::outbox::Event;
use crate::sink::headers::{self, Style};
use crate::sink::repeats::deduplication_id;

/// Largest message and largest batch that SQS accepts, attributes included.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Most messages of one request.
pub(super) const ENTRIES_MAX: usize = 10;
/// Most attributes of one message.
const ATTRIBUTES_MAX: usize = 10;
/// Longest `MessageGroupId`.
const GROUP_CHARS_MAX: usize = 128;

/// The event's topic.
pub(super) const TOPIC: &str = "semel-topic";
/// The body's encoding, if the body is not the payload itself.
pub(super) const ENCODING: &str = "semel-encoding";
/// The event's own headers, if too many for the attributes: a JSON array of pairs.
pub(super) const HEADERS: &str = "semel-headers";
/// The payload has characters that SQS does not support.
pub(super) const BASE64: &str = "base64";
/// The payload is empty, which SQS does not support.
pub(super) const EMPTY: &str = "empty";
const HASHED: &str = "sha256:";
const TYPE: &str = "String";

/// The message of one event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Message {
    /// The deduplication id.
    pub(super) id: String,
    pub(super) group: String,
    pub(super) body: String,
    pub(super) attributes: Vec<(String, String)>,
}

impl Message {
    /// An error: SQS does not support the event.
    pub(super) fn of(event: &Event) -> Result<Self, String> {
        let (body, encoding) = body(event.payload());
        let mut attributes = headers::of(event, &Style::Plain, "");
        let mut theirs = attributes.split_off(attributes.len() - own(event, &attributes));
        // A reader would take them for ours, and decode the payload wrongly.
        theirs.retain(|(name, _)| ![TOPIC, ENCODING, HEADERS].contains(&name.as_str()));
        attributes.push((TOPIC.to_owned(), event.topic().to_owned()));
        attributes.extend(encoding.map(|encoding| (ENCODING.to_owned(), encoding.to_owned())));
        let fit = attributes.len() + theirs.len() <= ATTRIBUTES_MAX
            && theirs.iter().all(|(name, _)| is_attribute_name(name));
        if fit {
            attributes.extend(theirs);
        } else {
            let packed = serde_json::to_string(&theirs).map_err(|error| error.to_string())?;
            attributes.push((HEADERS.to_owned(), packed));
        }
        if let Some((name, _)) = attributes.iter().find(|(_, text)| !is_text(text)) {
            return Err(format!("the attribute {name:?} has a character that SQS does not support"));
        }
        Ok(Self { id: deduplication_id(event), group: group(event), body, attributes })
    }

    /// Size in bytes, as SQS counts it.
    pub(super) fn bytes(&self) -> usize {
        let attribute = |(name, text): &(String, String)| name.len() + TYPE.len() + text.len();
        self.body.len() + self.attributes.iter().map(attribute).sum::<usize>()
    }
}

/// The number of headers at the end that are the event's own.
fn own(event: &Event, all: &[(String, String)]) -> usize {
    let last = all.iter().rev();
    last.take_while(|(name, _)| event.headers().any(|(theirs, _)| theirs == name)).count()
}

/// The message group: the ordering key, or the deduplication id. A key that SQS does not accept, or that looks like a
/// digest, is replaced by its digest.
fn group(event: &Event) -> String {
    let Some(key) = event.ordered_by() else { return deduplication_id(event) };
    let fits = key.len() <= GROUP_CHARS_MAX
        && key.bytes().all(|byte| byte.is_ascii_graphic())
        && !key.starts_with(HASHED);
    if fits {
        return key.to_owned();
    }
    use std::fmt::Write;
    Sha256::digest(key).iter().fold(HASHED.to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn body(payload: &[u8]) -> (String, Option<&'static str>) {
    match std::str::from_utf8(payload) {
        Ok("") => ("-".to_owned(), Some(EMPTY)),
        Ok(text) if is_text(text) => (text.to_owned(), None),
        _ => (STANDARD.encode(payload), Some(BASE64)),
    }
}

/// Decodes a body, for readers. A body that cannot be decoded is returned as it is.
pub(super) fn payload(body: &str, encoding: Option<&str>) -> bytes::Bytes {
    match encoding {
        Some(EMPTY) => bytes::Bytes::new(),
        Some(BASE64) => STANDARD
            .decode(body)
            .map_or_else(|_| bytes::Bytes::copy_from_slice(body.as_bytes()), bytes::Bytes::from),
        _ => bytes::Bytes::copy_from_slice(body.as_bytes()),
    }
}

/// Decodes the headers in an attribute, for readers.
pub(super) fn unpacked(packed: &str) -> Option<Vec<(String, String)>> {
    serde_json::from_str(packed).ok()
}

/// Whether SQS, like XML 1.0, allows all characters.
fn is_text(text: &str) -> bool {
    text.chars().all(|char| match char {
        '\t' | '\n' | '\r' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        char => char >= ' ',
    })
}

fn is_attribute_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
        && !lower.starts_with("aws.")
        && !lower.starts_with("amazon.")
}

/// How many of these, from the first on, fit into one request.
pub(super) fn fitting(sizes: impl Iterator<Item = usize>, bytes_max: usize) -> usize {
    let mut sum = 0;
    sizes
        .take(ENTRIES_MAX)
        .take_while(|bytes| {
            sum += bytes;
            sum <= bytes_max
        })
        .count()
        .max(1)
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
