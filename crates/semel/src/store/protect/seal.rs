//! Encryption: XChaCha20-Poly1305, one key for writing, several for reading.

use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

use super::envelope::{Bound, Protection, Unreadable};
use crate::store::{ErrorKind, Fate, StoreError};

/// Longest id of a key, in bytes.
const KEY_ID_BYTES_MAX: usize = 64;
/// Most keys in one list.
const KEYS_MAX: usize = 64;
const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;

/// An invalid key, or a list of keys that cannot be parsed. Never shows key material.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealKeyError {
    /// See [`SealKey::new`].
    #[error("a key's id has 1 to {KEY_ID_BYTES_MAX} characters of A-Z a-z 0-9 . _ -")]
    Id,
    /// See [`Keys::parse`].
    #[error("line {line}: {why}")]
    Line {
        /// The line's number, starting at 1.
        line: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two keys have the same id: a stored outcome's id would be ambiguous.
    #[error("there are two keys with the id {0}")]
    Twice(String),
    /// No key to write with.
    #[error("there is no key")]
    None,
    /// More keys than the limit.
    #[error("there are more than {KEYS_MAX} keys")]
    TooMany,
}

/// A named key.
#[derive(Clone)]
pub struct SealKey {
    id: Arc<str>,
    cipher: XChaCha20Poly1305,
}

impl SealKey {
    /// 32 random bytes and the id stored with each outcome: 1 to 64 characters of `A-Z a-z 0-9 . _ -`, such as
    /// `2026-11`. Never reuse an id for another key.
    pub fn new(id: &str, key: [u8; KEY_BYTES]) -> Result<Self, SealKeyError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if id.is_empty() || id.len() > KEY_ID_BYTES_MAX || !id.bytes().all(plain) {
            return Err(SealKeyError::Id);
        }
        Ok(Self { id: id.into(), cipher: XChaCha20Poly1305::new(&key.into()) })
    }
}

/// The keys of a store: the first writes, all read.
///
/// Rotation: put the new key first and keep the old one after it. Remove the old one when the longest retention is over
/// (and nothing is kept forever).
///
/// ```
/// use semel::store::protect::Keys;
///
/// let keys = Keys::parse(
///     "# the first one writes\n\
///      2026-11 8c5bbd3c1d7c4b2e9f3e6f0f2b7a4d1e8c5bbd3c1d7c4b2e9f3e6f0f2b7a4d1e\n\
///      2025-02 0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9\n",
/// )?;
/// assert_eq!(keys.ids().collect::<Vec<_>>(), ["2026-11", "2025-02"]);
/// # Ok::<(), semel::store::protect::SealKeyError>(())
/// ```
#[derive(Clone)]
pub struct Keys(Ring);

impl Keys {
    /// One key, for writing and reading.
    pub fn new(key: SealKey) -> Self {
        Self(Ring(Arc::new([key])))
    }

    /// Adds a key that is used only for reading.
    pub fn also_reading(self, key: SealKey) -> Result<Self, SealKeyError> {
        Self::of(self.0.0.iter().cloned().chain([key]).collect())
    }

    fn of(keys: Vec<SealKey>) -> Result<Self, SealKeyError> {
        if keys.is_empty() {
            return Err(SealKeyError::None);
        }
        if keys.len() > KEYS_MAX {
            return Err(SealKeyError::TooMany);
        }
        for (n, key) in keys.iter().enumerate() {
            if keys[..n].iter().any(|other| other.id == key.id) {
                return Err(SealKeyError::Twice(key.id.to_string()));
            }
        }
        Ok(Self(Ring(keys.into())))
    }

    /// Parses one key per line: its id and 64 hex digits; the first one writes. Empty lines and lines that begin with
    /// `#` are ignored. Make one with `echo "2026-11 $(openssl rand -hex 32)"`.
    pub fn parse(text: &str) -> Result<Self, SealKeyError> {
        let mut keys = Vec::new();
        for (n, line) in text.lines().enumerate() {
            let line_number = n + 1;
            let wrong = |why| SealKeyError::Line { line: line_number, why };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            let (Some(id), Some(digits), None) = (words.next(), words.next(), words.next()) else {
                return Err(wrong("a key is its id and 64 hex digits"));
            };
            let key = hex_key(digits).ok_or_else(|| wrong("a key is its id and 64 hex digits"))?;
            if key == [0; KEY_BYTES] {
                return Err(wrong("a key of nothing but zeros is not accepted"));
            }
            let id_wrong = "a key's id has 1 to 64 characters of A-Z a-z 0-9 . _ -";
            keys.push(SealKey::new(id, key).map_err(|_| wrong(id_wrong))?);
        }
        Self::of(keys)
    }

