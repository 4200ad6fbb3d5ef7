//! The identity of a store's data.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::intent::key::hex;

/// Identifies the data of a store: a random id, created with the tables and replaced by an operator who restores an
/// older backup. Anything kept elsewhere about the data (a cache in front of it) carries the lineage it was read
/// under, and is ignored under any other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lineage([u8; 16]);

impl Lineage {
    /// A lineage from its stored bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A lineage derived from several parts, such as a database's system id and timeline.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Self(bytes)
    }

    /// A new random lineage.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        // Without a source of randomness: a v7 UUID, which has a fallback of its own.
        if getrandom::fill(&mut bytes).is_err() {
            bytes = *uuid::Uuid::now_v7().as_bytes();
        }
        Self(bytes)
    }
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lineage({self})")
    }
}
