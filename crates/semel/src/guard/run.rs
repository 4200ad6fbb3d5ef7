//! Run: the work under its lease, in a task that outlives its caller, and then its finish.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::Instrument;

use super::answer::{Answer, Attempt, Execution, GuardError, WorkResult};
use super::detach_on_drop::Attached;
use super::lease_time::LeaseStart;
use super::operation::Guarded;
use super::wait::WorkingOn;
use crate::crash;
use crate::intent::identity::Intent;
use crate::intent::outcome::{Outcome, Verdict};
use crate::observe::names;
use crate::store::{Store, Ticket};
use crate::timeout::{at_once, within};

impl<S: Store> Guarded<S> {
    /// Runs the work under a claim. From here on the caller may leave: the work has a task of its own. `start` is when
    /// the claim was requested.
    pub(super) async fn run_claimed<F, Fut, T>(
        &self,
        intent: Intent,
        ticket: Ticket,
        start: LeaseStart,
        permit: OwnedSemaphorePermit,
        work: F,
    ) -> Result<(Answer, Option<T>), GuardError>
    where
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = (Execution, T)> + Send + 'static,
        T: Send + 'static,
    {
        // Marked before the task first runs, so that a duplicate that comes now waits for it.
        let working_on = self.of.guard.inner.waiters.working_on(ticket.id);
        let span = tracing::info_span!(names::SPAN_RUN, idempotency.operation = self.of.operation.as_str());
        let task = self.clone().run_and_finish(intent, ticket, start, working_on, permit, work);
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
        answered.await.unwrap_or(Err(GuardError::Uncertain { id: ticket.id, settles_in: None }))
    }

    /// The task that runs the work under its claim and records the outcome.
    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    fn run_and_finish<F, Fut, T>(
        self,
        intent: Intent,
        ticket: Ticket,
        start: LeaseStart,
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
            crash::point(crash::AFTER_CLAIM);
            let _running = self.of.metrics.running();
            let attempt =
                Attempt { intent: intent.clone(), number: ticket.attempt, epoch: Some(ticket.epoch) };
            crash::point(crash::BEFORE_EFFECT);
            let ran = if self.begins_too_late(&ticket, &start) {
                Err(GuardError::ClaimLost { verdict: self.unknown() })
            } else {
                let mut work = pin!(self.run_caught(work, attempt));
                // If the work is ready at once, no timer is made.
                if let Some(ran) = at_once(work.as_mut()).await {
                    ran
                } else {
                    Box::pin(self.keeping_lease(work, ticket, start)).await
                }
            };
            crash::point(crash::AFTER_EFFECT);
            let (verdict, outcome) = self.to_record(&ran);
            crash::point(crash::BEFORE_FINISH);
            let recorded = self.finish(&intent, &ticket, verdict, outcome).await;
            crash::point(crash::AFTER_FINISH);
            drop(working_on);
            let result = match ran {
                Ok((execution, given)) => {
                    let answer = self.to_answer(&intent, recorded, verdict, execution).await;
                    answer.map(|answer| (answer, Some(given)))
                }
                Err(error) => Err(error),
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
    /// a call it has sent has the whole delay to arrive; and work whose key is remembered for a while only is dropped
    /// because its next call may come too late. The lease is polled before the work: a process that was paused or
    /// suspended does not send one more call.
    async fn keeping_lease<T>(
        &self,
        mut work: impl Future<Output = Ran<T>> + Unpin,
        ticket: Ticket,
        start: LeaseStart,
    ) -> Ran<T> {
        let lost = self.keep_lease(ticket, start);
        let opaque = !self.of.policy.effect.may_rerun();
        if (opaque && self.of.lookup.is_some()) || self.of.policy.safe_for.is_some() {
            return tokio::select! {
                biased;
                () = lost => Err(GuardError::ClaimLost { verdict: self.unknown() }),
                ran = &mut work => ran,
            };
        }
        tokio::select! {
            biased;
            ran = &mut work => ran,
            () = lost => work.await,
        }
    }

    /// Runs the work with its time bounded and its panics caught, even those before its first await.
    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    pub(super) fn run_caught<F, Fut, T>(&self, work: F, attempt: Attempt) -> impl Future<Output = Ran<T>>
    where
        F: FnOnce(Attempt) -> Fut,
        Fut: Future<Output = (Execution, T)>,
    {
        async move {
            let panicked = || GuardError::Panicked { verdict: self.unknown() };
            let Ok(work) = catch_unwind(AssertUnwindSafe(|| work(attempt))) else { return Err(panicked()) };
            // Pinned here, so that the future is held once and not again in each branch that awaits it.
            let caught = pin!(AssertUnwindSafe(work).catch_unwind());
            let result = match self.of.policy.timeout {
                None => caught.await,
                Some(limit) if self.of.policy.safe_for.is_some() => match self.in_time(limit, caught).await {
                    Some(result) => result,
                    None => return Err(GuardError::TimedOut { limit, verdict: self.unknown() }),
                },
                Some(limit) => match within(limit, caught).await {
                    Some(result) => result,
                    None => return Err(GuardError::TimedOut { limit, verdict: self.unknown() }),
                },
            };
            result.map_err(|_| panicked())
        }
    }

    /// The output, or `None` when it takes longer than `limit`. The time is checked before each poll, and not only by a
    /// timer: work of a process that was paused or suspended does not send one more call.
    async fn in_time<F: Future>(&self, limit: Duration, mut work: Pin<&mut F>) -> Option<F::Output> {
        let start = self.lease_start();
        let mut timer = pin!(tokio::time::sleep(limit));
        poll_fn(|cx| {
            if timer.as_mut().poll(cx).is_ready() || self.since(&start) >= limit {
                return Poll::Ready(None);
            }
            work.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// The verdict and outcome to record.
    pub(super) fn to_record<'a, T>(&self, ran: &'a Ran<T>) -> (Verdict, Option<&'a Outcome>) {
        match ran {
            Ok((execution, _)) => (execution.result.verdict(self.of.policy.effect), Some(&execution.outcome)),
            Err(_) => (self.unknown(), None),
        }
    }

    /// The verdict on work that did not return.
    fn unknown(&self) -> Verdict {
        WorkResult::Unknown.verdict(self.of.policy.effect)
    }
}

/// What the work returned, or why it did not: it panicked, took too long, or was dropped because its claim was lost.
pub(super) type Ran<T> = Result<(Execution, T), GuardError>;
