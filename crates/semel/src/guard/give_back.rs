//! Gives back a claim under which nothing runs. Otherwise its lease would expire and leave an intent uncertain that
//! never started.

use std::pin::pin;

use super::operation::Guarded;
use super::retry::Retries;
use crate::intent::identity::Owner;
use crate::observe::{FinishStatus, Phase};
use crate::store::{Claim, Claimed, ErrorKind, Finish, Store, Ticket};

/// Max attempts to give back a claim in doubt that got no permit to go on; then it is left to its lease.
const GIVE_BACK_ATTEMPTS_MAX: u32 = 10;

/// The ticket of a claim that is ours, even if its lease has expired: the epoch is the fencing token.
pub(super) fn own_ticket(claimed: &Claimed, claim: &Claim) -> Option<Ticket> {
    match claimed {
        Claimed::Run(ticket) => Some(*ticket),
        Claimed::InFlight(existing) | Claimed::Uncertain(existing) => {
            let record = &existing.record;
            (record.head.owner == claim.owner).then(|| record.ticket(existing.other_recipe))
        }
        Claimed::Mismatch | Claimed::Replay(_) => None,
    }
}

/// The key is locked by a transaction that is still open, so its owner cannot be read; it may be our own earlier
/// attempt. If none of our attempts is in doubt, that is in flight like any other. If one is, this is no answer yet.
pub(super) fn is_owner_unknown(claimed: &Claimed) -> bool {
    matches!(claimed, Claimed::InFlight(existing) if existing.record.head.owner == Owner::NONE)
}

impl<S: Store> Guarded<S> {
    /// Releases a claim that may have been applied although no work will run under it.
    async fn give_back(&self, claim: Claim) {
        let permit = self.of.guard.inner.tracker.give_back_permit();
        let mut retries = Retries::new();
        loop {
            let may_retry =
                (permit.is_some() || retries.made + 1 < GIVE_BACK_ATTEMPTS_MAX) && retries.in_time();
            match self.ask(Phase::Claim, pin!(self.of.guard.inner.store.claim(claim.clone()))).await {
                Ok(claimed) if !is_owner_unknown(&claimed) => {
                    if let Some(ticket) = own_ticket(&claimed, &claim) {
                        self.release_until_known(ticket).await;
                    }
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Closed => break,
                Ok(_) | Err(_) if may_retry => {}
                Ok(_) | Err(_) => break,
            }
            retries.pause().await;
        }
        tracing::warn!(
            operation = self.of.operation.as_str(),
            intent = super::shown(&claim.intent),
            "gave up releasing a claim in doubt; if the store has it, it stays until its lease expires"
        );
    }

    /// Releases a claim, which may exist only because [`give_back`](Self::give_back) had to claim it: it must not stay.
    async fn release_until_known(&self, ticket: Ticket) {
        let mut retries = Retries::new();
        loop {
            let release = Finish::release(self.of.policy.retention);
            let request = pin!(self.of.guard.inner.store.finish(ticket, release));
            match self.ask(Phase::Finish, request).await {
                Err(error) if error.kind() != ErrorKind::Closed && retries.in_time() => {}
                Ok(_) | Err(_) => return,
            }
            retries.pause().await;
        }
    }

    /// Gives back a claim that came too late to be used. The caller waits at most the store timeout; after that, or if
    /// the caller leaves, it continues in the background.
    pub(super) async fn give_back_lapsed(&self, claim: &mut Claim) {
        let limit = self.of.guard.inner.limits.store_timeout;
        let mut doubt = ClaimInDoubt::new(self, claim);
        doubt.settled = tokio::time::timeout(limit, self.give_back(doubt.claim.clone())).await.is_ok();
    }

    pub(super) fn give_back_later(&self, claim: &Claim) {
        let Some(permit) = self.of.guard.inner.tracker.unrecorded() else {
            self.of.metrics.finalize(FinishStatus::Lost);
            let (operation, intent) = (self.of.operation.as_str(), super::shown(&claim.intent));
            tracing::error!(
                operation,
                intent,
                "too many outcomes and claims are being retried; a claim in doubt is not released and stays until its \
                 lease expires"
            );
            return;
        };
        let (this, claim) = (self.clone(), claim.clone());
        self.of.guard.spawn(async move {
            this.give_back(claim).await;
            drop(permit);
        });
    }
}

/// Drop guard of a claim whose answer has not arrived: if the caller is cancelled meanwhile, or the claim stays in
/// doubt, the claim is given back.
pub(super) struct ClaimInDoubt<'a, S: Store> {
    pub(super) guarded: &'a Guarded<S>,
    pub(super) claim: &'a mut Claim,
    pub(super) settled: bool,
}

impl<'a, S: Store> ClaimInDoubt<'a, S> {
    pub(super) fn new(guarded: &'a Guarded<S>, claim: &'a mut Claim) -> Self {
        Self { guarded, claim, settled: false }
    }
}

impl<S: Store> Drop for ClaimInDoubt<'_, S> {
    fn drop(&mut self) {
        if !self.settled {
            self.guarded.give_back_later(self.claim);
        }
    }
}
