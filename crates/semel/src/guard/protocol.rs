//! The protocol: claim → run → finish → replay.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;
use tracing::Instrument;

use super::answer::{Answer, Attempt, Execution, GuardError, WorkResult};
use super::detach_on_drop::Attached;
use super::lease_time::Begun;
use super::lookup::LookedUp;
use super::operation::Guarded;
use super::retry::{Asked, ClaimInDoubt};
use super::timeout::{at_once, within};
use super::wait::{PollBackoff, WorkingOn};
use crate::crash;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Intent, Owner};
use crate::intent::outcome::{Body, Outcome, Verdict};
use crate::intent::policy::{Effect, InFlight, KeyAge, KeyFormat, StoreDown, StoreTime, millis};
use crate::intent::state::State;
use crate::observe::{ClaimStatus, Phase, names};
use crate::store::{Claim, Claimed, ErrorKind, Existing, Fate, Store, StoreError, Ticket};

/// When a caller told "in progress" had better ask again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How many times a call asks again because the answer to its claim took longer than the lease.
const LAPSES_MAX: u32 = 3;

fn too_slow(lease: Duration) -> StoreError {
    let message =
        format!("the store took longer than the lease of {lease:?} to answer a claim; give it a longer one");
    StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message)
}

impl<S: Store> Guarded<S> {
    /// Runs `work` once for this intent, or gives what an earlier run ended in.
    ///
    /// - Once claimed, the work runs to its end and its outcome is recorded, also when the caller goes away:
    ///   dropping the returned future cancels nothing.
    /// - The same intent with another fingerprint is refused before anything else is looked at.
    /// - A panic or a timeout leaves an opaque effect uncertain; a protected one may run again.
    /// - If the outcome cannot be recorded the caller gets the true answer, flagged, and recording goes on.
    pub async fn run<F, Fut>(
        &self,
        intent: Intent,
        fingerprint: Fingerprint,
        work: F,
    ) -> Result<Answer, GuardError>
    where
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Execution> + Send + 'static,
    {
        let work = move |attempt| work(attempt).map(|execution| (execution, ()));
        self.run_with(intent, fingerprint, work).await.map(|(answer, _)| answer)
    }

