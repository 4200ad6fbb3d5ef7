//! Claims in doubt and outcomes that could not be recorded: tried until they are known.

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use super::answer::{Answer, Execution, GuardError};
use super::operation::Guarded;
use super::timeout::within;
use crate::intent::identity::{Intent, Owner};
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::state::State;
use crate::observe::{FinishStatus, Phase};
use crate::store::{Claim, Claimed, ErrorKind, Fate, Finish, Finished, Store, StoreError, Ticket};

/// Times a claim is asked for before the outage policy decides.
const CLAIM_TRIES: u32 = 3;
/// Times a claim in doubt is asked about before it is left to its lease, when it got no permit to ask for longer.
const SETTLE_TRIES: u32 = 10;
/// PollBackoff between tries in the background.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long an outcome is tried to be recorded, or a claim to be given back, before it is given up, loudly.
const UNRECORDED_MAX: Duration = Duration::from_secs(60 * 60);

fn pause(attempt: u32) -> Duration {
    let longest = PAUSE_MIN.saturating_mul(1 << attempt.min(10)).min(PAUSE_MAX);
    longest.mul_f64(0.5 + fastrand::f64() * 0.5)
}

/// The ticket of a claim that is ours, also when its lease has run out meanwhile: the fence is the epoch.
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

/// What asking for a claim came to.
pub(super) struct Asked {
    pub(super) claimed: Claimed,
    /// An earlier try may have gone through; it is being given back under the claim's owner.
    pub(super) given_back: bool,
}

/// Somebody holds the key, and who it is cannot be seen: a transaction that is still open, which may be our own
/// earlier try. Where nothing of ours is in doubt that is in flight like any other; where something is, it is no
/// answer yet.
fn is_unseen(claimed: &Claimed) -> bool {
    matches!(claimed, Claimed::InFlight(existing) if existing.record.head.owner == Owner::NOBODY)
}

impl<S: Store> Guarded<S> {
    /// One request to the store: bounded, and counted when it fails. No answer in time is doubt.
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

    /// Asks for a claim until the store has answered. Asking again under the same owner is safe: a claim
    /// that went through unseen is given to its owner once more.
    pub(super) async fn claim_until_known(&self, claim: &Claim) -> Result<Asked, StoreError> {
        let (mut tries, mut doubt) = (0, false);
        loop {
            tries += 1;
            let store = &self.of.guard.inner.store;
            let asked = match self.of.policy.verify {
                true => self.ask(Phase::Claim, pin!(store.claim_verified(claim.clone()))).await,
                false => self.ask(Phase::Claim, pin!(store.claim(claim.clone()))).await,
            };
            match asked {
                Ok(claimed) if doubt && is_unseen(&claimed) => {
                    if tries == CLAIM_TRIES {
                        // Nothing runs for this caller; whatever becomes of its earlier try is given back.
                        self.give_back_later(claim);
                        return Ok(Asked { claimed, given_back: true });
                    }
                }
                Ok(claimed) => return Ok(Asked { claimed, given_back: false }),
                Err(error) => {
                    // One try in doubt leaves the claim in doubt, whatever is known of the others.
                    doubt |= error.fate() != Fate::NotApplied;
                    if !error.may_retry() || tries == CLAIM_TRIES {
                        return Err(if doubt { error.in_doubt() } else { error });
                    }
                }
            }
            Box::pin(tokio::time::sleep(pause(0))).await;
        }
    }

