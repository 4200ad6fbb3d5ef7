//! One call of a step: bounded, its panics caught, its result as entries of the journal.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tracing::Instrument;

use super::entry::{EntryKind, NewEntry, Op, Safe, StepId};
use super::history::LOOKUP_ATTEMPT;
use super::journal::BODY_BYTES_MAX;
use super::metrics::{op_of, step_span};
use super::run::{Going, Work, entry};
use super::state::ParkReason;
use super::step::{Call, CallKeys, Calling, CallsRemote, LookedUp, StepError, StepResult};
use crate::crash::{AFTER_SAGA_CALL, point};

/// Most bytes of an error that the journal keeps.
const WHY_BYTES_MAX: usize = 1_000;

/// What a call came to.
pub(super) enum CallEnd {
    Called(StepResult<Bytes>),
    LookedUp(LookedUp<Bytes>),
}

/// A call that was made: of which step, which operation, which attempt.
pub(super) struct Made {
    pub(super) step: StepId,
    pub(super) op: Op,
    pub(super) attempt: u32,
    pub(super) end: CallEnd,
}

/// One attempt of one operation of one step.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) step: StepId,
    pub(super) op: Op,
    /// Counted from 1; of a lookup 0.
    pub(super) attempt: u32,
    pub(super) input: Bytes,
    /// How long it may take.
    pub(super) limit: Duration,
}

/// What a call is for.
pub(super) enum Purpose {
    Run,
    /// With the result of the step, if that is known.
    Undo(Option<Bytes>),
    LookUp,
}

impl<App: Send + Sync + ?Sized + 'static> Work<App> {
    /// The entry that stands in the journal before the call.
    pub(super) fn begin(&self, target: &Target, safe: Safe) -> NewEntry {
        let Target { step, op, attempt, input, .. } = target;
        let (op, attempt) = (*op, *attempt);
        let first = self.history.progress(step, op == Op::Undo).is_none();
        let input = first.then(|| input.clone());
        NewEntry { safe, input, ..entry(EntryKind::Begin, step, op, attempt, None) }
    }

    /// The call, ready to be polled. Its beginning is in the journal.
    pub(super) fn call(
        &self,
        handler: Arc<dyn CallsRemote<App>>,
        target: Target,
        purpose: Purpose,
    ) -> Calling<Made> {
        let call = self.prepare(&target);
        let (span, metrics) = (step_span(&self.record, &target), self.engine.metrics.clone());
        let (saga, of) = (self.record.name.clone(), op_of(&target));
        let Target { step, op, attempt, limit, .. } = target;
        let outcome = span.clone();
        let call = async move {
            let end = match purpose {
                Purpose::LookUp => {
                    let asked = AssertUnwindSafe(handler.look_up(call)).catch_unwind();
                    let found = tokio::time::timeout(limit, asked).await;
                    CallEnd::LookedUp(found.ok().and_then(Result::ok).unwrap_or(LookedUp::Unknown))
                }
                Purpose::Run => CallEnd::Called(bounded(limit, handler.run(call)).await),
                Purpose::Undo(result) => CallEnd::Called(bounded(limit, handler.undo(call, result)).await),
            };
            point(AFTER_SAGA_CALL);
            outcome.record("outcome", end.as_str());
            metrics.step(&saga, &step.name, of, end.as_str());
            Made { step, op, attempt, end }
        };
        Box::pin(call.instrument(span))
    }

    /// What a step gets: its input, its keys.
    pub(super) fn prepare(&self, target: &Target) -> Call<App> {
        let Target { step, op, attempt, input, .. } = target;
        let intent = self.record.intent.clone();
        // With the saga's number: a saga that begins anew after an undone one must not be answered with what was undone.
        let forward = intent.child(&format!("{}/{step}", self.number.0));
        let key = match op {
            Op::Undo => intent.child(&format!("{}/{step}/undo", self.number.0)),
            Op::Forward | Op::Pivot => forward.clone(),
        };
        let keys = CallKeys { intent, key, forward };
        Call { app: Arc::clone(&self.engine.app), keys, attempt: *attempt, input: input.clone() }
    }

    /// Counts an attempt that is not made because the participant's key may protect it no longer.
    pub(super) fn count_expired(&self, step: &StepId, undo: bool) {
        let Some(handler) = self.definition.step(&step.name) else { return };
        let progress = self.history.progress(step, undo);
        if progress.is_some_and(|progress| progress.has_expired(handler.spec(), undo, self.now())) {
            self.engine.metrics.guard_expired(&self.record.name, &step.name);
        }
    }

    /// Notes what the call came to.
    pub(super) async fn settle(&mut self, made: Made) -> Going<()> {
        let Made { step, op, attempt, end } = made;
        let (kind, attempt, body) = match end {
            CallEnd::Called(Ok(result)) | CallEnd::LookedUp(LookedUp::Applied(result))
                if result.len() > BODY_BYTES_MAX =>
            {
                let why =
                    format!("the result of {step} has {} bytes, at most {BODY_BYTES_MAX}", result.len());
                self.note(entry(EntryKind::Unknown, &step, op, attempt, Some(text(&why))));
                return Err(self.park(ParkReason::TooLarge, None, &why).await);
            }
            CallEnd::Called(Ok(result)) => (EntryKind::Done, attempt, Some(result)),
            CallEnd::Called(Err(StepError::Refused(why))) => (EntryKind::Refused, attempt, Some(text(&why))),
            CallEnd::Called(Err(StepError::NotApplied(why))) => {
                (EntryKind::Failed, attempt, Some(text(&why)))
            }
            CallEnd::Called(Err(StepError::Unknown(why))) => (EntryKind::Unknown, attempt, Some(text(&why))),
            CallEnd::LookedUp(LookedUp::Applied(result)) => {
                (EntryKind::Decided, LOOKUP_ATTEMPT, Some(result))
            }
            CallEnd::LookedUp(LookedUp::NotApplied) => (EntryKind::Decided, LOOKUP_ATTEMPT, None),
            CallEnd::LookedUp(LookedUp::Unknown) => {
                let why = "a lookup did not find out what happened";
                (EntryKind::Unknown, LOOKUP_ATTEMPT, Some(text(why)))
            }
        };
        self.note(entry(kind, &step, op, attempt, body));
        Ok(())
    }
}

async fn bounded(limit: Duration, call: Calling<StepResult<Bytes>>) -> StepResult<Bytes> {
    match tokio::time::timeout(limit, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(StepError::unknown("the step panicked")),
        Err(_) => Err(StepError::unknown(format!("no answer within {limit:?}"))),
    }
}

/// The beginning of an error's text.
pub(super) fn text(why: &str) -> Bytes {
    let mut end = why.len().min(WHY_BYTES_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    Bytes::copy_from_slice(&why.as_bytes()[..end])
}