    /// As [`run`](Self::run), for work that has something for this caller beside what is recorded. There is none
    /// where nothing ran for it.
    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    pub(crate) fn run_with<F, Fut, T>(
        &self,
        intent: Intent,
        fingerprint: Fingerprint,
        work: F,
    ) -> impl Future<Output = Result<(Answer, Option<T>), GuardError>> + Send
    where
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = (Execution, T)> + Send + 'static,
        T: Send + 'static,
    {
        async move {
            let permit = self.of.guard.inner.tracker.enter()?;
            if self.of.policy.key_format != KeyFormat::Any {
                Box::pin(self.check_key_age(&intent)).await?;
            }
            crash::point(crash::BEFORE_CLAIM);
            let mut claim = Claim {
                intent: intent.clone(),
                fingerprint,
                owner: Owner::random(),
                effect: self.of.policy.effect,
                lease_ms: millis(self.of.policy.lease),
            };
            let mut wait = Wait::new(self.of.policy.in_flight);
            let (mut looked_up, mut lapses) = (false, 0);
            // Once somebody was seen at it, an outage does not make it nobody.
            let mut met = None;
            // The ways that wait are boxed: else every call would carry the room they need.
            loop {
                let asked = self.begin();
                let (claimed, given_back) = match self.claim(&claim).await {
                    Ok(Asked { claimed, given_back }) => (Ok(claimed), given_back),
                    Err(error) => (Err(error), false),
                };
                if given_back {
                    // What becomes of the earlier tries is given back under their owner. Whoever ran under it too
                    // would have its claim freed while it runs.
                    claim.owner = Owner::random();
                }
                match claimed {
                    Ok(Claimed::Run(ticket)) if self.since(&asked) < self.of.policy.lease => {
                        if self.of.policy.key_format != KeyFormat::Any {
                            Box::pin(self.check_key_age_when_claimed(&claim, &ticket)).await?;
                        }
                        if ticket.other_recipe {
                            self.of.metrics.other_recipe();
                        }
                        return self.run_to_the_end(intent, Held { ticket, asked }, permit, work).await;
                    }
                    Ok(Claimed::Run(_)) => Box::pin(self.lapsed(&mut claim, &mut lapses)).await?,
                    Ok(Claimed::Uncertain(existing)) if existing.record.head.owner == claim.owner => {
                        Box::pin(self.lapsed(&mut claim, &mut lapses)).await?;
                    }
                    Ok(Claimed::Mismatch) => return Err(GuardError::Mismatch),
                    Ok(Claimed::Replay(existing)) => return Ok((self.replay(existing).await?, None)),
                    Ok(Claimed::InFlight(existing)) => {
                        Box::pin(self.wait_for(existing, &mut wait)).await?;
                        met = Some(GuardError::InFlight { retry_after: RETRY_AFTER });
                    }
                    // Its lease ran out, but its owner lives, in this very process: no time to look anything up.
                    Ok(Claimed::Uncertain(existing)) if self.is_worked_on(&intent.id()) => {
                        Box::pin(self.wait_for(existing, &mut wait)).await?;
                        met = Some(GuardError::InFlight { retry_after: RETRY_AFTER });
                    }
                    Ok(Claimed::Uncertain(existing)) => {
                        let id = intent.id();
                        met = Some(GuardError::Uncertain { id, settles_in: None });
                        if looked_up {
                            return Err(GuardError::Uncertain { id, settles_in: None });
                        }
                        let span = tracing::info_span!(
                            names::SPAN_LOOKUP,
                            idempotency.operation = self.of.operation.as_str()
                        );
                        match Box::pin(self.look_up(existing).instrument(span)).await {
                            LookedUp::Applied | LookedUp::NotApplied | LookedUp::Overtaken => {
                                looked_up = true
                            }
                            LookedUp::Held(held) => {
                                return Err(GuardError::Uncertain { id, settles_in: held.settles_in() });
                            }
                        }
                    }
                    Err(error) => match met {
                        Some(met) => {
                            // A claim in doubt was kept for the unguarded run that does not come.
                            if self.runs_open(&error) && error.fate() != Fate::NotApplied {
                                self.give_back_later(&claim);
                            }
                            return Err(met);
                        }
                        None if self.runs_open(&error) => {
                            return Box::pin(self.run_unguarded(claim, permit, work)).await;
                        }
                        None => return Err(GuardError::StoreUnavailable(error)),
                    },
                }
            }
        }
    }

