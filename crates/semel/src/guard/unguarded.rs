//! The store is down and the policy is open (fail-open): the work runs without a claim.

use std::future::Future;
use std::pin::pin;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::answer::{Answer, Attempt, Execution, GuardError};
use super::give_back::{is_owner_unknown, own_ticket};
use super::lease_time::LeaseStart;
use super::operation::Guarded;
use super::retry::Retries;
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::StoreDown;
use crate::observe::{FinishStatus, Phase};
use crate::store::{Claim, ErrorKind, Finish, Store, StoreError};

impl<S: Store> Guarded<S> {
    /// Whether the work runs although the store failed: only while the store is unavailable. A store that answers
    /// "full" or "corrupt" says so to every retry, and each of them would run.
    pub(super) fn runs_open(&self, error: &StoreError) -> bool {
        self.of.policy.store_down == StoreDown::Open
            && matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy)
    }

    /// Runs the work without a claim; the answer says so.
    pub(super) async fn run_unguarded<F, Fut, T>(
        &self,
        claim: Claim,
        permit: OwnedSemaphorePermit,
        work: F,
    ) -> Result<(Answer, Option<T>), GuardError>
    where
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = (Execution, T)> + Send + 'static,
        T: Send + 'static,
    {
        self.of.metrics.unguarded();
        let intent = claim.intent.clone();
        tracing::warn!(
            operation = self.of.operation.as_str(),
            intent = super::shown(&intent),
            "running unguarded: the store is down and the policy is open; a duplicate may run too"
        );
        let (answer, answered) = oneshot::channel();
        let id = intent.id();
        let (this, began) = (self.clone(), self.lease_start());
        self.of.guard.spawn(async move {
            let ran = this.run_caught(work, Attempt { intent, number: 1, epoch: None }).await;
            let (verdict, outcome) = this.to_record(&ran);
            this.record_later(claim, began, verdict, outcome.cloned());
            drop(permit);
            let _ = answer.send(ran.map(|(execution, given)| {
                (Answer { guarded: false, ..Answer::ran(execution, verdict, false) }, Some(given))
            }));
        });
        answered.await.unwrap_or(Err(GuardError::Uncertain { id, settles_in: None }))
    }

    /// Records work that ran unguarded as soon as the store is back, so that later retries find it. Its key has been
    /// known downstream since it began, however late the store hears of it.
    fn record_later(&self, claim: Claim, began: LeaseStart, verdict: Verdict, outcome: Option<Outcome>) {
        let Some(permit) = self.of.guard.inner.tracker.unrecorded() else {
            self.of.metrics.finalize(FinishStatus::Lost);
            return;
        };
        self.of.metrics.finalize(FinishStatus::Deferred);
        let this = self.clone();
        self.of.guard.spawn(async move {
            let mut retries = Retries::new();
            loop {
                let window = claim.window.begun_ago(this.since(&began));
                let late = Claim { window, ..claim.clone() };
                match this.ask(Phase::Claim, pin!(this.of.guard.inner.store.claim(late))).await {
                    Ok(claimed) if is_owner_unknown(&claimed) && retries.in_time() => {}
                    Ok(claimed) => {
                        match own_ticket(&claimed, &claim) {
                            Some(ticket) => {
                                let outcome = outcome.map(|outcome| this.kept(outcome));
                                let finish = Finish { verdict, outcome, retention: this.of.policy.retention };
                                this.finish_until_known(&claim.intent, ticket, finish).await;
                            }
                            // Another caller ran it too, which an open policy accepts.
                            None => this.of.metrics.finalize(FinishStatus::OwnerMismatch),
                        }
                        break;
                    }
                    Err(_) if retries.in_time() => {}
                    Err(_) => {
                        this.of.metrics.finalize(FinishStatus::Lost);
                        break;
                    }
                }
                retries.pause().await;
            }
            drop(permit);
        });
    }
}
