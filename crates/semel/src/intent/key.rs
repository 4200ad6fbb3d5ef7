//! The key a caller names an intent by.

use std::fmt;

use sha2::{Digest, Sha256};

/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// The caller's name for one intent: 1–255 bytes of printable ASCII, no space at either end.
///
/// The key names what the caller *wants*, never the attempt: every retry carries the same key.
/// Keys may be secrets or reveal business facts, so `Debug` shows a short hash and there is no `Display`;
/// [`as_str`](Key::as_str) is the one way to the raw text.
///
/// ```
/// use semel::Key;
///
/// let key = Key::new("order-1001")?;
/// assert_eq!(key.as_str(), "order-1001");
/// assert!(!format!("{key:?}").contains("1001"));
/// assert!(Key::new("").is_err());
/// # Ok::<(), semel::KeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Box<str>);

/// Why a text is not a [`Key`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Nothing there. A missing key is never the empty key: all keyless requests would be "the same".
    #[error("the idempotency key is empty; send 1 to {KEY_BYTES_MAX} printable ASCII characters")]
    Empty,
    /// Longer than [`KEY_BYTES_MAX`].
    #[error("the idempotency key has {len} bytes; at most {KEY_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// A byte that is not printable ASCII, or a space at either end.
    #[error(
        "the idempotency key has a character at byte {at} that is not allowed; use printable ASCII, no space at the ends"
    )]
    Character {
        /// Offset of the byte.
        at: usize,
    },
}

impl Key {
    /// Checks and takes a key.
    pub fn new(text: impl Into<Box<str>>) -> Result<Self, KeyError> {
        let text = text.into();
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return Err(KeyError::Empty);
        }
        if bytes.len() > KEY_BYTES_MAX {
            return Err(KeyError::TooLong { len: bytes.len() });
        }
        let is_bad = |byte: &u8| !(b' '..=b'~').contains(byte);
        // All bytes are checked without a branch after each: many at a time.
        let bad = bytes.iter().fold(false, |bad, byte| bad | is_bad(byte));
        let (first, last) = (bytes[0] == b' ', bytes[bytes.len() - 1] == b' ');
        if bad || first || last {
            let at = if first { Some(0) } else { bytes.iter().position(is_bad) };
            return Err(KeyError::Character { at: at.unwrap_or(bytes.len() - 1) });
        }
        Ok(Self(text))
    }

    /// A new key for a new intent: a UUIDv7, time-ordered and random.
    pub fn random() -> Self {
        Self::made(uuid::Uuid::now_v7().to_string())
    }

    /// A key we generated ourselves.
    pub(crate) fn made(text: String) -> Self {
        debug_assert!(Self::new(text.clone()).is_ok());
        Self(text.into())
    }

    /// The raw key. Not for logs.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Eight hex digits of the key's digest: enough to follow one key through the logs.
    pub fn short_hash(&self) -> String {
        let digest = Sha256::digest(self.0.as_bytes());
        hex(&digest[..4])
    }

    /// The moment a UUIDv7 or ULID carries, in ms since 1970; `None` for other keys.
    pub fn time_ms(&self) -> Option<u64> {
        if let Ok(uuid) = uuid::Uuid::try_parse(&self.0) {
            let bytes = uuid.as_bytes();
            let ms = bytes[..6].iter().fold(0u64, |ms, byte| ms << 8 | u64::from(*byte));
            return (uuid.get_version_num() == 7).then_some(ms);
        }
        ulid_time_ms(&self.0)
    }
}

/// A ULID is 26 characters of Crockford's base 32; the first ten are 48 bits of milliseconds.
fn ulid_time_ms(text: &str) -> Option<u64> {
    const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    if text.len() != 26 || text.as_bytes()[0] > b'7' {
        return None;
    }
    let mut ms = 0u64;
    for (at, byte) in text.bytes().enumerate() {
        let digit = ALPHABET.iter().position(|letter| *letter == byte.to_ascii_uppercase())?;
        if at < 10 {
            ms = ms << 5 | digit as u64;
        }
    }
    Some(ms)
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(#{})", self.short_hash())
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_key_and_what_is_not() {
        let long = "k".repeat(KEY_BYTES_MAX);
        for good in ["k", "order-1001", "a b", "~!@#$%^&*()\"\\", long.as_str()] {
            assert_eq!(Key::new(good).unwrap().as_str(), good);
        }
        let too_long = "k".repeat(KEY_BYTES_MAX + 1);
        for (bad, why) in [
            ("", KeyError::Empty),
            (too_long.as_str(), KeyError::TooLong { len: 256 }),
            (" k", KeyError::Character { at: 0 }),
            ("k ", KeyError::Character { at: 1 }),
            (" ", KeyError::Character { at: 0 }),
            ("a\tb", KeyError::Character { at: 1 }),
            ("a\0b", KeyError::Character { at: 1 }),
            ("a\r\nb", KeyError::Character { at: 1 }),
            ("schlüssel", KeyError::Character { at: 4 }),
            (" \t", KeyError::Character { at: 0 }),
            ("a\t ", KeyError::Character { at: 1 }),
            ("a\x7f", KeyError::Character { at: 1 }),
        ] {
            assert_eq!(Key::new(bad).unwrap_err(), why, "{bad:?}");
        }
    }

    #[test]
    fn debug_never_shows_the_raw_key() {
        let key = Key::new("super-secret-order").unwrap();
        assert!(!format!("{key:?} {key:#?}").contains("secret"));
    }

    #[test]
    fn time_of_time_ordered_keys() {
        let uuid = Key::new("017f22e2-79b0-7cc3-98c4-dc0c0c07398f").unwrap();
        assert_eq!(uuid.time_ms(), Some(0x017f_22e2_79b0));
        let ulid = Key::new("01ARZ3NDEKTSV4RRFFQ69G5FAV").unwrap();
        assert_eq!(ulid.time_ms(), Some(1_469_922_850_259));
        for other in ["order-1001", "2b1f8e0c-6a51-4a8e-9a39-0d3f4a1f9b11", "81ARZ3NDEKTSV4RRFFQ69G5FAV"] {
            assert_eq!(Key::new(other).unwrap().time_ms(), None, "{other}");
        }
        assert!(Key::random().time_ms().is_some());
    }
}
