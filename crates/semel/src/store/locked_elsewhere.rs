//! What a claim is told whose key an open transaction holds.
//!
//! Never an error: "the store is busy" may be reason enough to run without it, and whoever holds the key may be
//! running the very same.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{Claim, Claimed, Record};
use crate::intent::identity::{Epoch, Owner};
use crate::intent::policy::{Effect, StoreTime};
use crate::intent::state::{Head, State};

/// How long somebody who ran into a transaction is advised to wait, in ms.
const LEASE_MS: u64 = 1_000;

/// In flight, and nobody's: the record cannot be seen before that transaction commits; this much is known of it.
pub(super) fn held(claim: &Claim, now: StoreTime) -> Claimed {
    let head = Head {
        state: State::InProgress,
        effect: Effect::Atomic,
        fingerprint: claim.fingerprint,
        owner: Owner::NOBODY,
        epoch: Epoch(0),
        lease_until: now.plus_ms(LEASE_MS),
        expires_at: None,
    };
    let record = Record {
        intent: claim.intent.clone(),
        head,
        attempts: 1,
        created_at: now,
        changed_at: now,
        outcome: None,
        decision: None,
    };
    Claimed::InFlight(record.existing(now, false))
}

/// This machine's clock, where the server's cannot be had. Good enough for a record nothing is decided by.
pub(super) fn about_now() -> StoreTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    StoreTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
