//! What is met only on a way that a fault opens: lookups, undos, and steps that are taken instead of others.

use std::collections::{HashSet, VecDeque};

use super::fault::{CallFault, CallOp, Fault, Faults};
use super::play::Played;
use super::report::HistoryEnd;
use super::watch::CallSeen;
use crate::saga::entry::StepId;

/// A history from which others branch off.
#[derive(Clone)]
pub(super) struct Base {
    pub(super) faults: Faults,
    pub(super) calls: Vec<CallSeen>,
    pub(super) writes: u32,
}

impl Base {
    pub(super) fn new<App>(played: &Played<App>) -> Self {
        let seen = played.watch.seen();
        Self { faults: played.faults.clone(), calls: seen.calls.clone(), writes: seen.writes }
    }

    pub(super) fn of(&self, op: CallOp) -> impl Iterator<Item = &CallSeen> {
        self.calls.iter().filter(move |call| call.id.op == op)
    }

    pub(super) fn and_at(&self, call: &CallSeen, what: CallFault) -> Faults {
        self.faults.and(Fault::AtCall { call: call.id.clone(), what })
    }

    fn steps(&self, op: CallOp) -> impl Iterator<Item = &StepId> {
        self.of(op).map(|call| &call.id.step)
    }

    /// Those that are not disturbed yet.
    fn new_steps(&self, op: CallOp, disturbed: &HashSet<StepId>) -> HashSet<StepId> {
        self.steps(op).filter(|step| !disturbed.contains(*step)).cloned().collect()
    }
}

/// What a history teaches, beside whether a rule is broken.
pub(super) enum Learns {
    /// Its last fault refuses a step: which undos there are, and which steps instead.
    Refused,
    /// Its last fault leaves it unknown whether this step happened: which lookups there are.
    Unknown(StepId, CallFault),
}

impl Learns {
    pub(super) fn of(faults: &Faults) -> Option<Self> {
        match faults.0.last() {
            Some(Fault::AtCall { call, what }) if call.op == CallOp::Run => match what {
                CallFault::Refused => Some(Self::Refused),
                CallFault::AnswerLost | CallFault::RequestLost => {
                    Some(Self::Unknown(call.step.clone(), *what))
                }
                _ => None,
            },
            _ => None,
        }
    }
}

/// What is disturbed next.
pub(super) enum Next {
    /// The undos of these steps.
    Undos(Base, HashSet<StepId>),
    /// The lookups of this step.
    Lookups(Base, StepId),
    /// These steps, which no history before had.
    Steps(Base, HashSet<StepId>),
}

#[derive(Default)]
pub(super) struct Ways {
    /// Steps whose calls, and whose undos, were disturbed.
    called: HashSet<StepId>,
    undone: HashSet<StepId>,
    /// Steps whose lookups were disturbed, after a lost request, and after a lost answer.
    looked_up: HashSet<(StepId, CallFault)>,
    undos: Vec<Base>,
    lookups: VecDeque<(Base, StepId)>,
    steps: VecDeque<Base>,
}

impl Ways {
    /// All calls of this history are disturbed.
    pub(super) fn disturbs(&mut self, base: &Base) {
        self.called.extend(base.steps(CallOp::Run).cloned());
        self.undone.extend(base.steps(CallOp::Undo).cloned());
    }

    pub(super) fn learn(&mut self, learns: Learns, end: Option<HistoryEnd>, base: Base) {
        match learns {
            Learns::Unknown(step, what) => {
                let looks_up = base.steps(CallOp::LookUp).any(|looked_up| *looked_up == step);
                if looks_up && self.looked_up.insert((step.clone(), what)) {
                    self.lookups.push_back((base, step));
                }
            }
            Learns::Refused => {
                let undoes = !base.new_steps(CallOp::Undo, &self.undone).is_empty();
                if !base.new_steps(CallOp::Run, &self.called).is_empty() {
                    self.steps.push_back(base.clone());
                }
                if end == Some(HistoryEnd::Undone) && undoes {
                    self.undos.push(base);
                }
            }
        }
    }

    pub(super) fn next(&mut self) -> Option<Next> {
        if let Some((base, new)) = self.next_undos() {
            return Some(Next::Undos(base, new));
        }
        if let Some((base, step)) = self.lookups.pop_front() {
            return Some(Next::Lookups(base, step));
        }
        while let Some(base) = self.steps.pop_front() {
            let new = base.new_steps(CallOp::Run, &self.called);
            if !new.is_empty() {
                self.called.extend(new.iter().cloned());
                return Some(Next::Steps(base, new));
            }
        }
        None
    }

    /// The history that undoes most of what was not disturbed yet; of several, the first.
    fn next_undos(&mut self) -> Option<(Base, HashSet<StepId>)> {
        let undone = &self.undone;
        self.undos.retain(|base| !base.new_steps(CallOp::Undo, undone).is_empty());
        let news = self.undos.iter().map(|base| base.new_steps(CallOp::Undo, undone).len());
        let (at, _) = news.enumerate().max_by_key(|(at, new)| (*new, std::cmp::Reverse(*at)))?;
        let base = self.undos.remove(at);
        let new = base.new_steps(CallOp::Undo, undone);
        self.undone.extend(new.iter().cloned());
        Some((base, new))
    }
}
