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
use super::lease_time::LeaseStart;
use super::lookup::LookedUp;
use super::operation::Guarded;
use super::retry::{ClaimInDoubt, ClaimResult};
use super::wait::{POLL_BACKOFF, WorkingOn};
use crate::crash;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Intent, Owner};
use crate::intent::outcome::{Body, Outcome, Verdict};
use crate::intent::policy::{Effect, InFlight, KeyAge, KeyFormat, StoreDown, StoreTime, millis};
use crate::intent::state::State;
use crate::observe::{ClaimStatus, Phase, names};
use crate::store::{Claim, Claimed, ErrorKind, Existing, Fate, Store, StoreError, Ticket};
use crate::timeout::{at_once, within};

/// When a caller that got "in progress" should retry.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How many claims of one call may expire before the store has answered them.
const LAPSES_MAX: u32 = 3;

fn too_slow(lease: Duration) -> StoreError {
    let message =
        format!("the store took longer than the lease of {lease:?} to answer a claim; set a longer lease");
    StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message)
}

impl<S: Store> Guarded<S> {
    /// Runs `work` once for this intent, or replays the outcome of an earlier run.
    ///
    /// - Once claimed, the work runs to its end and its outcome is recorded, even if the caller leaves: dropping the
    ///   returned future cancels nothing.
    /// - The same intent with another fingerprint is refused before anything else is checked.
    /// - A panic or a timeout leaves an opaque effect uncertain; a protected one may run again.
    /// - If the outcome cannot be recorded, the caller still gets the answer, with [`Answer::stored`] false, and
    ///   recording is retried.
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

