//! Claim: asks the store for the intent until the answer is known.

use std::pin::pin;
use std::time::Duration;

use tracing::{Instrument, Span};

use super::answer::GuardError;
use super::give_back::{ClaimInDoubt, is_owner_unknown};
use super::lease_time::LeaseStart;
use super::operation::Guarded;
use super::retry::BACKOFF;
use crate::intent::guard_expiry::may_begin;
use crate::intent::identity::Owner;
use crate::intent::policy::{StoreTime, millis};
use crate::observe::{ClaimStatus, Phase, names};
use crate::store::{Claim, Claimed, ErrorKind, Existing, Fate, Store, StoreError, Ticket};

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
        if let Ok(Claimed::Uncertain(existing)) = result {
            self.count_guard_expired(existing);
        }
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

    fn count_guard_expired(&self, existing: &Existing) {
        let (record, call_ms) = (&existing.record, self.of.policy.window().call_ms);
        if record.head.is_guard_expired(existing.now, call_ms) {
            self.of.metrics.guard_expired();
            tracing::warn!(
                operation = self.of.operation.as_str(),
                intent = super::shown(&record.intent),
                "not run again: the other side may have forgotten the key by now (guard expired); look up what happened, \
                 then decide it with `semel resolve`"
            );
        }
    }

    /// Whether the claim is ours, but the store answered only after its lease had expired.
    pub(super) fn is_lapsed(&self, claimed: &Claimed, claim: &Claim, start: &LeaseStart) -> bool {
        match claimed {
            Claimed::Run(ticket) => {
                self.since(start) >= self.of.policy.lease || !self.may_still_begin(ticket, start)
            }
            Claimed::Uncertain(existing) => existing.record.head.owner == claim.owner,
            Claimed::Mismatch | Claimed::InFlight(_) | Claimed::Replay(_) => false,
        }
    }

    /// Whether an attempt that begins now, and not when its claim was granted, ends before the key may be forgotten. The
    /// first attempt repeats nothing.
    fn may_still_begin(&self, ticket: &Ticket, start: &LeaseStart) -> bool {
        let granted_at = StoreTime(ticket.lease_until.0.saturating_sub(millis(self.of.policy.lease)));
        let now = granted_at.plus_ms(millis(self.since(start)));
        ticket.attempt == 1 || may_begin(now, self.of.policy.window().call_ms, ticket.safe_until)
    }

    /// The process stood still between its claim and its work, and another attempt may have begun meanwhile.
    pub(super) fn begins_too_late(&self, ticket: &Ticket, start: &LeaseStart) -> bool {
        let late = || self.since(start) >= self.of.policy.lease || !self.may_still_begin(ticket, start);
        ticket.safe_until.is_some() && late()
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
