//! Retries claims in doubt and outcomes that could not be recorded until their result is known.

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use super::answer::{Answer, Execution, GuardError};
use super::operation::Guarded;
use crate::backoff::Backoff;
use crate::intent::identity::{Intent, Owner};
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::state::State;
use crate::observe::{FinishStatus, Phase};
use crate::store::{Claim, Claimed, ErrorKind, Fate, Finish, Finished, Store, StoreError, Ticket};
use crate::timeout::within;

/// Max attempts to claim before the outage policy decides.
const CLAIM_TRIES: u32 = 3;
/// Max attempts to give back a claim in doubt that got no permit to go on; then it is left to its lease.
const SETTLE_TRIES: u32 = 10;
/// Backoff between retries in the background.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5)).jitter(0.5);
/// How long recording an outcome, or giving back a claim, is retried before it is given up with an error in the log.
const UNRECORDED_MAX: Duration = Duration::from_secs(60 * 60);

/// The ticket of a claim that is ours, even if its lease has expired: the epoch is the fencing token.
fn own_ticket(claimed: &Claimed, claim: &Claim) -> Option<Ticket> {
    match claimed {
        Claimed::Run(ticket) => Some(*ticket),
        Claimed::InFlight(existing) | Claimed::Uncertain(existing) => {
            let record = &existing.record;
            (record.head.owner == claim.owner).then(|| record.ticket(existing.other_recipe))
        }
        Claimed::Mismatch | Claimed::Replay(_) => None,
    }
}

/// The store's answer to a claim.
pub(super) struct ClaimResult {
    pub(super) claimed: Claimed,
    /// An earlier try may have been applied; it is being given back under the claim's owner.
    pub(super) given_back: bool,
}

/// The key is locked by a transaction that is still open, so its owner cannot be read; it may be our own earlier try.
/// If none of our tries is in doubt, that is in flight like any other. If one is, this is no answer yet.
fn is_owner_unknown(claimed: &Claimed) -> bool {
    matches!(claimed, Claimed::InFlight(existing) if existing.record.head.owner == Owner::NONE)
}

