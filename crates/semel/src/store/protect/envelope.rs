//! The envelope: from an outcome to its stored form, and back.

use bytes::{BufMut, Bytes, BytesMut};

use super::compress;
use super::seal::Ring;
use crate::intent::identity::IntentId;
use crate::intent::outcome::{Body, Headers, OUTCOME_BYTES_MAX, Outcome};
use crate::store::memory::check_size;
use crate::store::{ErrorKind, Fate, StoreError};

const VERSION: u8 = 1;
const COMPRESSED: u8 = 1;
const SEALED: u8 = 2;

/// How outcomes are protected. Cheap to clone.
///
/// ```
/// use semel::store::protect::Protection;
///
/// // Reads what others have compressed, writes plain outcomes.
/// let protection = Protection::none();
/// # let _ = protection;
/// ```
#[derive(Clone, Debug, Default)]
pub struct Protection {
    pub(super) compress_above: Option<usize>,
    pub(super) ring: Option<Ring>,
    refuse_plain: bool,
}

/// What a seal is bound to besides its key: the associated data.
pub(super) struct Bound {
    /// The intent, or a digest that says where in it.
    place: [u8; 32],
    flags: u8,
    code: u16,
}

impl Bound {
    /// The bytes that are authenticated and not stored. The key's id comes last; everything before it has a fixed
    /// length.
    pub(super) fn bytes(&self, key_id: &str) -> Vec<u8> {
        let mut bound = Vec::with_capacity(64 + key_id.len());
        bound.extend_from_slice(b"semel.protect");
        bound.extend_from_slice(&self.place);
        bound.extend_from_slice(&[VERSION, self.flags]);
        bound.extend_from_slice(&self.code.to_be_bytes());
        bound.extend_from_slice(key_id.as_bytes());
        bound
    }
}

impl Protection {
    /// Writes plain outcomes. Protected ones are still read, as far as this build and its keys allow.
    pub fn none() -> Self {
        Self::default()
    }

    /// Refuses outcomes that are not sealed. For stores whose unsealed outcomes have all expired since sealing was
    /// turned on, and to which your own transactions write no outcomes.
    pub fn refuse_plain(mut self) -> Self {
        self.refuse_plain = true;
        self
    }

    /// The stored form of an intent's outcome.
    pub fn protect(&self, id: &IntentId, outcome: Outcome) -> Result<Outcome, StoreError> {
        if self.compress_above.is_none() && self.ring.is_none() {
            return Ok(outcome);
        }
        // The limit applies to the plain size: how well it compresses must not decide whether it is kept.
        check_size(Some(&outcome))?;
        let long_enough = self.compress_above.is_some_and(|above| outcome.encoded_len() > above);
        if !long_enough && self.ring.is_none() {
            return Ok(outcome);
        }
        let code = outcome.code;
        Ok(match self.wrap(*id.as_bytes(), code, &outcome.encode())? {
            Some(envelope) => Outcome { code, headers: Headers::NONE, body: Body::Sealed(envelope) },
            None => outcome,
        })
    }

    /// The envelope of these bytes; `None`: they are stored as they are. `place` is what a seal is bound to.
    pub(crate) fn wrap(&self, place: [u8; 32], code: u16, plain: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let long_enough = self.compress_above.is_some_and(|above| plain.len() > above);
        let compressed = if long_enough { compress::compress(plain) } else { None };
        let flags = if compressed.is_some() { COMPRESSED } else { 0 };
        let mut envelope = BytesMut::new();
        match (&self.ring, compressed) {
            (Some(ring), compressed) => {
                let bound = Bound { place, flags: flags | SEALED, code };
                envelope.put_slice(&[VERSION, flags | SEALED]);
                ring.seal(&bound, compressed.as_deref().unwrap_or(plain), &mut envelope)?;
            }
            (None, Some(compressed)) => {
                envelope.put_slice(&[VERSION, flags]);
                envelope.put_slice(&compressed);
            }
            (None, None) => return Ok(None),
        }
        Ok(Some(envelope.freeze()))
    }

