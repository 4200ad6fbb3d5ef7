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
    id: IntentId,
    flags: u8,
    code: u16,
}

impl Bound {
    /// The bytes that are authenticated and not stored. The key's id comes last; everything before it has a fixed
    /// length.
    pub(super) fn bytes(&self, key_id: &str) -> Vec<u8> {
        let mut bound = Vec::with_capacity(64 + key_id.len());
        bound.extend_from_slice(b"semel.protect");
        bound.extend_from_slice(self.id.as_bytes());
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
        let plain = outcome.encode();
        let compressed = if long_enough { compress::compress(&plain) } else { None };
        let flags = if compressed.is_some() { COMPRESSED } else { 0 };
        let mut envelope = BytesMut::new();
        match (&self.ring, compressed) {
            (Some(ring), compressed) => {
                let bound = Bound { id: *id, flags: flags | SEALED, code };
                envelope.put_slice(&[VERSION, flags | SEALED]);
                ring.seal(&bound, compressed.as_deref().unwrap_or(&plain), &mut envelope)?;
            }
            (None, Some(compressed)) => {
                envelope.put_slice(&[VERSION, flags]);
                envelope.put_slice(&compressed);
            }
            (None, None) => return Ok(outcome),
        }
        Ok(Outcome { code, headers: Headers::NONE, body: Body::Sealed(envelope.freeze()) })
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
        let Body::Sealed(envelope) = &stored.body else {
            return if self.refuse_plain { Err(plain_refused(id)) } else { Ok(stored) };
        };
        let [VERSION, flags, sealed @ ..] = &envelope[..] else {
            return Err(corrupt(id, "its envelope has an unknown format; was it written by a newer semel?"));
        };
        if flags & !(COMPRESSED | SEALED) != 0 || *flags == 0 {
            return Err(corrupt(id, "its envelope has an unknown format; was it written by a newer semel?"));
        }
        if self.refuse_plain && flags & SEALED == 0 {
            return Err(plain_refused(id));
        }
        let opened;
        let payload = if flags & SEALED == 0 {
            sealed
        } else {
            let bound = Bound { id: *part, flags: *flags, code: stored.code };
            opened = Ring::open(self.ring.as_ref(), id, &bound, sealed)?;
            &opened
        };
        let plain = if flags & COMPRESSED == 0 {
            Bytes::copy_from_slice(payload)
        } else {
            compress::decompress(id, payload, OUTCOME_BYTES_MAX)?.into()
        };
        let outcome = Outcome::decode(plain).map_err(|error| corrupt(id, &error.to_string()))?;
        if outcome.code != stored.code || matches!(outcome.body, Body::Sealed(_)) {
            return Err(corrupt(id, "its content does not match its envelope"));
        }
        Ok(outcome)
    }

    /// As [`reveal`](Self::reveal), for display: an outcome that cannot be opened stays sealed.
    pub(super) fn reveal_or_leave(&self, id: &IntentId, stored: Outcome) -> Outcome {
        match &stored.body {
            Body::Sealed(_) => self.reveal(id, stored.clone()).unwrap_or(stored),
            _ => stored,
        }
    }
}

fn plain_refused(id: &IntentId) -> StoreError {
    corrupt(id, "it is not sealed, and this store accepts only sealed outcomes")
}

/// Nothing was changed, and nothing may be concluded from data that cannot be read.
pub(super) fn corrupt(id: &IntentId, why: &str) -> StoreError {
    let message = format!(
        "the outcome of intent {id} cannot be read: {why}. It is kept unchanged; inspect it with `semel show {id}`"
    );
    StoreError::new(ErrorKind::Corrupt, Fate::NotApplied, message)
}

pub(super) fn misconfigured(id: &IntentId, why: &str) -> StoreError {
    let message = format!("the outcome of intent {id} cannot be read: {why}");
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
}