    /// As [`run`](Self::run), for work that returns something to this caller beyond what is recorded: `None` if nothing
    /// ran for this call.
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
            // Once another owner was seen, an outage does not mean that there is none.
            let mut met = None;
            // The branches that wait are boxed: otherwise every call's future would be as large as they are.
            loop {
                let start = self.lease_start();
                let (claimed, given_back) = match self.claim(&claim).await {
                    Ok(ClaimResult { claimed, given_back }) => (Ok(claimed), given_back),
                    Err(error) => (Err(error), false),
                };
                if given_back {
                    // The earlier tries are being given back under the old owner. Work that ran under it, too, would
                    // have its claim released while it runs.
                    claim.owner = Owner::random();
                }
                match claimed {
                    Ok(Claimed::Run(ticket)) if self.since(&start) < self.of.policy.lease => {
                        if self.of.policy.key_format != KeyFormat::Any {
                            Box::pin(self.check_key_age_when_claimed(&claim, &ticket)).await?;
                        }
                        if ticket.other_recipe {
                            self.of.metrics.other_recipe();
                        }
                        return self.run_to_the_end(intent, OwnClaim { ticket, start }, permit, work).await;
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
                    // Its lease has expired, but its owner still runs in this process: nothing to look up yet.
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
                            LookedUp::Unresolved(why) => {
                                return Err(GuardError::Uncertain { id, settles_in: why.settles_in() });
                            }
                        }
                    }
                    Err(error) => match met {
                        Some(met) => {
                            // A claim in doubt was kept for an unguarded run, which now does not happen.
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

    /// Whether the work runs although the store failed: only while the store is unavailable. A store that answers
    /// "full" or "corrupt" says so to every retry, and each of them would run.
    pub(super) fn runs_open(&self, error: &StoreError) -> bool {
        self.of.policy.store_down == StoreDown::Open
            && matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy)
    }

    /// The store answered our claim only after its lease had expired. Nothing ran under it, and nothing will, because
    /// another caller may have decided it meanwhile. It is given back and claimed again under a new owner.
    async fn lapsed(&self, claim: &mut Claim, lapses: &mut u32) -> Result<(), GuardError> {
        self.give_back_lapsed(claim).await;
        *lapses += 1;
        if *lapses == LAPSES_MAX {
            return Err(GuardError::StoreUnavailable(too_slow(self.of.policy.lease)));
        }
        claim.owner = Owner::random();
        Ok(())
    }

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

    /// Claims the intent, with metrics and a span.
    async fn claim(&self, claim: &Claim) -> Result<ClaimResult, StoreError> {
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
        let (status, existing) = match result.as_ref().map(|result| &result.claimed) {
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
        // Decided without an outcome, or the store lost it: done, body not kept. Never run again.
        let outcome = record.outcome.clone().unwrap_or_else(Outcome::unknown);
        match outcome.body {
            Body::Kept(_) | Body::NotKept => Ok(Answer::replay(verdict, outcome)),
            // Boxed: otherwise every call's future would be larger for what few need.
            _ => Box::pin(self.replay_stored(&record.intent, verdict, outcome)).await,
        }
    }

    /// Returns when another claim makes sense, or with "in progress" when this caller may wait no longer.
    async fn wait_for(&self, existing: Existing, wait: &mut Wait) -> Result<(), GuardError> {
        let id = existing.record.intent.id();
        let Some(deadline) = wait.deadline.filter(|deadline| Instant::now() < *deadline) else {
            self.of.metrics.in_progress();
            return Err(GuardError::InFlight { retry_after: RETRY_AFTER });
        };
        let end = self.of.guard.inner.waiters.end_of(&id);
        if end.is_none() && !wait.claimed_again {
            // It may have ended here between our claim and this check: claim once more before polling.
            wait.claimed_again = true;
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

    /// Another process has it: polls, reading only, until the record has changed or time is up.
    async fn poll_until_changed(&self, existing: &Existing, deadline: Instant, wait: &mut Wait) {
        let id = existing.record.intent.id();
        let seen = existing.record.head;
        while Instant::now() < deadline {
            wait.pause = POLL_BACKOFF.next(wait.pause);
            tokio::time::sleep_until((Instant::now() + POLL_BACKOFF.jittered(wait.pause)).min(deadline))
                .await;
            match self.ask(Phase::Read, pin!(self.of.guard.inner.store.get(id))).await {
                // A renewal changes the lease, nothing else.
                Ok(Some(record))
                    if record.head.state == State::InProgress && record.head.epoch == seen.epoch => {}
                Ok(_) => return,
                Err(_) => {}
            }
        }
    }

    /// From here on the caller may leave: the work has a task of its own.
    async fn run_to_the_end<F, Fut, T>(
        &self,
        intent: Intent,
        own: OwnClaim,
        permit: OwnedSemaphorePermit,
        work: F,
    ) -> Result<(Answer, Option<T>), GuardError>
    where
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = (Execution, T)> + Send + 'static,
        T: Send + 'static,
    {
        // Marked before the task first runs, so that a duplicate that comes now waits for it.
        let working_on = self.of.guard.inner.waiters.working_on(own.ticket.id);
        let span = tracing::info_span!(names::SPAN_RUN, idempotency.operation = self.of.operation.as_str());
        let id = intent.id();
        let task = self.clone().run_claimed(intent, own, working_on, permit, work);
        // Even a disabled span costs a little at every poll under it.
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
        // The task is only dropped with its runtime; what it had done by then is not known here.
        answered.await.unwrap_or(Err(GuardError::Uncertain { id, settles_in: None }))
    }

    /// The task that runs the work under its claim and records the outcome.
    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    fn run_claimed<F, Fut, T>(
        self,
        intent: Intent,
        own: OwnClaim,
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
            let ticket = &own.ticket;
            crash::point(crash::AFTER_CLAIM);
            let _running = self.of.metrics.running();
            let attempt =
                Attempt { intent: intent.clone(), number: ticket.attempt, epoch: Some(ticket.epoch) };
            crash::point(crash::BEFORE_EFFECT);
            let ran = {
                let mut work = pin!(run_caught(work, attempt, self.of.policy.timeout));
                // If the work is ready at once, no timer is made.
                if let Some(ran) = at_once(work.as_mut()).await {
                    ran
                } else {
                    Box::pin(self.keeping_lease(work, &own)).await
                }
            };
            crash::point(crash::AFTER_EFFECT);
            let (verdict, outcome) = ran.to_record(self.of.policy.effect);
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
                    let answer = self.to_answer(&intent, recorded, verdict, execution).await;
                    answer.map(|answer| (answer, Some(given)))
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
    /// A lost claim does not end the work: its effects cannot be undone, and its outcome may still be the first to
    /// arrive. But where a lookup may say "not applied" after the settle delay, opaque work is dropped at once, so that
    /// a call it has sent has the whole delay to arrive. The lease is polled before the work: a process that was paused
    /// or suspended does not send one more call.
    async fn keeping_lease<T>(
        &self,
        mut work: impl Future<Output = Ran<T>> + Unpin,
        own: &OwnClaim,
    ) -> Ran<T> {
        let lost = self.keep_lease(own.ticket, own.start);
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

    /// The store is down and the policy is open (fail-open): the work runs without a claim, and the answer says so.
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
            "running unguarded: the store is down and the policy is open; a duplicate may run too"
        );
        let (answer, answered) = oneshot::channel();
        let id = intent.id();
        let this = self.clone();
        self.of.guard.spawn(async move {
            let ran =
                run_caught(work, Attempt { intent, number: 1, epoch: None }, this.of.policy.timeout).await;
            let (verdict, outcome) = ran.to_record(this.of.policy.effect);
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

struct Wait {
    deadline: Option<Instant>,
    claimed_again: bool,
    /// The last pause between two polls.
    pause: Duration,
}

impl Wait {
    fn new(in_flight: InFlight) -> Self {
        let deadline = match in_flight {
            InFlight::Reject => None,
            InFlight::Wait(wait) => Some(Instant::now() + wait),
        };
        Self { deadline, claimed_again: false, pause: Duration::ZERO }
    }
}

/// A claim that is ours, and when it was requested.
#[derive(Clone, Copy)]
struct OwnClaim {
    ticket: Ticket,
    start: LeaseStart,
}

enum Ran<T> {
    Returned(Execution, T),
    Panicked,
    TimedOut(Duration),
    /// The work was dropped because its claim was lost.
    ClaimLost,
}

impl<T> Ran<T> {
    /// The verdict and outcome to record.
    fn to_record(&self, effect: Effect) -> (Verdict, Option<&Outcome>) {
        match self {
            Self::Returned(execution, _) => (execution.ended.verdict(effect), Some(&execution.outcome)),
            Self::Panicked | Self::TimedOut(_) | Self::ClaimLost => {
                (WorkResult::Unknown.verdict(effect), None)
            }
        }
    }
}

/// Runs the work with its time bounded and its panics caught, even those before its first await.
#[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
fn run_caught<F, Fut, T>(work: F, attempt: Attempt, timeout: Option<Duration>) -> impl Future<Output = Ran<T>>
where
    F: FnOnce(Attempt) -> Fut,
    Fut: Future<Output = (Execution, T)>,
{
    async move {
        let Ok(work) = catch_unwind(AssertUnwindSafe(|| work(attempt))) else { return Ran::Panicked };
        // Pinned here, so that the future is held once and not again in each branch that awaits it.
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
