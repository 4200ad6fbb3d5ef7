//! A dead letter as it is written and read.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::inbox::Identity;
use crate::inbox::consumer::{DeadLetter, Due};
use crate::inbox::identity::Mark;
use crate::sink::headers;
use crate::source::{Delivery, Receipt};
use crate::tx::driver::{DriverError, DriverErrorKind, Row, Value};

/// Longest error stored with a dead letter, in bytes. A longer one is truncated.
pub const ERROR_BYTES_MAX: usize = 4_096;

/// Replaces NUL, which PostgreSQL does not accept in text.
const NUL: &str = "\u{2400}";

/// A stored dead letter: a message that could not be handled, and why.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoredDeadLetter {
    /// Its number, for `semel inbox` commands. Never reused.
    pub number: i64,
    /// The consumer that gave up on it.
    pub consumer: String,
    /// The source in the message's identity.
    pub source: String,
    /// The message's id. `None`: it has no identity.
    pub id: Option<String>,
    /// The topic, queue or stream.
    pub topic: String,
    /// The broker's lineage: where its positions are counted.
    pub lineage: Option<String>,
    /// The message's position, in the broker's notation.
    pub place: String,
    /// Messages of one key keep their order.
    pub key: Option<String>,
    /// Headers, in order.
    pub headers: Vec<(String, String)>,
    /// The payload. Empty in a listing, and after a drop.
    pub payload: Bytes,
    /// Size of the payload.
    pub payload_bytes: u64,
    /// Content type of the payload, if the producer set it.
    pub content_type: Option<String>,
    /// The error of the last attempt.
    pub error: String,
    /// Number of attempts in all.
    pub attempts: u64,
    /// When it first failed.
    pub first_failed_at: SystemTime,
    /// When it last became a dead letter.
    pub dead_at: SystemTime,
    /// Its state.
    pub state: DeadLetterState,
    /// When it was dropped, and why.
    pub dropped: Option<(SystemTime, String)>,
}

/// The state of a dead letter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeadLetterState {
    /// Waits for an operator to decide.
    Dead,
    /// Will be redelivered when its consumer next looks.
    Retry,
    /// Dropped for good.
    Dropped,
}

impl DeadLetterState {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Retry => "retry",
            Self::Dropped => "dropped",
        }
    }
}

/// Which dead letters to list. They are listed by number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct DeadLetterFilter {
    pub(super) consumer: Option<String>,
    pub(super) source: Option<String>,
    pub(super) after: i64,
    pub(super) dropped: bool,
}

impl DeadLetterFilter {
    /// All except dropped ones.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only this consumer's.
    pub fn consumer(mut self, name: &str) -> Self {
        self.consumer = Some(name.to_owned());
        self
    }

    /// Only those from this source.
    pub fn source(mut self, name: &str) -> Self {
        self.source = Some(name.to_owned());
        self
    }

    /// Only those with higher numbers.
    pub fn after(mut self, number: i64) -> Self {
        self.after = number;
        self
    }

    /// Only dropped ones.
    pub fn dropped(mut self) -> Self {
        self.dropped = true;
        self
    }
}

/// How many dead letters a consumer has from a source.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Counted {
    /// The consumer.
    pub consumer: String,
    /// The source.
    pub source: String,
    /// Dead letters that wait for an operator.
    pub dead: u64,
    /// Dead letters that will be redelivered.
    pub retry: u64,
    /// When the oldest of them became a dead letter.
    pub oldest: SystemTime,
}

/// The id of a dead letter: the mark of its message. Without an identity, a digest of its position and payload, so that
/// two messages with the same payload are two dead letters.
fn name(consumer: &str, dead_letter: &DeadLetter<'_>) -> Mark {
    if let Some(identity) = dead_letter.identity {
        return identity.mark(consumer);
    }
    let mut hash = Sha256::new();
    let delivery = dead_letter.delivery;
    let lineage = delivery.lineage.as_deref().unwrap_or_default();
    for part in ["nameless", consumer, &delivery.from, lineage, &delivery.place] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.update(&delivery.payload);
    let mut name = Mark::default();
    let length = name.len();
    name.copy_from_slice(&hash.finalize()[..length]);
    name
}

/// The id to use if another message with a different payload has the same identity.
pub(super) fn distinct_name(consumer: &str, dead_letter: &DeadLetter<'_>) -> Value {
    let mut hash = Sha256::new();
    hash.update(b"another");
    hash.update(name(consumer, dead_letter));
    hash.update(&dead_letter.delivery.payload);
    let length = Mark::default().len();
    hash.finalize()[..length].into()
}

/// The parameters of the insert.
pub(super) fn values(consumer: &str, dead_letter: &DeadLetter<'_>) -> Vec<Value> {
    let delivery = dead_letter.delivery;
    let source = dead_letter.identity.map_or(delivery.from.as_str(), Identity::source);
    let identity = dead_letter.identity.map(|identity| Bytes::from(identity.to_bytes()));
    let content_type = delivery.header(headers::CONTENT_TYPE).map(text);
    let pairs = serde_json::json!(delivery.headers).to_string();
    let failed_ago = dead_letter.failing_for.as_millis();
    vec![
        name(consumer, dead_letter)[..].into(),
        consumer.into(),
        text(source).into(),
        identity.into(),
        dead_letter.id.as_deref().map(text).into(),
        text(&delivery.from).into(),
        delivery.lineage.as_deref().map(text).into(),
        text(&delivery.place).into(),
        delivery.key.as_deref().map(text).into(),
        pairs.into(),
        delivery.payload.clone().into(),
        content_type.into(),
        error(dead_letter.error).into(),
        i64::from(dead_letter.attempts).into(),
        i64::try_from(failed_ago).unwrap_or(i64::MAX / 2).into(),
    ]
}

