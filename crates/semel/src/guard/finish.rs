//! Finish: records the outcome; if the store fails, in the background until its answer is known.

use std::future::Future;
use std::pin::pin;

use tracing::Instrument;

use super::answer::{Answer, Execution, GuardError};
use super::operation::Guarded;
use super::retry::Retries;
use crate::intent::identity::Intent;
use crate::intent::outcome::{Outcome, Verdict};
use crate::observe::{FinishStatus, Phase, names};
use crate::store::{ErrorKind, Finish, Finished, Store, Ticket};

/// Whether an outcome was recorded.
pub(super) enum Recorded {
    Yes,
    NotYet,
    /// Another outcome is recorded instead.
    Instead(Verdict, Outcome),
}

impl<S: Store> Guarded<S> {
    /// Records the outcome in the store, with a span; if the store fails, this is retried in the background.
    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    pub(super) fn finish<'a>(
        &'a self,
        intent: &'a Intent,
        ticket: &'a Ticket,
        verdict: Verdict,
        outcome: Option<&'a Outcome>,
    ) -> impl Future<Output = Recorded> + Send + 'a {
        async move {
            let span =
                tracing::info_span!(names::SPAN_FINISH, idempotency.operation = self.of.operation.as_str());
            let record = self.record(intent, ticket, verdict, outcome);
            if span.is_disabled() { record.await } else { Box::pin(record.instrument(span)).await }
        }
    }

    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    fn record<'a>(
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
            Ok(Some(record)) => match (record.head.state.replayed_as(), record.outcome) {
                (Some(verdict), Some(outcome)) => Recorded::Instead(verdict, outcome),
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

    pub(super) async fn finish_until_known(&self, intent: &Intent, ticket: Ticket, mut finish: Finish) {
        let mut retries = Retries::new();
        loop {
            let request = pin!(self.of.guard.inner.store.finish(ticket, finish.clone()));
            let error = match self.ask(Phase::Finish, request).await {
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
            } else if matches!(error.kind(), ErrorKind::Closed | ErrorKind::TooLarge) || !retries.in_time() {
                self.of.metrics.finalize(FinishStatus::Lost);
                tracing::error!(
                    operation = self.of.operation.as_str(),
                    intent = super::shown(intent),
                    %error,
                    "gave up recording an outcome; its intent will be uncertain"
                );
                return;
            }
            retries.pause().await;
        }
    }

    /// The answer for the caller whose work ran.
    pub(super) async fn to_answer(
        &self,
        intent: &Intent,
        recorded: Recorded,
        verdict: Verdict,
        execution: Execution,
    ) -> Result<Answer, GuardError> {
        match recorded {
            Recorded::Yes => Ok(Answer::ran(execution, verdict, true)),
            Recorded::NotYet => Ok(Answer::ran(execution, verdict, false)),
            Recorded::Instead(verdict, outcome) => self.replay_stored(intent, verdict, outcome).await,
        }
    }
}