    /// Whether the work runs although the store failed: only while it cannot be asked. A store that answers
    /// "full" or "corrupt" will say so to every retry, and each of them would run.
    pub(super) fn runs_open(&self, error: &StoreError) -> bool {
        self.of.policy.store_down == StoreDown::Open
            && matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy)
    }

    /// Our own claim, whose answer took longer than its lease: nothing ran under it, and nothing will, because somebody
    /// may have decided about it meanwhile. It is given back and asked for anew.
    async fn lapsed(&self, claim: &mut Claim, lapses: &mut u32) -> Result<(), GuardError> {
        self.give_back_lapsed(claim).await;
        *lapses += 1;
        if *lapses == LAPSES_MAX {
            return Err(GuardError::StoreUnavailable(too_slow(self.of.policy.lease)));
        }
        claim.owner = Owner::random();
        Ok(())
    }

    /// Refuses a key whose age speaks against it. Gives how long that stays so, where it has an end.
    pub(crate) async fn check_key_age(&self, intent: &Intent) -> Result<Option<Duration>, GuardError> {
        let policy = &self.of.policy;
        match self.ask(Phase::Read, pin!(self.of.guard.inner.store.now())).await {
            Ok(now) => {
                self.judge_key_age(intent, now)?;
                let fine_ms = policy.key_format.fine_for_ms(intent.key(), policy.retention, now);
                Ok(fine_ms.map(Duration::from_millis))
            }
            // The claim will fail too, and say what the policy makes of it.
            Err(error) if self.runs_open(&error) => Ok(None),
            Err(error) => Err(GuardError::StoreUnavailable(error)),
        }
    }

    /// Once more by the time at which it was claimed: while a caller waits and asks again, the outcome of an earlier
    /// run may be forgotten.
    async fn check_key_age_when_claimed(&self, claim: &Claim, ticket: &Ticket) -> Result<(), GuardError> {
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

    /// Asks for the claim, counted and traced.
    async fn claim(&self, claim: &Claim) -> Result<Asked, StoreError> {
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
        let doubt = ClaimInDoubt::new(self, claim);
        let known = self.claim_until_known(claim);
        let result =
            if span.is_disabled() { known.await } else { Box::pin(known.instrument(span.clone())).await };
        doubt.settle(&result);
        let (status, existing) = match result.as_ref().map(|asked| &asked.claimed) {
            Ok(Claimed::Run(_)) => (ClaimStatus::Run, None),
            Ok(Claimed::Mismatch) => (ClaimStatus::Mismatch, None),
            Ok(Claimed::InFlight(existing)) => (ClaimStatus::InFlight, Some(existing)),
            Ok(Claimed::Replay(existing)) => (ClaimStatus::Replay, Some(existing)),
            Ok(Claimed::Uncertain(existing)) => (ClaimStatus::Uncertain, Some(existing)),
            Err(_) => (ClaimStatus::Error, None),
        };
        self.of.metrics.claim(status);
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
        result
    }

    async fn replay(&self, existing: Existing) -> Result<Answer, GuardError> {
        self.of.metrics.replay();
        let record = existing.record;
        let verdict =
            if record.head.state == State::FailedFinal { Verdict::FailedFinal } else { Verdict::Completed };
        // Decided without an outcome, or by a store that lost it: done, body not kept. Never run again.
        let outcome = record.outcome.clone().unwrap_or_else(Outcome::unknown);
        match outcome.body {
            Body::Kept(_) | Body::NotKept => Ok(Answer::replay(verdict, outcome)),
            // Boxed: else every call would carry the room for what few need.
            _ => Box::pin(self.given_again(&record.intent, verdict, outcome)).await,
        }
    }

    /// Returns when asking again makes sense, or with "in progress" when this caller may wait no longer.
    async fn wait_for(&self, existing: Existing, wait: &mut Wait) -> Result<(), GuardError> {
        let id = existing.record.intent.id();
        let Some(deadline) = wait.deadline.filter(|deadline| Instant::now() < *deadline) else {
            self.of.metrics.in_progress();
            return Err(GuardError::InFlight { retry_after: RETRY_AFTER });
        };
        let end = self.of.guard.inner.waiters.end_of(&id);
        if end.is_none() && !wait.asked_again {
            // It may have ended here between our claim and our look: ask once more before pausing.
            wait.asked_again = true;
            return Ok(());
        }
        match end {
            Some(end) => {
                let _ = tokio::time::timeout_at(deadline, end).await;
            }
            None => self.poll_until_changed(&existing, deadline, wait).await,
        }
        Ok(())
    }

    /// Somebody else's process has it: look (reading only) until it has changed or time is up.
    async fn poll_until_changed(&self, existing: &Existing, deadline: Instant, wait: &mut Wait) {
        let id = existing.record.intent.id();
        let seen = existing.record.head;
        while Instant::now() < deadline {
            tokio::time::sleep_until((Instant::now() + wait.pauses.next()).min(deadline)).await;
            match self.ask(Phase::Read, pin!(self.of.guard.inner.store.get(id))).await {
                // A renewal moves the lease, nothing else.
                Ok(Some(record))
                    if record.head.state == State::InProgress && record.head.epoch == seen.epoch => {}
                Ok(_) => return,
                Err(_) => {}
            }
        }
    }

    /// From here on the caller may go away: the work is a task of its own.
    async fn run_to_the_end<F, Fut, T>(
        &self,
        intent: Intent,
        held: Held,
        permit: OwnedSemaphorePermit,
        work: F,
    ) -> Result<(Answer, Option<T>), GuardError>
    where
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = (Execution, T)> + Send + 'static,
        T: Send + 'static,
    {
        // Marked before the task first runs: a duplicate that comes now shall find whom to wait for.
        let working_on = self.of.guard.inner.waiters.working_on(held.ticket.id);
        let span = tracing::info_span!(names::SPAN_RUN, idempotency.operation = self.of.operation.as_str());
        let id = intent.id();
        let task = self.clone().run_claimed(intent, held, working_on, permit, work);
        // Where nobody listens a span costs a little all the same, each time something is polled under it.
        let task: Pin<Box<dyn Future<Output = _> + Send>> =
            if span.is_disabled() { Box::pin(task) } else { Box::pin(task.instrument(span)) };
        if self.of.attached {
            return Attached::new(task, Arc::clone(&self.of.guard.inner.spawner)).await;
        }
        let (answer, answered) = oneshot::channel();
        self.of.guard.spawn(async move {
            // The caller may be gone; the outcome is recorded.
            let _ = answer.send(task.await);
        });
        // The task is only ever dropped with its runtime; what it had done then is not known here.
        answered.await.unwrap_or(Err(GuardError::Uncertain { id, settles_in: None }))
    }

    /// The task itself. A function that gives a block, because an async function holds its arguments twice.
    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    fn run_claimed<F, Fut, T>(
        self,
        intent: Intent,
        held: Held,
        working_on: WorkingOn,
        permit: OwnedSemaphorePermit,
        work: F,
    ) -> impl Future<Output = Result<(Answer, Option<T>), GuardError>> + Send + 'static
    where
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = (Execution, T)> + Send + 'static,
        T: Send + 'static,
    {
        async move {
            let ticket = &held.ticket;
            crash::point(crash::AFTER_CLAIM);
            let _running = self.of.metrics.running();
            let attempt =
                Attempt { intent: intent.clone(), number: ticket.attempt, epoch: Some(ticket.epoch) };
            crash::point(crash::BEFORE_EFFECT);
            let ran = {
                let mut work = pin!(run_caught(work, attempt, self.of.policy.timeout));
                // If the work is ready at once, no timer is ever made.
                if let Some(ran) = at_once(work.as_mut()).await {
                    ran
                } else {
                    Box::pin(self.keeping_lease(work, &held)).await
                }
            };
            crash::point(crash::AFTER_EFFECT);
            let (verdict, outcome) = ran.told(self.of.policy.effect);
            crash::point(crash::BEFORE_FINISH);
            let span =
                tracing::info_span!(names::SPAN_FINISH, idempotency.operation = self.of.operation.as_str());
            let finish = self.finish(&intent, ticket, verdict, outcome);
            let recorded =
                if span.is_disabled() { finish.await } else { Box::pin(finish.instrument(span)).await };
            crash::point(crash::AFTER_FINISH);
            drop(working_on);
            let result = match ran {
                Ran::Returned(execution, given) => {
                    self.told(&intent, recorded, verdict, execution).await.map(|answer| (answer, Some(given)))
                }
                Ran::Panicked => Err(GuardError::Panicked { verdict }),
                Ran::TimedOut(limit) => Err(GuardError::TimedOut { limit, verdict }),
                Ran::ClaimLost => Err(GuardError::ClaimLost { verdict }),
            };
            crash::point(crash::BEFORE_ANSWER);
            drop(permit);
            result
        }
    }

    /// Runs the work to its end and renews its lease meanwhile.
    ///
    /// A claim that is lost does not end the work: what it does cannot be taken back, and its outcome may still be the
    /// first to arrive. But where a lookup may say "not applied" once the settle delay is over, opaque work is dropped
    /// at once, so that the whole delay is there for a call it has sent. The lease is looked at first: a process that
    /// stood still, or whose machine slept, does not send one more.
    async fn keeping_lease<T>(&self, mut work: impl Future<Output = Ran<T>> + Unpin, held: &Held) -> Ran<T> {
        let lost = self.keep_lease(held.ticket, held.asked);
        if self.of.lookup.is_some() && !self.of.policy.effect.may_rerun() {
            return tokio::select! {
                biased;
                () = lost => Ran::ClaimLost,
                ran = &mut work => ran,
            };
        }
        tokio::select! {
            biased;
            ran = &mut work => ran,
            () = lost => work.await,
        }
    }

    /// The store is down and the policy is open: the work runs, and the answer says that nothing guards it.
    async fn run_unguarded<F, Fut, T>(
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
            "running unguarded: the store is down"
        );
        let (answer, answered) = oneshot::channel();
        let id = intent.id();
        let this = self.clone();
        self.of.guard.spawn(async move {
            let ran =
                run_caught(work, Attempt { intent, number: 1, epoch: None }, this.of.policy.timeout).await;
            let (verdict, outcome) = ran.told(this.of.policy.effect);
            this.record_later(claim, verdict, outcome.cloned());
            drop(permit);
            let _ = answer.send(match ran {
                Ran::Returned(Execution { ended, outcome }, given) => {
                    let (replayed, stored, guarded) = (false, false, false);
                    Ok((Answer { outcome, verdict, ended, replayed, stored, guarded }, Some(given)))
                }
                Ran::Panicked => Err(GuardError::Panicked { verdict }),
                Ran::TimedOut(limit) => Err(GuardError::TimedOut { limit, verdict }),
                Ran::ClaimLost => Err(GuardError::ClaimLost { verdict }),
            });
        });
        answered.await.unwrap_or(Err(GuardError::Uncertain { id, settles_in: None }))
    }
}

