//! The identity of a message: the same however often and by whatever route it is delivered.

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::intent::key::{Key, hex};

/// Longest name of a consumer or a source, in bytes.
pub const NAME_BYTES_MAX: usize = 200;
/// Longest id of a message, in bytes.
pub const ID_BYTES_MAX: usize = 1_000;

/// Identifies a message: its source, and the id its producer gave it.
///
/// The id is the *event's*. A broker's offset or delivery tag identifies a delivery: an event published twice has two.
///
/// ```
/// use semel::inbox::Identity;
///
/// let first = Identity::new("kafka:payments", "018f4e1c-7a52-7c1e-9a53-2f2c6f0a1b2c")?;
/// let again = Identity::new("kafka:payments", "018F4E1C-7A52-7C1E-9A53-2F2C6F0A1B2C")?;
/// assert_eq!(first, again, "a UUID is the same however it is written");
/// # Ok::<(), semel::inbox::IdentityError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    source: String,
    lineage: Option<String>,
    id: Id,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Id {
    Uuid(Uuid),
    Text(String),
}

/// Why this is not a valid identity. A message without one cannot be deduplicated, so it must not be handled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// See [`NAME_BYTES_MAX`].
    #[error("{what} must have 1 to {NAME_BYTES_MAX} bytes of text without control characters")]
    Name {
        /// Which name.
        what: &'static str,
    },
    /// See [`ID_BYTES_MAX`].
    #[error("a message's id must have 1 to {ID_BYTES_MAX} bytes; this one has {len}")]
    Id {
        /// Its length.
        len: usize,
    },
}

impl Identity {
    /// The message with this `id` at `source`.
    ///
    /// # Errors
    /// If one of them is empty or too long.
    pub fn new(source: &str, id: &str) -> Result<Self, IdentityError> {
        let source = name("a source's name", source)?;
        if id.is_empty() || id.len() > ID_BYTES_MAX {
            return Err(IdentityError::Id { len: id.len() });
        }
        let id = match Uuid::try_parse(id) {
            Ok(uuid) if is_unique(&uuid) => Id::Uuid(uuid),
            _ => Id::Text(id.to_owned()),
        };
        Ok(Self { source, lineage: None, id })
    }

    /// Sets where the source's ids are assigned: the database or the cluster. It changes nothing for a UUID, which is
    /// unique everywhere. Any other id is unique only there: after a restore from a backup, or in a topic that was
    /// recreated, `42` is another message.
    #[must_use]
    pub fn lineage(mut self, lineage: &str) -> Self {
        self.lineage = Some(lineage.to_owned());
        self
    }

    /// Its source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Its id at the source.
    pub fn id(&self) -> String {
        match &self.id {
            Id::Uuid(id) => id.to_string(),
            Id::Text(id) => id.clone(),
        }
    }

    /// The idempotency key under which a consumer passes this message on: the same for every attempt, and different for
    /// another consumer, which may call the same service.
    ///
    /// For an id that is a UUID it is that UUID, a colon and sixteen hexadecimal digits of a digest over consumer,
    /// source and id; for any other it is thirty-two digits of a digest over consumer, source,
    /// [lineage](Identity::lineage) and id.
    ///
    /// ```
    /// use semel::inbox::Identity;
    ///
    /// let paid = Identity::new("payments", "018f4e1c-7a52-7c1e-9a53-2f2c6f0a1b2c")?;
    /// assert!(paid.key("mail").as_str().starts_with("018f4e1c-7a52-7c1e-9a53-2f2c6f0a1b2c:"));
    /// assert_ne!(paid.key("mail"), paid.key("audit"));
    /// # Ok::<(), semel::inbox::IdentityError>(())
    /// ```
    pub fn key(&self, consumer: &str) -> Key {
        let mark = self.mark(consumer);
        Key::made(match &self.id {
            // The front of a mark may repeat the time in the id.
            Id::Uuid(id) => format!("{id}:{}", hex(&mark[MARK_BYTES / 2..])),
            Id::Text(_) => hex(&mark),
        })
    }

    /// The mark stored for one consumer. A UUID of version 7 keeps its time in front, so that marks of messages created
    /// together are neighbours in the index.
    pub(crate) fn mark(&self, consumer: &str) -> Mark {
        let mut hash = Sha256::new();
        let mut put = |part: &[u8]| {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        };
        put(consumer.as_bytes());
        put(self.source.as_bytes());
        let time: &[u8] = match &self.id {
            Id::Uuid(id) => {
                put(b"uuid");
                put(id.as_bytes());
                if id.get_version_num() == 7 { &id.as_bytes()[..TIME_BYTES] } else { &[] }
            }
            Id::Text(id) => {
                put(b"text");
                put(self.lineage.as_deref().unwrap_or("").as_bytes());
                put(id.as_bytes());
                &[]
            }
        };
        let digest = hash.finalize();
        let mut mark = [0; MARK_BYTES];
        let (front, rest) = mark.split_at_mut(time.len());
        front.copy_from_slice(time);
        rest.copy_from_slice(&digest[..rest.len()]);
        mark
    }
}

