//! Advisory locks: how those who claim one at a time in transactions of their own and those who claim in
//! batches stay out of each other's way.
//!
//! A transaction of the user's may stay open for as long as the user likes, and the row it claimed is locked
//! for as long. A batch that ran into that row would wait, and with it 63 strangers. So whoever is about to
//! write the first claim of an intent, or to take it over, takes this lock first: in the user's transaction
//! by waiting (or by trying), in a batch only by trying.

use crate::intent::identity::IntentId;

/// `semel.k1`: keeps our keys apart from those an application makes of small numbers.
const CLASS: u64 = u64::from_be_bytes(*b"semel.k1");

/// Held while tables are made.
pub(crate) const MIGRATION: i64 = i64::from_be_bytes(*b"semel.mg");

/// First half of the key one sweeper holds; the second half is the oid of the table.
pub(super) const SWEEP_CLASS: i32 = i32::from_be_bytes(*b"swep");

/// The key of `pg_advisory_xact_lock(bigint)` and its family for one intent. 64 bits of a digest: two intents
/// that share one wait for each other at worst.
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
