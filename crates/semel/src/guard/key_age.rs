//! The age of a time-ordered key: one older than the retention may have been used before.

use std::pin::pin;
use std::time::Duration;

use super::answer::GuardError;
use super::operation::Guarded;
use crate::intent::identity::Intent;
use crate::intent::policy::{KeyAge, StoreTime};
use crate::observe::Phase;
use crate::store::{Claim, Store, Ticket};

impl<S: Store> Guarded<S> {
    /// Refuses a key that is too old or from the future. Otherwise returns how long it stays valid, if that is limited.
    pub(crate) async fn check_key_age(&self, intent: &Intent) -> Result<Option<Duration>, GuardError> {
        let policy = &self.of.policy;
        match self.ask(Phase::Read, pin!(self.of.guard.inner.store.now())).await {
            Ok(now) => {
                self.judge_key_age(intent, now)?;
                let fine_ms = policy.key_format.fine_for_ms(intent.key(), policy.retention, now);
                Ok(fine_ms.map(Duration::from_millis))
            }
            // The claim will fail too, and apply the outage policy.
            Err(error) if self.runs_open(&error) => Ok(None),
            Err(error) => Err(GuardError::StoreUnavailable(error)),
        }
    }

    /// Checks the key's age again at the time of the claim: while a caller waited, the outcome of an earlier run may
    /// have passed its retention.
    pub(super) async fn check_key_age_when_claimed(
        &self,
        claim: &mut Claim,
        ticket: &Ticket,
    ) -> Result<(), GuardError> {
        let claimed_at = StoreTime(ticket.lease_until.0.saturating_sub(claim.lease_ms));
        let fine = self.judge_key_age(&claim.intent, claimed_at);
        if fine.is_err() {
            self.give_back_lapsed(claim).await;
        }
        fine
    }

    fn judge_key_age(&self, intent: &Intent, now: StoreTime) -> Result<(), GuardError> {
        match self.of.policy.key_format.judge(intent.key(), self.of.policy.retention, now) {
            KeyAge::Fine => Ok(()),
            KeyAge::Expired => Err(GuardError::KeyExpired),
            KeyAge::FromFuture => Err(GuardError::KeyFromFuture),
            KeyAge::NotTimeOrdered => Err(GuardError::KeyNotTimeOrdered),
        }
    }
}