impl<S: Store> Guarded<S> {
    /// Sends one request to the store with a timeout, and counts a failure. A timeout leaves the request in doubt.
    pub(crate) fn ask<T>(
        &self,
        phase: Phase,
        request: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        let limits = &self.of.guard.inner.limits;
        let limit = if phase == Phase::Finish { limits.finish_wait } else { limits.store_timeout };
        self.ask_within(limit, phase, request)
    }

    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    pub(crate) fn ask_within<T>(
        &self,
        limit: Duration,
        phase: Phase,
        request: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        async move {
            let result = within(limit, request).await.unwrap_or_else(|| {
                let message = format!("the store did not answer a {} within {limit:?}", phase.as_str());
                Err(StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message))
            });
            if result.is_err() {
                self.of.metrics.store_error(phase);
            }
            result
        }
    }

    /// Retries a claim until the store has answered. A retry under the same owner is safe: a claim that was applied
    /// before is given to its owner again.
    pub(super) async fn claim_until_known(&self, claim: &Claim) -> Result<ClaimResult, StoreError> {
        let (mut tries, mut doubt) = (0, false);
        loop {
            tries += 1;
            let store = &self.of.guard.inner.store;
            let asked = match self.of.policy.verify {
                true => self.ask(Phase::Claim, pin!(store.claim_verified(claim.clone()))).await,
                false => self.ask(Phase::Claim, pin!(store.claim(claim.clone()))).await,
            };
            match asked {
                Ok(claimed) if doubt && is_owner_unknown(&claimed) => {
                    if tries == CLAIM_TRIES {
                        // Nothing runs for this caller, so an earlier try that was applied is given back.
                        self.give_back_later(claim);
                        return Ok(ClaimResult { claimed, given_back: true });
                    }
                }
                Ok(claimed) => return Ok(ClaimResult { claimed, given_back: false }),
                Err(error) => {
                    // One try in doubt leaves the claim in doubt, whatever became of the others.
                    doubt |= error.fate() != Fate::NotApplied;
                    if !error.may_retry() || tries == CLAIM_TRIES {
                        return Err(if doubt { error.in_doubt() } else { error });
                    }
                }
            }
            Box::pin(tokio::time::sleep(BACKOFF.delay(0))).await;
        }
    }

    /// Releases a claim that may have been applied although no work will run under it. Otherwise its lease would
    /// expire and leave an intent uncertain that never started.
    pub(super) async fn give_back(&self, claim: Claim) {
        let permit = self.of.guard.inner.tracker.give_back_permit();
        let started = tokio::time::Instant::now();
        for attempt in 0.. {
            let goes_on =
                (permit.is_some() || attempt + 1 < SETTLE_TRIES) && started.elapsed() < UNRECORDED_MAX;
            match self.ask(Phase::Claim, pin!(self.of.guard.inner.store.claim(claim.clone()))).await {
                Ok(claimed) if !is_owner_unknown(&claimed) => {
                    if let Some(ticket) = own_ticket(&claimed, &claim) {
                        self.release_until_known(ticket).await;
                    }
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Closed => break,
                Ok(_) | Err(_) if goes_on => {}
                Ok(_) | Err(_) => break,
            }
            tokio::time::sleep(BACKOFF.delay(attempt)).await;
        }
        tracing::warn!(
            operation = self.of.operation.as_str(),
            intent = super::shown(&claim.intent),
            "gave up releasing a claim in doubt; if the store has it, it stays until its lease expires"
        );
    }

    /// Releases a claim, which may exist only because [`give_back`](Self::give_back) had to claim it: it must not stay.
    async fn release_until_known(&self, ticket: Ticket) {
        let started = tokio::time::Instant::now();
        for attempt in 0.. {
            let release = Finish::release(self.of.policy.retention);
            let request = pin!(self.of.guard.inner.store.finish(ticket, release));
            match self.ask(Phase::Finish, request).await {
                Err(error) if error.kind() != ErrorKind::Closed && started.elapsed() < UNRECORDED_MAX => {}
                Ok(_) | Err(_) => return,
            }
            tokio::time::sleep(BACKOFF.delay(attempt)).await;
        }
    }

    /// Gives back a claim that came too late to be used. The caller waits at most the store timeout; after that, or if
    /// the caller leaves, it continues in the background.
    pub(super) async fn give_back_lapsed(&self, claim: &Claim) {
        let mut doubt = ClaimInDoubt::new(self, claim);
        let limit = self.of.guard.inner.limits.store_timeout;
        doubt.settled = tokio::time::timeout(limit, self.give_back(claim.clone())).await.is_ok();
    }

    /// Records work that ran unguarded as soon as the store is back, so that later retries find it.
    pub(super) fn record_later(&self, claim: Claim, verdict: Verdict, outcome: Option<Outcome>) {
        let Some(permit) = self.of.guard.inner.tracker.unrecorded() else {
            self.of.metrics.finalize(FinishStatus::Lost);
            return;
        };
        self.of.metrics.finalize(FinishStatus::Deferred);
        let this = self.clone();
        self.of.guard.spawn(async move {
            let started = tokio::time::Instant::now();
            for attempt in 0.. {
                match this.ask(Phase::Claim, pin!(this.of.guard.inner.store.claim(claim.clone()))).await {
                    Ok(claimed) if is_owner_unknown(&claimed) && started.elapsed() < UNRECORDED_MAX => {}
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
                    Err(_) if started.elapsed() < UNRECORDED_MAX => {}
                    Err(_) => {
                        this.of.metrics.finalize(FinishStatus::Lost);
                        break;
                    }
                }
                tokio::time::sleep(BACKOFF.delay(attempt)).await;
            }
            drop(permit);
        });
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

    /// Records the outcome in the store; if the store fails, this is retried in the background.
    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    pub(super) fn finish<'a>(
        &'a self,
        intent: &'a Intent,
        ticket: &'a Ticket,
        verdict: Verdict,
        outcome: Option<&'a Outcome>,
    ) -> impl Future<Output = Recorded> + Send + 'a {
        async move {
            // An outcome known to be too large is replaced by a tombstone: "done, body not kept".
            let finish = || Finish {
                verdict,
                outcome: outcome.map(|outcome| self.kept(outcome.clone())),
                retention: self.of.policy.retention,
            };
            let finished = {
                let request = pin!(self.of.guard.inner.store.finish(*ticket, finish()));
                self.ask(Phase::Finish, request).await
            };
            let error = match finished {
                Ok(finished) if self.is_ours(intent, ticket, finished) => return Recorded::Yes,
                Ok(_) => return Box::pin(self.superseded(*ticket)).await,
                Err(error) if error.kind() == ErrorKind::TooLarge => {
                    return Box::pin(self.finish_smaller(intent, *ticket, finish())).await;
                }
                Err(error) => error,
            };
            tracing::error!(
                operation = self.of.operation.as_str(),
                intent = super::shown(intent),
                %error,
                "the work ended but its outcome is not recorded yet; retrying in the background"
            );
            self.finish_later(intent, *ticket, finish());
            Recorded::NotYet
        }
    }

    /// The store's size limit is lower than usual: records less of the outcome, at least that the work is done.
    async fn finish_smaller(&self, intent: &Intent, ticket: Ticket, finish: Finish) -> Recorded {
        let mut smaller = finish.smaller();
        while let Some(finish) = smaller {
            let request = pin!(self.of.guard.inner.store.finish(ticket, finish.clone()));
            match self.ask(Phase::Finish, request).await {
                Ok(finished) if self.is_ours(intent, &ticket, finished) => {
                    self.left_out(intent);
                    return Recorded::Yes;
                }
                Ok(_) => return self.superseded(ticket).await,
                Err(error) if error.kind() == ErrorKind::TooLarge => smaller = finish.smaller(),
                Err(_) => {
                    self.finish_later(intent, ticket, finish);
                    return Recorded::NotYet;
                }
            }
        }
        self.of.metrics.finalize(FinishStatus::Lost);
        Recorded::NotYet
    }

    fn left_out(&self, intent: &Intent) {
        let (operation, intent) = (self.of.operation.as_str(), super::shown(intent));
        tracing::warn!(
            operation,
            intent,
            "the outcome is too large for the store; it is recorded without its body"
        );
    }

    /// Counts an answered finish; returns whether the recorded outcome is this one.
    fn is_ours(&self, intent: &Intent, ticket: &Ticket, finished: Finished) -> bool {
        match finished {
            Finished::Recorded => self.of.metrics.finalize(FinishStatus::Recorded),
            Finished::Already => self.of.metrics.finalize(FinishStatus::Already),
            Finished::Other(state) => {
                self.of.metrics.finalize(FinishStatus::OwnerMismatch);
                tracing::error!(
                    operation = self.of.operation.as_str(),
                    intent = super::shown(intent),
                    epoch = ticket.epoch.0,
                    state = state.as_str(),
                    "the outcome was not recorded: this claim was already finished with another outcome"
                );
            }
            Finished::Stale => {
                self.of.metrics.finalize(FinishStatus::OwnerMismatch);
                tracing::error!(
                    operation = self.of.operation.as_str(),
                    intent = super::shown(intent),
                    epoch = ticket.epoch.0,
                    "the outcome was not recorded: the intent was claimed or decided by another caller meanwhile"
                );
            }
        }
        matches!(finished, Finished::Recorded | Finished::Already)
    }

    /// Another outcome is recorded. Every caller must see the same answer, so this one gets it too.
    async fn superseded(&self, ticket: Ticket) -> Recorded {
        match self.ask(Phase::Read, pin!(self.of.guard.inner.store.get(ticket.id))).await {
            Ok(Some(record)) => match (record.head.state, record.outcome) {
                (State::Completed, Some(outcome)) => Recorded::Instead(Verdict::Completed, outcome),
                (State::FailedFinal, Some(outcome)) => Recorded::Instead(Verdict::FailedFinal, outcome),
                _ => Recorded::NotYet,
            },
            Ok(None) | Err(_) => Recorded::NotYet,
        }
    }

    fn finish_later(&self, intent: &Intent, ticket: Ticket, finish: Finish) {
        let Some(permit) = self.of.guard.inner.tracker.unrecorded() else {
            self.of.metrics.finalize(FinishStatus::Lost);
            tracing::error!(
                operation = self.of.operation.as_str(),
                intent = super::shown(intent),
                "too many outcomes are waiting to be recorded; this one is given up and its intent will be uncertain"
            );
            return;
        };
        self.of.metrics.finalize(FinishStatus::Deferred);
        let (this, intent) = (self.clone(), intent.clone());
        self.of.guard.spawn(async move {
            this.finish_until_known(&intent, ticket, finish).await;
            drop(permit);
        });
    }

    async fn finish_until_known(&self, intent: &Intent, ticket: Ticket, mut finish: Finish) {
        let started = tokio::time::Instant::now();
        for attempt in 0.. {
            if attempt > 0 {
                tokio::time::sleep(BACKOFF.delay(attempt - 1)).await;
            }
            let finished =
                self.ask(Phase::Finish, pin!(self.of.guard.inner.store.finish(ticket, finish.clone()))).await;
            let error = match finished {
                Ok(finished) => {
                    self.is_ours(intent, &ticket, finished);
                    return;
                }
                Err(error) => error,
            };
            let smaller = finish.smaller().filter(|_| error.kind() == ErrorKind::TooLarge);
            if let Some(smaller) = smaller {
                self.left_out(intent);
                finish = smaller;
                continue;
            }
            let give_up = matches!(error.kind(), ErrorKind::Closed | ErrorKind::TooLarge)
                || started.elapsed() >= UNRECORDED_MAX;
            if give_up {
                self.of.metrics.finalize(FinishStatus::Lost);
                tracing::error!(
                    operation = self.of.operation.as_str(),
                    intent = super::shown(intent),
                    %error,
                    "gave up recording an outcome; its intent will be uncertain"
                );
                return;
            }
        }
    }
}

