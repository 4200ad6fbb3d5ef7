//! Keeping the lease while the work goes on.

use crate::intent::policy::millis;
use crate::observe::Phase;
use crate::store::{Renewed, Store, Ticket};

use super::operation::Guarded;

impl<S: Store> Guarded<S> {
    /// Renews until dropped. Returns when the claim is lost: there is nothing left to renew, but the work
    /// goes on, because what it does cannot be taken back, and its outcome may still be the first to arrive.
    pub(super) async fn keep_lease(&self, ticket: Ticket) {
        let lease = self.policy.lease;
        let mut pause = lease / 3;
        loop {
            tokio::time::sleep(pause).await;
            match self.ask(Phase::Renew, self.guard.inner.store.renew(ticket, millis(lease))).await {
                Ok(Renewed::Until(_)) => pause = lease / 3,
                Ok(Renewed::Stale) => {
                    self.metrics.lease_lost();
                    tracing::warn!(
                        operation = self.operation.as_str(),
                        id = ?ticket.id,
                        "the claim was lost while the work goes on"
                    );
                    return;
                }
                Err(error) => {
                    tracing::warn!(
                        operation = self.operation.as_str(),
                        id = ?ticket.id,
                        %error,
                        "the lease could not be renewed"
                    );
                    pause = lease / 10;
                }
            }
        }
    }
}
