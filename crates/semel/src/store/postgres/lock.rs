//! Advisory locks: they keep claims in the user's own transactions and claims in batches from waiting for each other.
//!
//! A user's transaction may stay open for any length of time, and the row it claimed is locked for as long. A batch
//! that met that row would wait, and with it all other claims of the batch. So a transaction that is about to write
//! the first claim of an intent, or to take it over, takes this lock first: a user's transaction by waiting (or by
//! trying), a batch only by trying.

use crate::intent::identity::IntentId;

/// `semel.k1`: keeps our keys apart from an application's own keys, which are often small numbers.
const CLASS: u64 = u64::from_be_bytes(*b"semel.k1");

/// Locked while tables are created.
pub(crate) const MIGRATION: i64 = i64::from_be_bytes(*b"semel.mg");

/// First half of the key that a sweep locks; the second half is the oid of the table.
pub(super) const SWEEP_CLASS: i32 = i32::from_be_bytes(*b"swep");

/// The key of one intent for `pg_advisory_xact_lock(bigint)` and its variants. 64 bits of a digest: at worst, two
/// intents that share a key wait for each other.
pub(crate) fn key(id: &IntentId) -> i64 {
    let mut first = [0; 8];
    first.copy_from_slice(&id.as_bytes()[..8]);
    (u64::from_be_bytes(first) ^ CLASS).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_pinned_because_two_versions_must_lock_the_same() {
        assert_eq!(key(&IntentId::from_bytes([0; 32])), 0x7365_6d65_6c2e_6b31);
        assert_eq!(key(&IntentId::from_bytes([0xff; 32])), !0x7365_6d65_6c2e_6b31);
    }
}
