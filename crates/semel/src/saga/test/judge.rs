//! The rules, judged when a history is over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::ask_again::ask_again;
use super::fault::CallOp;
use super::play::{Played, Setup};
use super::report::{HistoryEnd, HistoryViolation, SagaRule};
use super::watch::Left;
use crate::saga::definition::CodeError;
use crate::saga::entry::{Entry, StepId};
use crate::saga::history::History;
use crate::saga::journal::Loaded;
use crate::saga::state::ParkReason;

type Broken = (SagaRule, String);

impl<App: Send + Sync + 'static> Setup<App> {
    /// What a history broke. `completed`: what is left when nothing disturbs the saga.
    pub(super) fn judge(
        &self,
        played: &Played<App>,
        completed: Option<&dyn Left>,
    ) -> Result<HistoryEnd, Box<HistoryViolation>> {
        match self.rules(played, completed) {
            Ok(end) => Ok(end),
            Err((rule, what)) => {
                let entries = played.loaded.as_ref().map(|loaded| loaded.entries.as_slice());
                let done = std::mem::take(&mut played.watch.seen().lines);
                Err(Box::new(HistoryViolation {
                    rule,
                    what,
                    history: played.faults.to_string(),
                    done,
                    journal: entries.unwrap_or_default().iter().map(line).collect(),
                }))
            }
        }
    }

    fn rules(&self, played: &Played<App>, completed: Option<&dyn Left>) -> Result<HistoryEnd, Broken> {
        let broken = |rule, what: String| Err((rule, what));
        // What was seen at a call comes first: the rest may follow from it.
        let seen = played.watch.seen().broken.take();
        let Some(loaded) = &played.loaded else {
            return Err(seen.unwrap_or((SagaRule::Ends, "the saga is not in the journal".to_owned())));
        };
        let history = History::new(loaded.entries.clone());
        // The code runs again, so what is left is asked for before.
        let left = played.watch.left();
        if let Some(HistoryEnd::Parked(ParkReason::Panicked)) = played.end {
            return broken(SagaRule::CodeDoesNotPanic, "the saga's code panicked".to_owned());
        }
        // While it is undone: a pivot whose result is unknown and that is refused then has no undo. A person decides.
        let forward = loaded.record.row.undo.is_none();
        if let (Some(HistoryEnd::Parked(ParkReason::NoHandler)), true) = (played.end, forward) {
            return broken(SagaRule::StepsAreDeclared, "a step of the code is not declared".to_owned());
        }
        self.same_steps(played, loaded, &history, left.as_deref())?;
        if let Some(broken) = seen {
            return Err(broken);
        }
        let Some(end) = played.end else {
            let row = &loaded.record.row;
            let what = format!("after {:?} it is {}: {row:?}", self.within, row.status.as_str());
            return broken(SagaRule::Ends, what);
        };
        undoing(played, &history)?;
        if end != self.undisturbed && played.faults.0.is_empty() {
            let why = loaded.record.outcome.as_ref().map(|why| String::from_utf8_lossy(why).into_owned());
            let why = why.unwrap_or_default();
            let what = format!("undisturbed, it is {end} ({why}), and not {}", self.undisturbed);
            return broken(SagaRule::Ends, what);
        }
        let expected = match end {
            HistoryEnd::Completed if !played.faults.refuse_a_step() => completed,
            HistoryEnd::Undone => played.left_before.as_deref(),
            _ => None,
        };
        if let (Some(expected), Some(left)) = (expected, &left)
            && !left.is(expected)
        {
            let what = format!("the saga {end} and leaves {}, not {}", left.text(), expected.text());
            return broken(SagaRule::AllOrUndone, what);
        }
        if let Some(judge) = &self.judge {
            let world = played.world();
            match catch_unwind(AssertUnwindSafe(|| judge(&world, &end))) {
                Ok(Ok(())) => {}
                Ok(Err(what)) => return broken(SagaRule::YourJudge, format!("{what} ({end})")),
                Err(panic) => return broken(SagaRule::YourJudge, format!("{} ({end})", message(&*panic))),
            }
        }
        Ok(end)
    }

    /// The code alone, on the journal that it wrote.
    fn same_steps(
        &self,
        played: &Played<App>,
        loaded: &Loaded,
        history: &History,
        left: Option<&dyn Left>,
    ) -> Result<(), Broken> {
        let changed = |what: String| Err((SagaRule::SameStepsEachTime, what));
        let record = &loaded.record;
        let again = ask_again(&*self.definition, Arc::clone(&played.app), record, history);
        let again = match again {
            Ok(again) => again,
            Err(error) if error.step.is_none() && error.is_about_waiting() => {
                return Err((SagaRule::OnlySteps, error.to_string()));
            }
            Err(error) => return changed(error.to_string()),
        };
        if let (Some(HistoryEnd::Completed), Some(end)) = (played.end, again) {
            let end = match end {
                Ok(result) => String::from_utf8_lossy(&result).into_owned(),
                Err(CodeError::Refused(refused)) => format!("a refusal: {refused}"),
                Err(CodeError::Unreadable(why)) => why,
            };
            let before = record.outcome.as_ref().map(|outcome| String::from_utf8_lossy(outcome).into_owned());
            if before.as_ref() != Some(&end) {
                return changed(format!("its result was {}, and is {end}", before.unwrap_or_default()));
            }
        }
        if let Some(HistoryEnd::Parked(ParkReason::Changed)) = played.end {
            return changed("in one of its runs it asked for other steps than its journal had".to_owned());
        }
        match (left, played.watch.left()) {
            (Some(before), Some(after)) if !after.is(before) => {
                let what = format!(
                    "the code alone, with all steps answered from the journal, changed {} to {}",
                    before.text(),
                    after.text()
                );
                Err((SagaRule::OnlySteps, what))
            }
            _ => Ok(()),
        }
    }
}

