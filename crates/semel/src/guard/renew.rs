//! Lease renewal (heartbeat) while the work runs.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use tokio::time::Instant;

use crate::intent::policy::millis;
use crate::observe::Phase;
use crate::store::{Renewed, Store, Ticket};

use super::lease_time::LeaseStart;
use super::operation::Guarded;

const EXPIRED: &str =
    "the lease expired: the store did not answer, the process was paused, or the machine was suspended";

impl<S: Store> Guarded<S> {
    /// Renews until dropped; returns when the claim is lost, and never later than its lease ends. `start` is when the
    /// claim was first requested: the store's lease cannot have begun earlier, so it does not end before ours.
    pub(super) async fn keep_lease(&self, ticket: Ticket, mut start: LeaseStart) {
        let lease = self.of.policy.lease;
        let mut next = start.at + lease / 3;
        loop {
            if self.while_leased(&start, pin!(tokio::time::sleep_until(next))).await.is_none() {
                return self.lost(&ticket, EXPIRED);
            }
            let (renewing, end) = (self.lease_start(), start.at + lease);
            // One renewal that hangs must not use up the lease, nor outlive it.
            let left = end.saturating_duration_since(renewing.at);
            let limit = self.of.guard.inner.limits.store_timeout.min(lease / 3).min(left);
            let renewal = pin!(self.of.guard.inner.store.renew(ticket, millis(lease)));
            let renewal = self.ask_within(limit, Phase::Renew, renewal);
            match self.while_leased(&start, pin!(renewal)).await {
                None => return self.lost(&ticket, EXPIRED),
                Some(Ok(Renewed::Until(_))) => (start, next) = (renewing, renewing.at + lease / 3),
                Some(Ok(Renewed::Stale)) => {
                    return self.lost(&ticket, "another owner has the claim, or it expired");
                }
                Some(Err(error)) => {
                    let (operation, id) = (self.of.operation.as_str(), ticket.id);
                    tracing::warn!(operation, ?id, %error, "the lease could not be renewed; retrying until it expires");
                    next = Instant::now() + lease / 10;
                    if next >= end {
                        self.while_leased(&start, pin!(tokio::time::sleep_until(end))).await;
                        return self.lost(&ticket, "the lease could not be renewed before it expired");
                    }
                }
            }
        }
    }

    /// The future's output, or `None` when the lease is over. The lease is checked whenever the task is woken, not only
    /// when a timer fires: timers stand still while the machine is suspended.
    async fn while_leased<F: Future>(
        &self,
        start: &LeaseStart,
        mut future: Pin<&mut F>,
    ) -> Option<F::Output> {
        poll_fn(|cx| {
            if self.since(start) >= self.of.policy.lease {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    fn lost(&self, ticket: &Ticket, why: &str) {
        self.of.metrics.lease_lost();
        let (operation, id) = (self.of.operation.as_str(), ticket.id);
        tracing::warn!(
            operation,
            ?id,
            why,
            "lost the claim while its work is still running; its outcome may not be recorded"
        );
    }
}