/// As it is stored in a dead letter.
#[cfg(feature = "_sql")]
impl Identity {
    /// Encodes it for [`from_bytes`](Self::from_bytes).
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::json!([self.source, self.lineage, self.id()]).to_string().into_bytes()
    }

    /// Decodes what [`to_bytes`](Self::to_bytes) wrote.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let (source, lineage, id): (String, Option<String>, String) = serde_json::from_slice(bytes)?;
        Ok(Self { lineage, ..Self::new(&source, &id)? })
    }
}

/// Whether it was generated as a UUID. Thirty-two digits of a counter parse as one, but are not unique.
fn is_unique(uuid: &Uuid) -> bool {
    uuid.get_variant() == uuid::Variant::RFC4122 && (1..=8).contains(&uuid.get_version_num())
}

/// What is stored of a message that a consumer has handled.
pub(crate) type Mark = [u8; MARK_BYTES];

/// Bytes of a mark: among ten million, two collide with a chance of one in 10^24.
const MARK_BYTES: usize = 16;
/// The milliseconds in a UUID of version 7. The ten bytes after them distinguish messages of the same millisecond.
const TIME_BYTES: usize = 6;

impl AsRef<Identity> for Identity {
    fn as_ref(&self) -> &Identity {
        self
    }
}

pub(crate) fn name(what: &'static str, text: &str) -> Result<String, IdentityError> {
    if text.is_empty() || text.len() > NAME_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(IdentityError::Name { what });
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V7: &str = "018f4e1c-7a52-7c1e-9a53-2f2c6f0a1b2c";

    fn mark(consumer: &str, source: &str, lineage: Option<&str>, id: &str) -> Mark {
        let identity = Identity::new(source, id).unwrap();
        lineage.into_iter().fold(identity, Identity::lineage).mark(consumer)
    }

    #[test]
    fn a_mark_is_of_one_consumer_one_source_and_one_id() {
        let one = mark("mail", "payments", None, "42");
        assert_eq!(one, mark("mail", "payments", None, "42"));
        assert_ne!(one, mark("audit", "payments", None, "42"));
        assert_ne!(one, mark("mail", "orders", None, "42"));
        assert_ne!(one, mark("mail", "payments", None, "43"));
        assert_ne!(mark("a", "bc", None, "d"), mark("ab", "c", None, "d"), "lengths are part of it");
    }

    #[test]
    fn only_what_was_counted_somewhere_depends_on_where() {
        assert_ne!(mark("mail", "p", Some("one"), "42"), mark("mail", "p", Some("two"), "42"));
        assert_eq!(mark("mail", "p", Some("one"), V7), mark("mail", "p", Some("two"), V7));
        // Text that only looks like a UUID.
        assert_ne!(mark("mail", "p", None, V7), mark("mail", "p", None, &format!("{V7}x")));
        let counted = format!("{:032}", 42);
        assert_ne!(mark("mail", "p", Some("one"), &counted), mark("mail", "p", Some("two"), &counted));
    }

    #[cfg(feature = "_sql")]
    #[test]
    fn what_was_written_is_read_back() {
        for (id, lineage) in [(V7, None), ("42", Some("cluster\0")), ("a\0\n\"", None)] {
            let mut identity = Identity::new("payments", id).unwrap();
            if let Some(lineage) = lineage {
                identity = identity.lineage(lineage);
            }
            assert_eq!(Identity::from_bytes(&identity.to_bytes()).unwrap(), identity);
        }
        assert!(Identity::from_bytes(b"[\"\",null,\"1\"]").is_err());
    }

    #[test]
    fn marks_of_a_time_lie_together() {
        let one = mark("mail", "p", None, V7);
        assert_eq!(one[..6], Uuid::parse_str(V7).unwrap().as_bytes()[..6]);
        let other = mark("mail", "p", None, "018f4e1c-7a52-7c1e-9a53-2f2c6f0a1b2d");
        assert_eq!(one[..6], other[..6]);
        assert_ne!(one, other);
    }

    #[test]
    fn a_key_is_the_same_for_every_attempt_and_another_for_another_consumer() {
        let paid = Identity::new("payments", V7).unwrap();
        // Services have stored results under it, which must be found after an upgrade.
        assert_eq!(paid.key("mail").as_str(), format!("{V7}:5d8863a2ec6dd39d"));
        let counted = |lineage| Identity::new("p", "42").unwrap().lineage(lineage).key("mail");
        assert_eq!(counted("one"), counted("one"));
        assert_ne!(counted("one"), counted("two"));
        assert_ne!(paid.key("mail"), Identity::new("orders", V7).unwrap().key("mail"));
        let long = Identity::new("p", &"é".repeat(ID_BYTES_MAX / 2)).unwrap();
        assert_eq!(long.key("mail").as_str().len(), 32);
    }

    #[test]
    fn what_names_nothing_is_refused() {
        assert!(Identity::new("", "1").is_err() && Identity::new("p", "").is_err());
        assert!(Identity::new("p\n", "1").is_err());
        assert!(Identity::new("p", &"x".repeat(ID_BYTES_MAX + 1)).is_err());
    }
}
