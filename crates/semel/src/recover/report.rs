//! The result of a run.

use crate::intent::identity::{IntentId, Operation};

/// An intent that stays uncertain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldIntent {
    /// The intent.
    pub id: IntentId,
    /// Its operation.
    pub operation: Operation,
    /// How long it has been uncertain, in ms by the store's clock.
    pub held_ms: u64,
}

/// The result of one run of the [`Reconciler`](super::Reconciler).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Lookups called.
    pub asked: u64,
    /// It happened: completed now, and replayed from now on.
    pub applied: u64,
    /// It did not happen: released, the same key may run again.
    pub not_applied: u64,
    /// Settled by the owner, a caller, another process or a person during this run.
    pub overtaken: u64,
    /// Still uncertain: the lookup did not know, is in backoff, or there is none.
    pub held: u64,
    /// Still within the settle delay, when a lookup is not trusted yet.
    pub settling: u64,
    /// Requests that the store failed. Their intents are checked again in the next run.
    pub store_failures: u64,
    /// A limit ended the run; the next run continues from there.
    pub more: bool,
    /// The longest held intent of this run.
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

    /// Adds the counts; the run itself sets [`more`](Self::more).
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