/// Whether an outcome was recorded.
pub(super) enum Recorded {
    Yes,
    NotYet,
    /// Another outcome is recorded instead.
    Instead(Verdict, Outcome),
}

impl<S: Store> Guarded<S> {
    /// The answer for the caller whose work ran.
    pub(super) async fn to_answer(
        &self,
        intent: &Intent,
        recorded: Recorded,
        verdict: Verdict,
        execution: Execution,
    ) -> Result<Answer, GuardError> {
        let Execution { ended, outcome } = execution;
        let stored = match recorded {
            Recorded::Yes => true,
            Recorded::NotYet => false,
            Recorded::Instead(verdict, outcome) => {
                return Box::pin(self.replay_stored(intent, verdict, outcome)).await;
            }
        };
        Ok(Answer { outcome, verdict, ended, replayed: false, stored, guarded: true })
    }
}

/// Drop guard of a claim whose answer has not arrived: if the caller is cancelled meanwhile, or the claim stays in
/// doubt, the claim is given back.
pub(super) struct ClaimInDoubt<'a, S: Store> {
    guarded: &'a Guarded<S>,
    claim: &'a Claim,
    settled: bool,
}

impl<'a, S: Store> ClaimInDoubt<'a, S> {
    pub(super) fn new(guarded: &'a Guarded<S>, claim: &'a Claim) -> Self {
        Self { guarded, claim, settled: false }
    }

    pub(super) fn settle(mut self, result: &Result<ClaimResult, StoreError>) {
        self.settled = match result {
            Ok(_) => true,
            // If the work runs unguarded, its outcome is recorded under this claim: nothing to give back.
            Err(error) => error.fate() == Fate::NotApplied || self.guarded.runs_open(error),
        };
    }
}

impl<S: Store> Drop for ClaimInDoubt<'_, S> {
    fn drop(&mut self) {
        if !self.settled {
            self.guarded.give_back_later(self.claim);
        }
    }
}
