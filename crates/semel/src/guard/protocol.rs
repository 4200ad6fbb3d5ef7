//! The protocol on one page: claim → run → finish → replay. Each step has the file of its name.

use std::future::Future;

use futures_util::FutureExt;

use super::answer::{Answer, Attempt, Execution, GuardError};
use super::operation::Guarded;
use super::wait::{Wait, in_flight};
use crate::crash;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Intent, Owner};
use crate::intent::policy::{KeyFormat, millis};
use crate::store::{Claim, Claimed, Fate, Store};

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
            self.say_endless_key();
            crash::point(crash::BEFORE_CLAIM);
            let mut claim = Claim {
                intent: intent.clone(),
                fingerprint,
                owner: Owner::random(),
                effect: self.of.policy.effect,
                lease_ms: millis(self.of.policy.lease),
                window: self.of.policy.window(),
            };
            let mut wait = Wait::new(self.of.policy.in_flight);
            let (mut looked_up, mut lapses) = (false, 0);
            // Once another owner was seen, an outage does not mean that there is none.
            let mut other_owner = None;
            // The branches that wait are boxed: otherwise every call's future would be as large as they are.
            loop {
                let start = self.lease_start();
                let claimed = self.claim(&mut claim).await;
                match claimed {
                    Ok(claimed) if self.is_lapsed(&claimed, &claim, &start) => {
                        Box::pin(self.lapsed(&mut claim, &mut lapses)).await?;
                    }
                    Ok(Claimed::Run(ticket)) => {
                        if self.of.policy.key_format != KeyFormat::Any {
                            Box::pin(self.check_key_age_when_claimed(&mut claim, &ticket)).await?;
                        }
                        if ticket.other_recipe {
                            self.of.metrics.other_recipe();
                        }
                        return self.run_claimed(intent, ticket, start, permit, work).await;
                    }
                    Ok(Claimed::Replay(existing)) => return Ok((self.replay(existing).await?, None)),
                    Ok(Claimed::Mismatch) => return Err(GuardError::Mismatch),
                    Ok(Claimed::InFlight(existing)) => {
                        Box::pin(self.wait_for(existing, &mut wait)).await?;
                        other_owner = Some(in_flight());
                    }
                    // Its lease has expired, but its owner still runs in this process: nothing to look up yet.
                    Ok(Claimed::Uncertain(existing)) if self.is_worked_on(&intent.id()) => {
                        Box::pin(self.wait_for(existing, &mut wait)).await?;
                        other_owner = Some(in_flight());
                    }
                    Ok(Claimed::Uncertain(existing)) => {
                        Box::pin(self.look_up_once(existing, &mut looked_up)).await?;
                        other_owner = Some(GuardError::Uncertain { id: intent.id(), settles_in: None });
                    }
                    Err(error) => {
                        let runs_open = self.runs_open(&error);
                        if let Some(other_owner) = other_owner {
                            // A claim in doubt was kept for an unguarded run, which now does not happen.
                            if runs_open && error.fate() != Fate::NotApplied {
                                self.give_back_later(&claim);
                            }
                            return Err(other_owner);
                        }
                        if runs_open {
                            return Box::pin(self.run_unguarded(claim, permit, work)).await;
                        }
                        return Err(GuardError::StoreUnavailable(error));
                    }
                }
            }
        }
    }
}