/// How far a waiting caller has come.
struct Wait {
    deadline: Option<Instant>,
    asked_again: bool,
    pauses: PollBackoff,
}

impl Wait {
    fn new(in_flight: InFlight) -> Self {
        let deadline = match in_flight {
            InFlight::Reject => None,
            InFlight::Wait(wait) => Some(Instant::now() + wait),
        };
        Self { deadline, asked_again: false, pauses: PollBackoff::new() }
    }
}

/// A claim that is ours, and when it was asked for.
#[derive(Clone, Copy)]
struct Held {
    ticket: Ticket,
    asked: Begun,
}

enum Ran<T> {
    Returned(Execution, T),
    Panicked,
    TimedOut(Duration),
    /// It was dropped because its claim was lost.
    ClaimLost,
}

impl<T> Ran<T> {
    /// What is recorded of it.
    fn told(&self, effect: Effect) -> (Verdict, Option<&Outcome>) {
        match self {
            Self::Returned(execution, _) => (execution.ended.verdict(effect), Some(&execution.outcome)),
            Self::Panicked | Self::TimedOut(_) | Self::ClaimLost => {
                (WorkResult::Unknown.verdict(effect), None)
            }
        }
    }
}

/// The work, with its panics caught (also those before its first await) and its time bounded.
#[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
fn run_caught<F, Fut, T>(work: F, attempt: Attempt, timeout: Option<Duration>) -> impl Future<Output = Ran<T>>
where
    F: FnOnce(Attempt) -> Fut,
    Fut: Future<Output = (Execution, T)>,
{
    async move {
        let Ok(work) = catch_unwind(AssertUnwindSafe(|| work(attempt))) else { return Ran::Panicked };
        // Pinned here, so that it is there once and not again in each way of waiting for it.
        let caught = pin!(AssertUnwindSafe(work).catch_unwind());
        let result = match timeout {
            None => caught.await,
            Some(limit) => match within(limit, caught).await {
                Some(result) => result,
                None => return Ran::TimedOut(limit),
            },
        };
        result.map_or(Ran::Panicked, |(execution, given)| Ran::Returned(execution, given))
    }
}
