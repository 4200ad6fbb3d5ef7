//! Keeping the lease while the work goes on.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use tokio::time::Instant;

use crate::intent::policy::millis;
use crate::observe::Phase;
use crate::store::{Renewed, Store, Ticket};

use super::lease_time::Begun;
use super::operation::Guarded;

const OVER: &str =
    "its lease ended first: the store did not answer, the process stood still, or its machine slept";

impl<S: Store> Guarded<S> {
    /// Renews until dropped; returns when the claim is lost, and never later than its lease ends. `begun` is when the
    /// claim was first asked for: the store's lease cannot have begun before that, so it does not end before we say so.
    pub(super) async fn keep_lease(&self, ticket: Ticket, mut begun: Begun) {
        let lease = self.of.policy.lease;
        let mut next = begun.at + lease / 3;
        loop {
            if self.while_held(&begun, pin!(tokio::time::sleep_until(next))).await.is_none() {
                return self.lost(&ticket, OVER);
            }
            let (renewing, end) = (self.begin(), begun.at + lease);
            // One renewal that hangs must not take the lease with it, nor outlive it.
            let left = end.saturating_duration_since(renewing.at);
            let limit = self.of.guard.inner.limits.store_timeout.min(lease / 3).min(left);
            let renewal = pin!(self.of.guard.inner.store.renew(ticket, millis(lease)));
            let renewal = self.ask_within(limit, Phase::Renew, renewal);
            match self.while_held(&begun, pin!(renewal)).await {
                None => return self.lost(&ticket, OVER),
                Some(Ok(Renewed::Until(_))) => (begun, next) = (renewing, renewing.at + lease / 3),
                Some(Ok(Renewed::Stale)) => {
                    return self.lost(&ticket, "somebody else has the claim, or it lapsed");
                }
                Some(Err(error)) => {
                    let (operation, id) = (self.of.operation.as_str(), ticket.id);
                    tracing::warn!(operation, ?id, %error, "the lease could not be renewed");
                    next = Instant::now() + lease / 10;
                    if next >= end {
                        self.while_held(&begun, pin!(tokio::time::sleep_until(end))).await;
                        return self.lost(&ticket, "it could not be renewed in time");
                    }
                }
            }
        }
    }

    /// What is waited for, or `None` when the lease is over. That is looked at whenever the task is woken, and not only
    /// when a timer says so: timers stand still while the machine is suspended.
    async fn while_held<F: Future>(&self, begun: &Begun, mut future: Pin<&mut F>) -> Option<F::Output> {
        poll_fn(|cx| {
            if self.since(begun) >= self.of.policy.lease {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    fn lost(&self, ticket: &Ticket, why: &str) {
        self.of.metrics.lease_lost();
        let (operation, id) = (self.of.operation.as_str(), ticket.id);
        tracing::warn!(operation, ?id, why, "the claim was lost while the work goes on");
    }
}
