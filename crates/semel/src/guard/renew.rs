//! Keeping the lease while the work goes on.

use std::pin::pin;

use tokio::time::Instant;

use crate::intent::policy::millis;
use crate::observe::Phase;
use crate::store::{Renewed, Store, Ticket};

use super::operation::Guarded;

impl<S: Store> Guarded<S> {
    /// Renews until dropped; returns when the claim is lost, and never later than its lease ends. `asked` is when the
    /// claim was first asked for: the store's lease cannot have begun before that, so it does not end before we say so.
    pub(super) async fn keep_lease(&self, ticket: Ticket, asked: Instant) {
        let lease = self.of.policy.lease;
        let (mut next, mut end) = (asked + lease / 3, asked + lease);
        loop {
            tokio::time::sleep_until(next).await;
            let begun = Instant::now();
            if begun >= end {
                return self.lost(&ticket, "the process stood still for longer than its lease");
            }
            // One renewal that hangs must not take the lease with it, nor outlive it.
            let limit = self.of.guard.inner.limits.store_timeout.min(lease / 3).min(end - begun);
            let renewal = self.of.guard.inner.store.renew(ticket, millis(lease));
            match self.ask_within(limit, Phase::Renew, pin!(renewal)).await {
                Ok(Renewed::Until(_)) => (next, end) = (begun + lease / 3, begun + lease),
                Ok(Renewed::Stale) => return self.lost(&ticket, "somebody else has the claim, or it lapsed"),
                Err(error) => {
                    let (operation, id) = (self.of.operation.as_str(), ticket.id);
                    tracing::warn!(operation, ?id, %error, "the lease could not be renewed");
                    next = Instant::now() + lease / 10;
                    if next >= end {
                        tokio::time::sleep_until(end).await;
                        return self.lost(&ticket, "it could not be renewed in time");
                    }
                }
            }
        }
    }

    fn lost(&self, ticket: &Ticket, why: &str) {
        self.of.metrics.lease_lost();
        let (operation, id) = (self.of.operation.as_str(), ticket.id);
        tracing::warn!(operation, ?id, why, "the claim was lost while the work goes on");
    }
}
