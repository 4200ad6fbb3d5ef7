//! Identity: scope + operation + key.

use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::key::{Key, hex};
use super::scope::Scope;

/// Longest operation name in bytes.
pub const OPERATION_BYTES_MAX: usize = 200;

/// The name of what is done once: `payment.create`, or a route template such as `POST /payments/{id}/refund`.
///
/// Part of the identity, so it must not change between two retries: rename an operation and every intent
/// in flight becomes a new one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Operation(Arc<str>);

/// Why a text is not an [`Operation`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not an operation name: 1 to {OPERATION_BYTES_MAX} printable ASCII characters, no space at the ends"
)]
pub struct OperationError {
    name: String,
}

impl Operation {
    /// Checks and takes a name.
    pub fn new(name: &str) -> Result<Self, OperationError> {
        let printable = name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if name.is_empty() || name.len() > OPERATION_BYTES_MAX || !printable || name.trim() != name {
            return Err(OperationError { name: name.to_owned() });
        }
        Ok(Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operation({:?})", &*self.0)
    }
}

/// What a caller wants done once.
///
/// ```
/// use semel::{Intent, Key, Operation, Scope};
///
/// let intent = Intent::new(
///     Scope::tenant("acme").unwrap(),
///     Operation::new("payment.create").unwrap(),
///     Key::new("order-1001").unwrap(),
/// );
/// // The same three parts, wherever and whenever: the same id, and the same key for the same remote call.
/// assert_eq!(intent.child("charge"), intent.clone().child("charge"));
/// assert_ne!(intent.child("charge"), intent.child("notify"));
/// ```
#[derive(Clone)]
pub struct Intent(Arc<Parts>);

struct Parts {
    scope: Scope,
    operation: Operation,
    key: Key,
    id: IntentId,
}

impl Intent {
    /// Names an intent.
    pub fn new(scope: Scope, operation: Operation, key: Key) -> Self {
        let id = digest(["semel.intent.1", scope.as_str(), operation.as_str(), key.as_str()]);
        Self(Arc::new(Parts { scope, operation, key, id }))
    }

    /// The scope: the tenant the intent belongs to.
    pub fn scope(&self) -> &Scope {
        &self.0.scope
    }

    /// The operation: the name of the work, such as `payment.create`.
    pub fn operation(&self) -> &Operation {
        &self.0.operation
    }

    /// The key: identifies one request of this scope and operation.
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// The digest by which all stores know it.
    pub fn id(&self) -> IntentId {
        self.0.id
    }

    /// The key for one remote call made on behalf of this intent: the same on every retry, in every process.
    pub fn child(&self, step: &str) -> Key {
        let mut hash = Sha256::new();
        hash.update(b"semel.child.1");
        hash.update(self.0.id.0);
        hash.update(step);
        let digest = hash.finalize();
        // 128 bits are plenty for a name; providers often limit keys to 36 or 64 characters.
        Key::made(format!("sm1-{}", hex(&digest[..16])))
    }
}

/// Length before content: no two identities can run together into one text.
fn digest(parts: [&str; 4]) -> IntentId {
    // Most fit here, and are hashed in one call.
    let mut short = [0; 256];
    let mut end = 0;
    for part in parts {
        let to = end + 8 + part.len();
        let Some(slot) = short.get_mut(end..to) else { return digest_long(parts) };
        slot[..8].copy_from_slice(&(part.len() as u64).to_be_bytes());
        slot[8..].copy_from_slice(part.as_bytes());
        end = to;
    }
    IntentId(Sha256::digest(&short[..end]).into())
}

fn digest_long(parts: [&str; 4]) -> IntentId {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    IntentId(hash.finalize().into())
}

impl PartialEq for Intent {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Intent {}

impl fmt::Debug for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Intent({} {:?} {:?})", self.operation().as_str(), self.scope().as_str(), self.key())
    }
}

/// SHA-256 over scope, operation and key: 32 bytes, because an attacker who finds two intents with one id can have
/// another tenant's answer replayed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IntentId([u8; 32]);

impl IntentId {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// From stored bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for IntentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for IntentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IntentId({})", hex(&self.0[..6]))
    }
}

