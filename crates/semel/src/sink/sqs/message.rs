//! An event as a message of SQS. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::outbox::Event;
use crate::sink::headers::{self, Style};
use crate::sink::repeats::deduplication_id;

/// Largest message and largest batch that SQS takes, attributes included.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Most messages of one request.
pub(crate) const ENTRIES_MAX: usize = 10;
/// Most attributes of one message.
const ATTRIBUTES_MAX: usize = 10;
/// Longest `MessageGroupId`.
const GROUP_CHARS_MAX: usize = 128;

/// Where the event was to go.
pub(crate) const TOPIC: &str = "semel-topic";
/// How the body is to be read, where it is not the payload itself.
pub(crate) const ENCODING: &str = "semel-encoding";
/// The event's own headers, where they do not fit among the attributes: a JSON array of pairs.
pub(crate) const HEADERS: &str = "semel-headers";
/// The payload has bytes that SQS does not carry.
pub(crate) const BASE64: &str = "base64";
/// The payload is empty, which SQS does not carry either.
pub(crate) const EMPTY: &str = "empty";
const HASHED: &str = "sha256:";
const TYPE: &str = "String";

/// What is sent of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Message {
    /// By which SQS knows a repeat.
    pub(super) id: String,
    pub(super) group: String,
    pub(super) body: String,
    pub(super) attributes: Vec<(String, String)>,
}

impl Message {
    /// An error: SQS cannot carry it.
    pub(super) fn of(event: &Event) -> Result<Self, String> {
        let (body, encoding) = body(event.payload());
        let mut attributes = headers::of(event, &Style::Plain, "");
        let mut theirs = attributes.split_off(attributes.len() - own(event, &attributes));
        // A reader would take them for ours, and read the payload in another way.
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
            return Err(format!("the attribute {name:?} has a character that SQS does not carry"));
        }
        Ok(Self { id: deduplication_id(event), group: group(event), body, attributes })
    }

    /// As SQS counts.
    pub(super) fn bytes(&self) -> usize {
        let attribute = |(name, text): &(String, String)| name.len() + TYPE.len() + text.len();
        self.body.len() + self.attributes.iter().map(attribute).sum::<usize>()
    }
}

/// How many of the headers at the end are the event's own.
fn own(event: &Event, all: &[(String, String)]) -> usize {
    let last = all.iter().rev();
    last.take_while(|(name, _)| event.headers().any(|(theirs, _)| theirs == name)).count()
}

/// What its order is kept by, or itself. What SQS does not take for a group is told by its digest, and so is what could be
/// taken for one.
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

/// The payload of a body, for readers. What does not read as its encoding says is left as it is.
pub(crate) fn payload(body: &str, encoding: Option<&str>) -> bytes::Bytes {
    match encoding {
        Some(EMPTY) => bytes::Bytes::new(),
        Some(BASE64) => STANDARD
            .decode(body)
            .map_or_else(|_| bytes::Bytes::copy_from_slice(body.as_bytes()), bytes::Bytes::from),
        _ => bytes::Bytes::copy_from_slice(body.as_bytes()),
    }
}

/// The headers in an attribute, for readers.
pub(crate) fn unpacked(packed: &str) -> Option<Vec<(String, String)>> {
    serde_json::from_str(packed).ok()
}

/// The characters of XML 1.0, and SQS's.
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

/// How many of these, from the first on, go in one request.
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
