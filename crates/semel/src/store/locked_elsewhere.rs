//! The answer to a claim whose row another open transaction has locked: in flight.
//!
//! Never an error: an outage policy may run without a store that is busy, while the transaction that has the lock may
//! be running the same operation.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{Claim, Claimed, Record};
use crate::intent::identity::{Epoch, Owner};
use crate::intent::policy::{Effect, StoreTime};
use crate::intent::state::{Head, State};

/// How long the caller is advised to wait, in ms.
const LEASE_MS: u64 = 1_000;

/// In flight, without an owner: the record is not visible until that transaction commits.
pub(super) fn in_flight(claim: &Claim, now: StoreTime) -> Claimed {
    let head = Head {
        state: State::InProgress,
        effect: Effect::Atomic,
        fingerprint: claim.fingerprint,
        owner: Owner::NONE,
        epoch: Epoch(0),
        lease_until: now.plus_ms(LEASE_MS),
        expires_at: None,
        safe_until: None,
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

/// This machine's clock, where the server's is not available. Good enough: nothing is decided by this record.
pub(super) fn about_now() -> StoreTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    StoreTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