    /// Gives back a claim that may have gone through although nobody will run it: otherwise its lease would
    /// run out and leave an intent uncertain that never started.
    pub(super) async fn give_back(&self, claim: Claim) {
        let permit = self.of.guard.inner.tracker.give_back_permit();
        let started = tokio::time::Instant::now();
        for attempt in 0.. {
            let goes_on =
                (permit.is_some() || attempt + 1 < SETTLE_TRIES) && started.elapsed() < UNRECORDED_MAX;
            match self.ask(Phase::Claim, pin!(self.of.guard.inner.store.claim(claim.clone()))).await {
                Ok(claimed) if !is_unseen(&claimed) => {
                    if let Some(ticket) = own_ticket(&claimed, &claim) {
                        self.release_until_known(ticket).await;
                    }
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Closed => break,
                Ok(_) | Err(_) if goes_on => {}
                Ok(_) | Err(_) => break,
            }
            tokio::time::sleep(pause(attempt)).await;
        }
        tracing::warn!(
            operation = self.of.operation.as_str(),
            intent = super::shown(&claim.intent),
            "a claim in doubt was left to its lease"
        );
    }

    /// The claim is there, perhaps only because it was asked for in order to be given back: it must not stay.
    async fn release_until_known(&self, ticket: Ticket) {
        let started = tokio::time::Instant::now();
        for attempt in 0.. {
            let release = Finish::release(self.of.policy.retention);
            let request = pin!(self.of.guard.inner.store.finish(ticket, release));
            match self.ask(Phase::Finish, request).await {
                Err(error) if error.kind() != ErrorKind::Closed && started.elapsed() < UNRECORDED_MAX => {}
                Ok(_) | Err(_) => return,
            }
            tokio::time::sleep(pause(attempt)).await;
        }
    }

    /// Gives back a claim that came too late to be run, while its caller waits for a moment. After that, and if the
    /// caller leaves, it goes on in the background.
    pub(super) async fn give_back_lapsed(&self, claim: &Claim) {
        let mut doubt = ClaimInDoubt::new(self, claim);
        let patience = self.of.guard.inner.limits.store_timeout;
        doubt.settled = tokio::time::timeout(patience, self.give_back(claim.clone())).await.is_ok();
    }

    /// Work that ran unguarded is recorded as soon as the store is back, so that retries from then on find it.
    pub(super) fn record_later(&self, claim: Claim, verdict: Verdict, outcome: Option<Outcome>) {
        let Some(place) = self.of.guard.inner.tracker.unrecorded() else {
            self.of.metrics.finalize(FinishStatus::Lost);
            return;
        };
        self.of.metrics.finalize(FinishStatus::Deferred);
        let this = self.clone();
        self.of.guard.spawn(async move {
            let started = tokio::time::Instant::now();
            for attempt in 0.. {
                match this.ask(Phase::Claim, pin!(this.of.guard.inner.store.claim(claim.clone()))).await {
                    Ok(claimed) if is_unseen(&claimed) && started.elapsed() < UNRECORDED_MAX => {}
                    Ok(claimed) => {
                        match own_ticket(&claimed, &claim) {
                            Some(ticket) => {
                                let outcome = outcome.map(|outcome| this.kept(outcome));
                                let finish = Finish { verdict, outcome, retention: this.of.policy.retention };
                                this.finish_until_known(&claim.intent, ticket, finish).await;
                            }
                            // Somebody else ran it too: what an open policy accepts.
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
                tokio::time::sleep(pause(attempt)).await;
            }
            drop(place);
        });
    }

    pub(super) fn give_back_later(&self, claim: &Claim) {
        let Some(place) = self.of.guard.inner.tracker.unrecorded() else {
            self.of.metrics.finalize(FinishStatus::Lost);
            let (operation, intent) = (self.of.operation.as_str(), super::shown(&claim.intent));
            tracing::error!(
                operation,
                intent,
                "too much waits to be settled; a claim in doubt is left to its lease"
            );
            return;
        };
        let (this, claim) = (self.clone(), claim.clone());
        self.of.guard.spawn(async move {
            this.give_back(claim).await;
            drop(place);
        });
    }

    /// Brings the outcome to the store; if the store fails, that goes on in the background.
    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    pub(super) fn finish<'a>(
        &'a self,
        intent: &'a Intent,
        ticket: &'a Ticket,
        verdict: Verdict,
        outcome: Option<&'a Outcome>,
    ) -> impl Future<Output = Recorded> + Send + 'a {
        async move {
            // Too large to keep is known beforehand: the tombstone says "done, body not kept".
            let finish = || Finish {
                verdict,
                outcome: outcome.map(|outcome| self.kept(outcome.clone())),
                retention: self.of.policy.retention,
            };
            let asked = {
                let request = pin!(self.of.guard.inner.store.finish(*ticket, finish()));
                self.ask(Phase::Finish, request).await
            };
            let error = match asked {
                Ok(finished) if self.is_ours(intent, ticket, finished) => return Recorded::Yes,
                Ok(_) => return Box::pin(self.superseded(*ticket)).await,
                Err(error) if error.kind() == ErrorKind::TooLarge => {
                    return Box::pin(self.finish_smaller(intent, *ticket, finish())).await;
                }
                Err(error) => error,
            };
            tracing::error!(operation = self.of.operation.as_str(), intent = super::shown(intent), %error, "the effect is done but its outcome is not recorded yet");
            self.finish_later(intent, *ticket, finish());
            Recorded::NotYet
        }
    }

    /// The store takes less than stores in general do: less of the outcome is recorded, at the least that it is done.
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
        tracing::warn!(operation, intent, "the outcome is larger than the store takes; its body is not kept");
    }

    /// Counts a finish that was answered; says whether the outcome that stands is this one's.
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
                    "the outcome is not stored: this claim had been finished differently before"
                );
            }
            Finished::Stale => {
                self.of.metrics.finalize(FinishStatus::OwnerMismatch);
                tracing::error!(
                    operation = self.of.operation.as_str(),
                    intent = super::shown(intent),
                    epoch = ticket.epoch.0,
                    "the outcome came too late: somebody else claimed or decided this intent"
                );
            }
        }
        matches!(finished, Finished::Recorded | Finished::Already)
    }

    /// Somebody else's outcome stands. Every caller shall see the same answer, so this one gets it too.
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
        let Some(place) = self.of.guard.inner.tracker.unrecorded() else {
            self.of.metrics.finalize(FinishStatus::Lost);
            tracing::error!(
                operation = self.of.operation.as_str(),
                intent = super::shown(intent),
                "too many outcomes wait to be recorded; this one is given up and its intent will be uncertain"
            );
            return;
        };
        self.of.metrics.finalize(FinishStatus::Deferred);
        let (this, intent) = (self.clone(), intent.clone());
        self.of.guard.spawn(async move {
            this.finish_until_known(&intent, ticket, finish).await;
            drop(place);
        });
    }

    async fn finish_until_known(&self, intent: &Intent, ticket: Ticket, mut finish: Finish) {
        let started = tokio::time::Instant::now();
        for attempt in 0.. {
            if attempt > 0 {
                tokio::time::sleep(pause(attempt - 1)).await;
            }
            let asked =
                self.ask(Phase::Finish, pin!(self.of.guard.inner.store.finish(ticket, finish.clone()))).await;
            let error = match asked {
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
            let hopeless = matches!(error.kind(), ErrorKind::Closed | ErrorKind::TooLarge)
                || started.elapsed() >= UNRECORDED_MAX;
            if hopeless {
                self.of.metrics.finalize(FinishStatus::Lost);
                tracing::error!(operation = self.of.operation.as_str(), intent = super::shown(intent), %error, "an outcome could not be recorded; its intent will be uncertain");
                return;
            }
        }
    }
}

/// What became of an outcome.
pub(super) enum Recorded {
    Yes,
    NotYet,
    /// Another outcome stands in its place.
    Instead(Verdict, Outcome),
}

impl<S: Store> Guarded<S> {
    /// What the one whose work it was gets.
    pub(super) async fn told(
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
                return Box::pin(self.given_again(intent, verdict, outcome)).await;
            }
        };
        Ok(Answer { outcome, verdict, ended, replayed: false, stored, guarded: true })
    }
}

/// Watches over a claim whose answer has not arrived: if the caller goes away meanwhile, or the store never
/// answers clearly, the claim is given back.
pub(super) struct ClaimInDoubt<'a, S: Store> {
    guarded: &'a Guarded<S>,
    claim: &'a Claim,
    settled: bool,
}

impl<'a, S: Store> ClaimInDoubt<'a, S> {
    pub(super) fn new(guarded: &'a Guarded<S>, claim: &'a Claim) -> Self {
        Self { guarded, claim, settled: false }
    }

    pub(super) fn settle(mut self, result: &Result<Asked, StoreError>) {
        self.settled = match result {
            Ok(_) => true,
            // Where the work runs all the same, its outcome will be recorded: nothing to give back.
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