    /// What is in an envelope, of at most so many bytes.
    pub(crate) fn unwrap(
        &self,
        place: [u8; 32],
        code: u16,
        envelope: &[u8],
        bytes_max: usize,
    ) -> Result<Bytes, Unreadable> {
        const UNKNOWN: &str = "its envelope has an unknown format; was it written by a newer semel?";
        let [VERSION, flags, sealed @ ..] = envelope else { return Err(Unreadable::corrupt(UNKNOWN)) };
        if flags & !(COMPRESSED | SEALED) != 0 || *flags == 0 {
            return Err(Unreadable::corrupt(UNKNOWN));
        }
        if self.refuse_plain && flags & SEALED == 0 {
            return Err(plain_refused());
        }
        let opened;
        let payload = if flags & SEALED == 0 {
            sealed
        } else {
            opened = Ring::open(self.ring.as_ref(), &Bound { place, flags: *flags, code }, sealed)?;
            &opened
        };
        Ok(if flags & COMPRESSED == 0 {
            Bytes::copy_from_slice(payload)
        } else {
            compress::decompress(payload, bytes_max)?.into()
        })
    }

    /// Whether only sealed values are accepted.
    #[cfg_attr(not(feature = "saga"), allow(dead_code))]
    pub(crate) fn check_plain(&self) -> Result<(), Unreadable> {
        if self.refuse_plain { Err(plain_refused()) } else { Ok(()) }
    }

    /// Whether a value that was sealed with the key of this id can be read.
    #[cfg_attr(not(feature = "saga"), allow(dead_code))]
    pub(crate) fn has_key(&self, id: &[u8]) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.has(id))
    }

    /// The original outcome, from what is stored for that intent.
    pub fn reveal(&self, id: &IntentId, stored: Outcome) -> Result<Outcome, StoreError> {
        self.reveal_part(id, id, stored)
    }

    /// The same for a part of an intent that was protected under an id of its own.
    pub(crate) fn reveal_part(
        &self,
        id: &IntentId,
        part: &IntentId,
        stored: Outcome,
    ) -> Result<Outcome, StoreError> {
        let read = |stored: Outcome| -> Result<Outcome, Unreadable> {
            let Body::Sealed(envelope) = &stored.body else { return self.check_plain().map(|()| stored) };
            let plain = self.unwrap(*part.as_bytes(), stored.code, envelope, OUTCOME_BYTES_MAX)?;
            let outcome = Outcome::decode(plain).map_err(|error| Unreadable::corrupt(error.to_string()))?;
            if outcome.code != stored.code || matches!(outcome.body, Body::Sealed(_)) {
                return Err(Unreadable::corrupt("its content does not match its envelope"));
            }
            Ok(outcome)
        };
        read(stored).map_err(|unreadable| unreadable.outcome_of(id))
    }

    /// As [`reveal`](Self::reveal), for display: an outcome that cannot be opened stays sealed.
    pub(super) fn reveal_or_leave(&self, id: &IntentId, stored: Outcome) -> Outcome {
        match &stored.body {
            Body::Sealed(_) => self.reveal(id, stored.clone()).unwrap_or(stored),
            _ => stored,
        }
    }
}

fn plain_refused() -> Unreadable {
    Unreadable::corrupt("it is not sealed, and only sealed values are accepted here")
}

/// Why something that is stored cannot be read. Nothing was changed, and nothing may be concluded from it.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) kind: ErrorKind,
    pub(crate) why: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Unreadable {
    pub(super) fn corrupt(why: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Corrupt, why: why.into(), source: None }
    }

    /// A key or a feature is missing.
    pub(super) fn misconfigured(why: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Misconfigured, why: why.into(), source: None }
    }

    #[cfg_attr(not(feature = "zstd"), allow(dead_code))]
    pub(super) fn with_source(self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: Some(source.into()), ..self }
    }

    /// As an error about this.
    pub(crate) fn about(self, what: &str, then: &str) -> StoreError {
        let message = format!("{what} cannot be read: {}{then}", self.why);
        let error = StoreError::new(self.kind, Fate::NotApplied, message);
        match self.source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }

    fn outcome_of(self, id: &IntentId) -> StoreError {
        let then = match self.kind {
            ErrorKind::Corrupt => format!(". It is kept unchanged; inspect it with `semel show {id}`"),
            _ => String::new(),
        };
        self.about(&format!("the outcome of intent {id}"), &then)
    }
}
