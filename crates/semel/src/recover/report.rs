//! What a run came to.

use crate::intent::identity::{IntentId, Operation};

/// An intent that stays uncertain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldIntent {
    /// Which.
    pub id: IntentId,
    /// Of which operation.
    pub operation: Operation,
    /// For how long it has been uncertain, in ms by the store's clock.
    pub held_ms: u64,
}

/// What one run of the [`Reconciler`](super::Reconciler) came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Lookups asked.
    pub asked: u64,
    /// Found: completed now, and replayed from now on.
    pub applied: u64,
    /// Not there and settled: released, the same key may run.
    pub not_applied: u64,
    /// Settled by the owner, a caller, another process or a person while this run looked.
    pub overtaken: u64,
    /// Still unknown and held: the lookup did not know now or is not asked again yet, or there is none.
    pub held: u64,
    /// Uncertain too short a time for a lookup to be believed.
    pub settling: u64,
    /// Requests the store did not answer. What they were about is looked at again in the next run.
    pub store_failures: u64,
    /// A limit of the run ended it; the next one goes on from there.
    pub more: bool,
    /// The longest held of those this run has seen.
    pub oldest_held: Option<HeldIntent>,
}

impl Report {
    /// How many intents this run has settled.
    pub fn settled(&self) -> u64 {
        self.applied + self.not_applied
    }

    pub(super) fn hold(&mut self, held: HeldIntent) {
        self.held += 1;
        if self.oldest_held.as_ref().is_none_or(|oldest| oldest.held_ms < held.held_ms) {
            self.oldest_held = Some(held);
        }
    }

    /// Both together; [`more`](Self::more) is the run's own affair.
    pub(super) fn add(&mut self, seen: &Self) {
        self.asked += seen.asked;
        self.applied += seen.applied;
        self.not_applied += seen.not_applied;
        self.overtaken += seen.overtaken;
        self.settling += seen.settling;
        self.store_failures += seen.store_failures;
        let held = self.held + seen.held;
        if let Some(oldest) = &seen.oldest_held {
            self.hold(oldest.clone());
        }
        self.held = held;
    }
}
