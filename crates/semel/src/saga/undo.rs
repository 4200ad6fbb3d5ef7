//! Undoing: from the journal, in reverse, without the saga's code.

use std::sync::Arc;

use bytes::Bytes;

use super::call::{Purpose, Target};
use super::entry::{Op, StepId};
use super::history::{LOOKUP_ATTEMPT, Next, UndoNext, first, settled_after};
use super::run::{Going, Left, Work};
use super::state::ParkReason;
use super::step::{Calls, Undoing};

impl<App: Send + Sync + ?Sized + 'static> Work<App> {
    pub(super) async fn undo(&mut self) -> Going<Left> {
        loop {
            if self.engine.is_stopping() {
                let now = self.now();
                self.suspend(None, Some(now)).await?;
                continue;
            }
            let definition = self.definition.clone();
            let leaves_nothing =
                |name: &str| definition.step(name).is_some_and(|step| step.undoing() == Undoing::Nothing);
            match self.history.undo_next(leaves_nothing) {
                UndoNext::Finished => return self.end(None, Vec::new()).await,
                UndoNext::PastPivot => {
                    let why = "the pivot happened, so nothing may be undone";
                    return Err(self.park(ParkReason::UndoStuck, None, why).await);
                }
                UndoNext::Settle(step) => self.attempt(&step, false, None).await?,
                UndoNext::Undo { step, result, after, .. } => {
                    let handler = definition.step(&step.name);
                    let can = handler.filter(|handler| handler.undoing() == Undoing::ByStep);
                    let Some(handler) = can else {
                        let why = format!("{step} has to be undone, and its definition has no undo for it");
                        return Err(self.park(ParkReason::NoHandler, None, &why).await);
                    };
                    // What was sent before may still arrive.
                    let settled = after.map(|began_at| settled_after(handler.spec(), began_at));
                    if let Some(settled) = settled.filter(|settled| self.now() < *settled) {
                        self.suspend(None, Some(settled)).await?;
                        continue;
                    }
                    self.attempt(&step, true, result).await?;
                }
            }
        }
    }

    /// One attempt of a step whose result has to be known first, or of its undo.
    async fn attempt(&mut self, step: &StepId, undo: bool, result: Option<Bytes>) -> Going<()> {
        let Some(handler) = self.definition.step(&step.name).cloned() else {
            let why = format!("{step} has to be settled, and the definition has no such step");
            return Err(self.park(ParkReason::NoHandler, None, &why).await);
        };
        let spec = handler.spec();
        let forward = self.history.progress(step, false);
        let Some(forward) = forward else { return Ok(()) };
        let progress = if undo { self.history.progress(step, true) } else { Some(forward.clone()) };
        let next = progress.map_or_else(|| first(spec), |progress| progress.next(spec, undo, self.now()));
        let op = match (undo, forward.is_pivot) {
            (true, _) => Op::Undo,
            (false, true) => Op::Pivot,
            (false, false) => Op::Forward,
        };
        let target = |attempt| Target {
            step: step.clone(),
            op,
            attempt,
            input: forward.input.clone(),
            limit: spec.timeout,
        };
        let calls = matches!(next, Next::Attempt { .. } | Next::LookUp);
        let permit = if calls { self.enter(&step.name) } else { None };
        if calls && permit.is_none() {
            return self.wait_to_enter(&step.name).await;
        }
        if matches!(next, Next::LookUp | Next::Park(..)) {
            self.count_expired(step, undo);
        }
        let (target, purpose) = match next {
            Next::Settled => return Ok(()),
            Next::Attempt { attempt, safe } => {
                let target = target(attempt);
                if let Calls::Atomic(atomic) = Arc::clone(&handler).calls() {
                    return self.attempt_atomic(atomic, target, result.filter(|_| undo)).await;
                }
                let begin = self.begin(&target, safe);
                self.note(begin);
                (target, if undo { Purpose::Undo(result) } else { Purpose::Run })
            }
            Next::LookUp => (target(LOOKUP_ATTEMPT), Purpose::LookUp),
            Next::Wait(until) => {
                self.suspend(None, Some(until)).await?;
                return Ok(());
            }
            Next::Park(reason, due) => {
                let what = if undo { "its undo" } else { "it" };
                let why = format!("what came of {step} is unknown, or {what} failed too often");
                self.why = why;
                self.suspend(Some(reason), due).await?;
                return Ok(());
            }
            Next::GiveUp(why) => {
                let why = format!("{step}: {}", String::from_utf8_lossy(&why));
                return Err(self.park(ParkReason::UnknownResult, None, &why).await);
            }
        };
        let Calls::Remote(remote) = Arc::clone(&handler).calls() else { return Ok(()) };
        self.lease_for(spec.timeout).await?;
        if !self.write_in_time().await? && target.attempt != LOOKUP_ATTEMPT {
            self.note_not_sent(&target);
            return Ok(());
        }
        let made = self.call(remote, target, purpose).await;
        drop(permit);
        self.settle(made).await
    }
}