    /// Their ids; the first one is the key that writes.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.0.iter().map(|key| &*key.id)
    }
}

fn hex_key(digits: &str) -> Option<[u8; KEY_BYTES]> {
    let digits = digits.as_bytes();
    if digits.len() != 2 * KEY_BYTES {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut key = [0; KEY_BYTES];
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(key)
}

impl Protection {
    /// Encrypts every outcome, whatever its size.
    pub fn seal(mut self, keys: Keys) -> Self {
        self.ring = Some(keys.0);
        self
    }
}

/// The keys; the first one writes. Never empty.
#[derive(Clone)]
pub(super) struct Ring(Arc<[SealKey]>);

impl Ring {
    /// Appends key id, nonce and ciphertext.
    pub(super) fn seal(&self, bound: &Bound, plain: &[u8], out: &mut BytesMut) -> Result<(), StoreError> {
        let failed = |why: &str| {
            let message = format!("what is to be stored could not be encrypted: {why}");
            StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message)
        };
        let key = self.0.first().ok_or_else(|| failed("there is no key"))?;
        let mut nonce = [0; NONCE_BYTES];
        // Without a random nonce it fails rather than encrypts unsafely; the request may be tried again.
        getrandom::fill(&mut nonce).map_err(|error| failed("no random nonce").with_source(error))?;
        let aad = bound.bytes(&key.id);
        let sealed = key.cipher.encrypt(&XNonce::from(nonce), Payload { msg: plain, aad: &aad });
        let sealed = sealed.map_err(|_| failed("it is too large"))?;
        out.put_u8(key.id.len() as u8);
        out.put_slice(key.id.as_bytes());
        out.put_slice(&nonce);
        out.put_slice(&sealed);
        Ok(())
    }

    /// Whether the key of this id is here.
    pub(super) fn has(&self, id: &[u8]) -> bool {
        self.0.iter().any(|key| key.id.as_bytes() == id)
    }

    pub(super) fn open(ring: Option<&Self>, bound: &Bound, sealed: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let short = || Unreadable::corrupt("it is truncated");
        let (len, rest) = sealed.split_first().ok_or_else(short)?;
        let (key_id, rest) = rest.split_at_checked(usize::from(*len)).ok_or_else(short)?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>().ok_or_else(short)?;
        let shown = String::from_utf8_lossy(key_id);
        let Some(ring) = ring else {
            let why = format!("it is sealed with the key {shown:?}, and no keys are configured");
            return Err(Unreadable::misconfigured(why));
        };
        let Some(key) = ring.0.iter().find(|key| key.id.as_bytes() == key_id) else {
            let why = format!("it is sealed with the key {shown:?}, which is not configured; add it");
            return Err(Unreadable::misconfigured(why));
        };
        let aad = bound.bytes(&key.id);
        let opened = key.cipher.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: &aad });
        opened.map_err(|_| {
            Unreadable::corrupt(format!(
                "its seal is broken: it was changed, belongs to another intent or another part of it, or the id \
                 {shown:?} was reused for another key"
            ))
        })
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter()).finish()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keys").field(&self.0).finish()
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealKey({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_list_of_keys_is_refused_without_showing_it() {
        let good = "1a".repeat(32);
        for (text, says) in [
            ("", "no key"),
            ("# only a comment\n\n", "no key"),
            ("2026", "line 1: a key is its id and 64 hex digits"),
            (&format!("\n2026 {}", &good[1..]), "line 2:"),
            (&format!("2026 {good} more"), "line 1:"),
            (&format!("20/26 {good}"), "line 1: a key's id"),
            (&format!("a {good}\na {good}"), "two keys with the id a"),
            (&format!("a {}", "0".repeat(64)), "nothing but zeros"),
            (&format!("a {}", "x".repeat(64)), "64 hex digits"),
            (&format!("a {}", "+1".repeat(32)), "64 hex digits"),
        ] {
            let error = Keys::parse(text).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("1a1a"), "{text:?}: {error}");
        }
        let keys = Keys::parse(&format!("new {good}\r\n# old\n old  {good}\n")).unwrap();
        assert_eq!(format!("{keys:?}"), "Keys([SealKey(new), SealKey(old)])");
    }
}