/// What was undone, in which order, and whether it may have been.
fn undoing<App>(played: &Played<App>, history: &History) -> Result<(), Broken> {
    let seen = played.watch.seen();
    let mut undone: Vec<&StepId> = Vec::new();
    for call in seen.calls.iter().filter(|call| call.id.op == CallOp::Undo) {
        if undone.last() != Some(&&call.id.step) {
            undone.push(&call.id.step);
        }
    }
    if let (Some(step), true) = (undone.first(), history.pivot_done().is_some()) {
        return Err((SagaRule::NothingUndonePastThePivot, format!("{step} was undone")));
    }
    let steps = history.steps();
    let mut before = steps.len();
    for step in undone {
        let Some(at) = steps.iter().position(|begun| begun == step) else {
            let what = format!("{step} was undone, and had never begun");
            return Err((SagaRule::UndoneOnlyWhatPerhapsHappened, what));
        };
        if at >= before {
            let what = format!("{step} was undone after a step that began before it");
            return Err((SagaRule::UndoneInReverse, what));
        }
        before = at;
    }
    let mut undos = seen.calls.iter().filter(|call| call.id.op == CallOp::Undo);
    let stuck = played.end == Some(HistoryEnd::Parked(ParkReason::UndoStuck));
    let repeatable = undos.clone().all(|call| call.keyed || call.atomic);
    if stuck && repeatable && !played.faults.refuse_an_undo() {
        let last = undos.next_back();
        let rule = match last {
            Some(call) if call.perhaps => SagaRule::UndoOfPerhapsWorks,
            _ => SagaRule::UndoWorks,
        };
        let step = last.map_or_else(|| "an undo".to_owned(), |call| call.id.to_string());
        return Err((rule, format!("{step} failed until its attempts were used up")));
    }
    Ok(())
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "it panicked".to_owned())
}

/// An entry of the journal, in a line.
fn line(entry: &Entry) -> String {
    let body = entry.body.as_ref().or(entry.input.as_ref());
    let body = body.map(|body| String::from_utf8_lossy(body).into_owned()).unwrap_or_default();
    let (kind, op) = (entry.kind.as_str(), entry.op.as_str());
    format!("{} {kind} {op} {} (attempt {}) {body}", entry.seq, entry.step, entry.attempt)
}
