//! An atomic step: one transaction with its own entry, and what to do when its answer is lost.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use tracing::Instrument;

use super::call::{Target, text};
use super::entry::{EntryKind, NewEntry, Op};
use super::history::Known;
use super::journal::{AtomicEnd, AtomicWork, BODY_BYTES_MAX, SagaChange};
use super::metrics::{op_of, step_span};
use super::run::{Going, Left, Stop, Work, entry};
use super::state::RowEvent;
use super::step::{Call, CallsAtomic, StepError, StepResult};
use super::step_tx::StepTx;
use crate::crash::{AFTER_SAGA_ATOMIC, BEFORE_SAGA_ATOMIC, point};

/// An attempt of an atomic step, as the journal runs it.
struct Attempt<App: ?Sized> {
    step: Arc<dyn CallsAtomic<App>>,
    call: Call<App>,
    /// The result of the step that is undone.
    undo: Option<Bytes>,
    is_undo: bool,
}

impl<App: Send + Sync + ?Sized + 'static> AtomicWork for Attempt<App> {
    fn run<'t>(
        &'t self,
        tx: &'t mut StepTx<'_>,
    ) -> Pin<Box<dyn Future<Output = StepResult<Bytes>> + Send + 't>> {
        Box::pin(async move {
            let work = match (&self.undo, self.is_undo) {
                (Some(result), _) => self.step.undo(tx, &self.call, result),
                (None, false) => self.step.run(tx, &self.call),
                // It was another kind of step when it was begun.
                (None, true) => {
                    return Err(StepError::refused(
                        "it is not known whether the step happened; find out and resolve it",
                    ));
                }
            };
            match AssertUnwindSafe(work).catch_unwind().await {
                Ok(Ok(result)) if result.len() > BODY_BYTES_MAX => Err(StepError::refused(format!(
                    "its result has {} bytes, at most {BODY_BYTES_MAX}",
                    result.len()
                ))),
                Ok(result) => result,
                Err(_) => Err(StepError::not_applied("the step panicked")),
            }
        })
    }
}

impl<App: Send + Sync + ?Sized + 'static> Work<App> {
    /// One attempt of an atomic step, or with the step's result of its undo. After it the history has what came of it.
    pub(super) async fn attempt_atomic(
        &mut self,
        handler: Arc<dyn CallsAtomic<App>>,
        target: Target,
        undo: Option<Bytes>,
    ) -> Going<()> {
        let call = self.prepare(&target);
        let (span, of) = (step_span(&self.record, &target), op_of(&target));
        let Target { step, op, attempt, input, limit } = target;
        let step = &step;
        self.lease_for(limit).await?;
        let first = self.history.progress(step, op == Op::Undo).is_none();
        let mut done = entry(EntryKind::Done, step, op, attempt, None);
        done.input = first.then_some(input);
        let entries = std::mem::take(&mut self.pending);
        let from_seq = self.history.next_seq() - entries.len() as u32;
        let heeds_cancel = op == Op::Pivot && self.may_still_be_undone();
        let event = RowEvent::Append { epoch: self.epoch, undoing: self.is_undoing(), heeds_cancel };
        let change = SagaChange::new(event, from_seq, entries.clone());
        let work: Arc<dyn AtomicWork> =
            Arc::new(Attempt { step: handler, call, undo, is_undo: op == Op::Undo });
        point(BEFORE_SAGA_ATOMIC);
        let asked = self.engine.atomic(self.number, change, done.clone(), work, limit);
        let end = asked.instrument(span.clone()).await;
        let outcome = match &end {
            Some(AtomicEnd::Done { .. }) => "done",
            Some(AtomicEnd::Failed(error)) => error.as_str(),
            Some(AtomicEnd::Lost) => "lost",
            None => "unknown",
        };
        span.record("outcome", outcome);
        self.engine.metrics.step(&self.record.name, &step.name, of, outcome);
        point(AFTER_SAGA_ATOMIC);
        match end {
            Some(AtomicEnd::Done { result, now }) => {
                let mut written = entries;
                written.push(NewEntry { body: Some(result), ..done });
                self.written(from_seq, written, now);
                Ok(())
            }
            Some(AtomicEnd::Failed(error)) => {
                // Rolled back as a whole; the next write takes the entries along.
                self.pending = entries;
                let (kind, why) = match error {
                    StepError::Refused(why) => (EntryKind::Refused, why),
                    StepError::NotApplied(why) | StepError::Unknown(why) => (EntryKind::Failed, why),
                };
                let failed = entry(kind, step, op, attempt, Some(text(&why)));
                self.note(NewEntry { input: done.input, ..failed });
                Ok(())
            }
            // Perhaps it was cancelled before this pivot.
            Some(AtomicEnd::Lost) if heeds_cancel => {
                self.reload(from_seq, entries).await?;
                if self.cancelled { Ok(()) } else { Err(Stop::Left(Left::Lost)) }
            }
            Some(AtomicEnd::Lost) => Err(Stop::Left(Left::Lost)),
            // The transaction may have been committed: the row is read when it has let go of it.
            None => {
                self.reload(from_seq, entries).await?;
                let known = self.history.progress(step, op == Op::Undo);
                if !known.is_some_and(|known| matches!(known.state, Known::Done(_))) {
                    let why = format!("no answer within {limit:?}; it was rolled back");
                    let failed = entry(EntryKind::Failed, step, op, attempt, Some(text(&why)));
                    self.note(NewEntry { input: done.input, ..failed });
                }
                Ok(())
            }
        }
    }
}