fn text(text: &str) -> String {
    text.replace('\0', NUL)
}

/// The error as it is stored: truncated to [`ERROR_BYTES_MAX`].
pub(super) fn error(message: &str) -> String {
    let mut kept = text(message);
    if kept.len() > ERROR_BYTES_MAX {
        let end = (0..=ERROR_BYTES_MAX - "…".len()).rev().find(|end| kept.is_char_boundary(*end));
        kept.truncate(end.unwrap_or(0));
        kept.push('…');
    }
    kept
}

/// A dead letter from the columns that [`sql`](super::sql) reads.
pub(super) fn dead_letter(row: &Row) -> Result<StoredDeadLetter, DriverError> {
    let texts = |column| row.text_or_null(column).map(|text| text.map(str::to_owned));
    let (retry_at, dropped_at) = (row.int_or_null(17)?, row.int_or_null(18)?);
    let state = match (dropped_at, retry_at) {
        (Some(_), _) => DeadLetterState::Dropped,
        (None, Some(_)) => DeadLetterState::Retry,
        (None, None) => DeadLetterState::Dead,
    };
    let why = texts(19)?.unwrap_or_default();
    Ok(StoredDeadLetter {
        number: row.int(0)?,
        consumer: row.text(1)?.to_owned(),
        source: row.text(2)?.to_owned(),
        id: texts(4)?,
        topic: row.text(5)?.to_owned(),
        lineage: texts(6)?,
        place: row.text(7)?.to_owned(),
        key: texts(8)?,
        headers: pairs(row.text(9)?)?,
        payload: row.bytes(10)?,
        payload_bytes: row.int(11)?.unsigned_abs(),
        content_type: texts(12)?,
        error: row.text(13)?.to_owned(),
        attempts: row.int(14)?.unsigned_abs(),
        first_failed_at: moment(row.int(15)?),
        dead_at: moment(row.int(16)?),
        state,
        dropped: dropped_at.map(|at| (moment(at), why)),
    })
}

/// A dead letter to redeliver, from the same columns.
pub(super) fn due(row: &Row) -> Result<Due, DriverError> {
    let identity = row.bytes_or_null(3)?.map(|bytes| Identity::from_bytes(&bytes)).transpose();
    let identity = identity.map_err(|error| DriverError::of(DriverErrorKind::Unreadable, error))?;
    let StoredDeadLetter { number, topic, lineage, place, key, headers, payload, .. } = dead_letter(row)?;
    let mut delivery = Delivery::new(Receipt(0), &topic, place, payload);
    delivery.lineage = lineage;
    delivery.key = key;
    delivery.headers = headers;
    Ok(Due { number, identity, delivery })
}

pub(super) fn counted(row: &Row) -> Result<Counted, DriverError> {
    Ok(Counted {
        consumer: row.text(0)?.to_owned(),
        source: row.text(1)?.to_owned(),
        dead: row.int(2)?.unsigned_abs(),
        retry: row.int(3)?.unsigned_abs(),
        oldest: moment(row.int(4)?),
    })
}

fn pairs(json: &str) -> Result<Vec<(String, String)>, DriverError> {
    serde_json::from_str(json).map_err(|error| DriverError::of(DriverErrorKind::Unreadable, error))
}

fn moment(ms: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead<'m>(delivery: &'m Delivery, identity: Option<&'m Identity>, error: &'m str) -> DeadLetter<'m> {
        let id = identity.map(Identity::id);
        DeadLetter { delivery, identity, id, error, attempts: 1, failing_for: Duration::ZERO }
    }

    #[test]
    fn a_letter_has_the_name_of_its_message_or_of_its_place() {
        let at = |place: &str| Delivery::new(Receipt(1), "payments", place.to_owned(), "same");
        let (one, other) = (at("0:1"), at("0:2"));
        let identity = Identity::new("payments", "e-1").unwrap();
        let named = |delivery| name("mail", &dead(delivery, Some(&identity), ""));
        assert_eq!(named(&one), named(&other), "one message, whatever its position");
        assert_eq!(named(&one), identity.mark("mail"));
        let unidentified = |consumer: &str, delivery| name(consumer, &dead(delivery, None, ""));
        assert_eq!(unidentified("mail", &one), unidentified("mail", &one));
        assert_ne!(unidentified("mail", &one), unidentified("mail", &other));
        assert_ne!(unidentified("mail", &one), unidentified("audit", &one));
    }

    #[test]
    fn an_error_is_cut_at_its_bound_and_not_in_a_character() {
        assert_eq!(error("no\0"), "no\u{2400}");
        let most = "x".repeat(ERROR_BYTES_MAX);
        assert_eq!(error(&most), most);
        for long in ["y".repeat(ERROR_BYTES_MAX + 1), "é".repeat(ERROR_BYTES_MAX)] {
            let cut = error(&long);
            assert!(cut.len() <= ERROR_BYTES_MAX && cut.ends_with('…'), "{} bytes", cut.len());
        }
    }

    #[test]
    fn contract_ids_of_dead_letters() {
        let delivery = Delivery::new(Receipt(1), "payments", "0:1".to_owned(), "{}");
        let identity = Identity::new("payments", "e-1").unwrap();
        let identified = name("mail", &dead(&delivery, Some(&identity), ""));
        let unidentified = name("mail", &dead(&delivery, None, ""));
        let hex = crate::intent::key::hex;
        let listing = format!("identified: {}\nunidentified: {}\n", hex(&identified), hex(&unidentified));
        crate::contracts::pinned("bytes.dead_letters", &listing);
    }
}
