//! What a claim is answered whose key is locked by a transaction that cannot be seen yet.

use semel::intent::state::Head;
use semel::store::{Claim, Claimed, Record};
use semel::{Effect, Epoch, Owner, State, StoreTime};

/// In flight, without an owner, as the stores on SQL servers answer it.
pub(super) fn in_flight(claim: &Claim, now: StoreTime) -> Claimed {
    let head = Head {
        state: State::InProgress,
        effect: Effect::Atomic,
        fingerprint: claim.fingerprint,
        owner: Owner::NONE,
        epoch: Epoch(0),
        lease_until: now.plus_ms(1_000),
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
