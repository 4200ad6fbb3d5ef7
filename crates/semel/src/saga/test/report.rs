//! Counts, and what a violation says.

use std::collections::BTreeMap;
use std::fmt;

use crate::saga::state::ParkReason;

/// How a history ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HistoryEnd {
    /// The saga completed.
    Completed,
    /// Everything that happened was undone.
    Undone,
    /// It waits for a person.
    Parked(ParkReason),
}

impl fmt::Display for HistoryEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed => f.write_str("completed"),
            Self::Undone => f.write_str("undone"),
            Self::Parked(reason) => write!(f, "parked: {}", reason.as_str()),
        }
    }
}

/// What holds for every saga in every history.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum SagaRule {
    /// The code asks for the same steps with the same inputs each time it runs: no clock and no random number.
    SameStepsEachTime,
    /// Only steps have an effect, and the code waits for nothing else.
    OnlySteps,
    /// The code does not panic.
    CodeDoesNotPanic,
    /// The definition is valid, and declares every step that its code runs.
    StepsAreDeclared,
    /// A keyed step that is called again with its key has its effect once, and gives the same answer.
    KeyedStepHonoursItsKey,
    /// An opaque step that happened is not called again.
    OpaqueStepOnce,
    /// A lookup finds what happened, and nothing else.
    LookupTellsTheTruth,
    /// A step that says it was refused, or had no effect, had none.
    RefusedLeavesNothing,
    /// An undo that is called again with its key undoes once.
    UndoMayBeRepeated,
    /// An undo works.
    UndoWorks,
    /// An undo works when it is not known whether its step happened: it gets `None`.
    UndoOfPerhapsWorks,
    /// Steps are undone in reverse.
    UndoneInReverse,
    /// Only what perhaps happened is undone.
    UndoneOnlyWhatPerhapsHappened,
    /// Past the pivot nothing is undone.
    NothingUndonePastThePivot,
    /// The transaction of an atomic step can be committed.
    AtomicStepCommits,
    /// A saga that completes leaves the same whatever happened on the way; one that is undone leaves nothing.
    AllOrUndone,
    /// A saga ends or is parked, within the time of [`Everywhere::within`](super::Everywhere::within); undisturbed, it
    /// completes, or ends as [`Everywhere::undisturbed`](super::Everywhere::undisturbed) says.
    Ends,
    /// What your own judge says.
    YourJudge,
    /// The history that [`Everywhere::only`](super::Everywhere::only) names exists.
    HistoryExists,
}

impl SagaRule {
    /// The rule, in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SameStepsEachTime => "the code asks for the same steps each time it runs",
            Self::OnlySteps => "only steps have an effect",
            Self::CodeDoesNotPanic => "the code does not panic",
            Self::StepsAreDeclared => "the definition is valid and declares its steps",
            Self::KeyedStepHonoursItsKey => "a keyed step honours its key",
            Self::OpaqueStepOnce => "an opaque step that happened is not called again",
            Self::LookupTellsTheTruth => "a lookup tells the truth",
            Self::RefusedLeavesNothing => "a step that was refused left nothing",
            Self::UndoMayBeRepeated => "an undo may be repeated",
            Self::UndoWorks => "an undo works",
            Self::UndoOfPerhapsWorks => "an undo works when it gets None",
            Self::UndoneInReverse => "steps are undone in reverse",
            Self::UndoneOnlyWhatPerhapsHappened => "only what perhaps happened is undone",
            Self::NothingUndonePastThePivot => "nothing is undone past the pivot",
            Self::AtomicStepCommits => "the transaction of an atomic step can be committed",
            Self::AllOrUndone => "all or undone",
            Self::Ends => "a saga ends or is parked within a bound",
            Self::YourJudge => "your judge",
            Self::HistoryExists => "the history exists",
        }
    }
}

/// What was played.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HistoryReport {
    /// Histories that were played.
    pub histories: usize,
    /// Of them, completed.
    pub completed: usize,
    /// Of them, undone.
    pub undone: usize,
    /// Of them, parked: by reason.
    pub parked: BTreeMap<&'static str, usize>,
    /// Points that were not played, because there are more than
    /// [`Everywhere::histories_max`](super::Everywhere::histories_max). Those of undos count where they were reached.
    pub left_out: usize,
    /// Histories whose fault was never reached: the saga took another way.
    pub not_reached: usize,
    /// Calls of the undisturbed saga.
    pub calls: usize,
    /// Writes of the undisturbed saga.
    pub writes: usize,
}

impl HistoryReport {
    pub(super) fn count(&mut self, end: HistoryEnd) {
        self.histories += 1;
        match end {
            HistoryEnd::Completed => self.completed += 1,
            HistoryEnd::Undone => self.undone += 1,
            HistoryEnd::Parked(reason) => *self.parked.entry(reason.as_str()).or_default() += 1,
        }
    }
}

impl fmt::Display for HistoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { histories, completed, undone, calls, writes, .. } = self;
        write!(
            f,
            "{calls} calls, {writes} writes: {histories} histories, {completed} completed, {undone} undone"
        )?;
        for (reason, count) in &self.parked {
            write!(f, ", {count} parked ({reason})")?;
        }
        if self.not_reached > 0 {
            write!(f, ", {} whose fault was not reached", self.not_reached)?;
        }
        if self.left_out > 0 {
            write!(f, "; {} left out: raise histories_max", self.left_out)?;
        }
        Ok(())
    }
}

/// A rule was broken, in one history.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HistoryViolation {
    /// Which rule.
    pub rule: SagaRule,
    /// What is wrong.
    pub what: String,
    /// What was done to the saga: the name of the history.
    pub history: String,
    /// What was done, in order.
    pub done: Vec<String>,
    /// The journal at the end.
    pub journal: Vec<String>,
}

impl fmt::Display for HistoryViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "broken: {}: {}", self.rule.as_str(), self.what)?;
        writeln!(f, "history: {}", self.history)?;
        for (name, lines) in [("what was done:", &self.done), ("its journal:", &self.journal)] {
            if !lines.is_empty() {
                writeln!(f, "{name}\n  {}", lines.join("\n  "))?;
            }
        }
        write!(f, "run only this history again: .only({:?})", self.history)
    }
}

impl std::error::Error for HistoryViolation {}
