//! Claim: asks the store for the intent until the answer is known.

use std::pin::pin;
use std::time::Duration;

use tracing::{Instrument, Span};

use super::answer::GuardError;
use super::give_back::{ClaimInDoubt, is_owner_unknown};
use super::lease_time::LeaseStart;
use super::operation::Guarded;
use super::retry::BACKOFF;
use crate::intent::identity::Owner;
use crate::observe::{ClaimStatus, Phase, names};
use crate::store::{Claim, Claimed, ErrorKind, Fate, Store, StoreError};

/// Max attempts to claim before the outage policy decides.
const CLAIM_ATTEMPTS_MAX: u32 = 3;

/// How many claims of one call may expire before the store has answered them.
const LAPSES_MAX: u32 = 3;

impl<S: Store> Guarded<S> {
    /// Claims the intent, with metrics and a span. The claim gets a new owner if its attempts so far are given back.
    pub(super) async fn claim(&self, claim: &mut Claim) -> Result<Claimed, StoreError> {
        let span = tracing::info_span!(
            names::SPAN_CLAIM,
            idempotency.operation = self.of.operation.as_str(),
            idempotency.key_hash = tracing::field::Empty,
            idempotency.status = tracing::field::Empty,
            idempotency.state = tracing::field::Empty,
            idempotency.replayed = tracing::field::Empty,
        );
        if !span.is_disabled() {
            span.record("idempotency.key_hash", claim.intent.key().short_hash());
        }
        let mut doubt = ClaimInDoubt::new(self, claim);
        let known = doubt.claim_until_known();
        let result =
            if span.is_disabled() { known.await } else { Box::pin(known.instrument(span.clone())).await };
        doubt.settle(&result);
        self.count_claim(&span, &result);
        result
    }

    fn count_claim(&self, span: &Span, result: &Result<Claimed, StoreError>) {
        let (status, existing) = match result {
            Ok(Claimed::Run(_)) => (ClaimStatus::Run, None),
            Ok(Claimed::Mismatch) => (ClaimStatus::Mismatch, None),
            Ok(Claimed::InFlight(existing)) => (ClaimStatus::InFlight, Some(existing)),
            Ok(Claimed::Replay(existing)) => (ClaimStatus::Replay, Some(existing)),
            Ok(Claimed::Uncertain(existing)) => (ClaimStatus::Uncertain, Some(existing)),
            Err(_) => (ClaimStatus::Error, None),
        };
        self.of.metrics.claim(status);
        let state = existing
            .map(|existing| existing.record.state_at(existing.now).unwrap_or(existing.record.head.state));
        if !span.is_disabled() {
            span.record("idempotency.status", status.as_str());
            span.record("idempotency.replayed", status == ClaimStatus::Replay);
            if let Some(state) = state {
                span.record("idempotency.state", state.as_str());
            }
        }
        if let Some((existing, state)) = existing.zip(state) {
            self.of.metrics.existing(state, existing.now.since_ms(existing.record.created_at));
            if existing.other_recipe {
                self.of.metrics.other_recipe();
            }
        }
    }

    /// Whether the claim is ours, but the store answered only after its lease had expired.
    pub(super) fn is_lapsed(&self, claimed: &Claimed, claim: &Claim, start: &LeaseStart) -> bool {
        match claimed {
            Claimed::Run(_) => self.since(start) >= self.of.policy.lease,
            Claimed::Uncertain(existing) => existing.record.head.owner == claim.owner,
            Claimed::Mismatch | Claimed::InFlight(_) | Claimed::Replay(_) => false,
        }
    }

    /// Nothing ran under a lapsed claim, and nothing will, because another caller may have decided it meanwhile. It is
    /// given back and claimed again under a new owner.
    pub(super) async fn lapsed(&self, claim: &mut Claim, lapses: &mut u32) -> Result<(), GuardError> {
        self.give_back_lapsed(claim).await;
        *lapses += 1;
        if *lapses == LAPSES_MAX {
            return Err(GuardError::StoreUnavailable(too_slow(self.of.policy.lease)));
        }
        claim.owner = Owner::random();
        Ok(())
    }
}

impl<S: Store> ClaimInDoubt<'_, S> {
    /// Retries a claim until the store has answered. A retry under the same owner is safe: a claim that was applied
    /// before is given to its owner again.
    async fn claim_until_known(&mut self) -> Result<Claimed, StoreError> {
        let guarded = self.guarded;
        let (mut attempts, mut doubt) = (0, false);
        loop {
            attempts += 1;
            let store = &guarded.of.guard.inner.store;
            let asked = match guarded.of.policy.verify {
                true => guarded.ask(Phase::Claim, pin!(store.claim_verified(self.claim.clone()))).await,
                false => guarded.ask(Phase::Claim, pin!(store.claim(self.claim.clone()))).await,
            };
            match asked {
                Ok(claimed) if doubt && is_owner_unknown(&claimed) => {
                    if attempts == CLAIM_ATTEMPTS_MAX {
                        // Nothing runs for this caller, so an earlier attempt that was applied is given back under the
                        // old owner. Work that ran under it, too, would have its claim released while it runs.
                        guarded.give_back_later(self.claim);
                        self.claim.owner = Owner::random();
                        return Ok(claimed);
                    }
                }
                Ok(claimed) => return Ok(claimed),
                Err(error) => {
                    // One attempt in doubt leaves the claim in doubt, whatever became of the others.
                    doubt |= error.fate() != Fate::NotApplied;
                    if !error.may_retry() || attempts == CLAIM_ATTEMPTS_MAX {
                        return Err(if doubt { error.in_doubt() } else { error });
                    }
                }
            }
            Box::pin(tokio::time::sleep(BACKOFF.delay(0))).await;
        }
    }

    fn settle(mut self, result: &Result<Claimed, StoreError>) {
        self.settled = match result {
            Ok(_) => true,
            // If the work runs unguarded, its outcome is recorded under this claim: nothing to give back.
            Err(error) => error.fate() == Fate::NotApplied || self.guarded.runs_open(error),
        };
    }
}

fn too_slow(lease: Duration) -> StoreError {
    let message =
        format!("the store took longer than the lease of {lease:?} to answer a claim; set a longer lease");
    StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message)
}