/// An [`IntentId`] is a digest: its first bytes are as good a hash as any.
#[derive(Default)]
pub(crate) struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk::<8>() {
            self.0 = u64::from_le_bytes(*first);
        }
    }
    fn write_usize(&mut self, _len: usize) {}
}

/// The text is not 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an intent id has 64 hex digits")]
pub struct IntentIdError;

impl FromStr for IntentId {
    type Err = IntentIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 64 || !text.is_ascii() {
            return Err(IntentIdError);
        }
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| IntentIdError)?;
        }
        Ok(Self(bytes))
    }
}

/// Identifies one attempt to claim. Random, and new for each attempt: two attempts with one token would both believe
/// the claim theirs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner([u8; 16]);

impl Owner {
    /// No owner: the record was decided by a person or a lookup.
    pub const NONE: Self = Self([0; 16]);

    /// A new token, never used before: sixteen random bytes. A process that was copied while it ran (a snapshot of
    /// its machine, a fork) shares its memory with the copy, so nothing in memory may decide what comes next.
    pub fn random() -> Self {
        let mut token = [0; 16];
        // Without a source of randomness: a v7 UUID, which falls back on its own.
        if getrandom::fill(&mut token).is_err() {
            token = *uuid::Uuid::now_v7().as_bytes();
        }
        Self(token)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// From stored bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({}…{})", hex(&self.0[..2]), hex(&self.0[13..]))
    }
}

/// The fence (fencing token). Every claim gets a higher one; it never repeats, not even after release and sweep.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The next one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent(scope: &str, operation: &str, key: &str) -> Intent {
        Intent::new(Scope::tenant(scope).unwrap(), Operation::new(operation).unwrap(), Key::new(key).unwrap())
    }

    #[test]
    fn identity_is_scope_operation_and_key_and_nothing_runs_together() {
        let one = intent("acme", "pay", "k1");
        assert_eq!(one.id(), intent("acme", "pay", "k1").id());
        for other in [
            intent("acm", "epay", "k1"),
            intent("acme", "payk", "1"),
            intent("other", "pay", "k1"),
            intent("acme", "refund", "k1"),
            intent("acme", "pay", "k2"),
        ] {
            assert_ne!(one.id(), other.id(), "{other:?}");
        }
    }

    #[test]
    fn ids_are_pinned_because_stored_records_are_found_by_them() {
        let id = intent("acme", "payment.create", "order-1001").id();
        assert_eq!(id.to_string(), "9c8722d0f190de2b6a3e1108b5386d54b2aabc8ff99bd7ca9cf0d9d9fe2fa36d");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("xyz".parse::<IntentId>().is_err());
    }

    #[test]
    fn short_and_long_identities_are_hashed_the_same() {
        for len in [0, 1, 100, 209, 210, 211, 1_000] {
            let parts = ["semel.intent.1", &"x".repeat(len), "o", "k"];
            assert_eq!(digest(parts), digest_long(parts), "{len}");
        }
    }

    #[test]
    fn child_keys_are_stable_and_differ_by_step_and_intent() {
        let one = intent("acme", "pay", "k1");
        assert_eq!(one.child("charge"), intent("acme", "pay", "k1").child("charge"));
        assert_ne!(one.child("charge"), one.child("notify"));
        assert_ne!(one.child("charge"), intent("acme", "pay", "k2").child("charge"));
        assert!(one.child("charge").as_str().starts_with("sm1-"));
        assert_eq!(one.child("charge").as_str().len(), 36);
    }

    #[test]
    fn owners_differ() {
        let owners: std::collections::HashSet<Owner> = (0..1_000).map(|_| Owner::random()).collect();
        assert_eq!(owners.len(), 1_000);
        assert!(!owners.contains(&Owner::NONE));
        // No token reveals another: a copied process would continue from the same state.
        for half in [0..8, 8..16] {
            let halves: std::collections::HashSet<_> =
                owners.iter().map(|owner| &owner.0[half.clone()]).collect();
            assert_eq!(halves.len(), 1_000, "{half:?}");
        }
    }

    #[test]
    fn operation_names() {
        assert!(Operation::new("POST /payments/{id}").is_ok());
        for bad in ["", " a", "a ", "a\n", "ä", &"x".repeat(201)] {
            assert!(Operation::new(bad).is_err(), "{bad:?}");
        }
    }
}
