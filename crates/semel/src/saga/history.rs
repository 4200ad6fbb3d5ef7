//! What a saga's journal says: how far each step is, and what comes next. Pure: no I/O, no clock.

use std::time::Duration;

use bytes::Bytes;

use super::entry::{Entry, EntryKind, NewEntry, Op, Safe, StepId};
use super::spec::StepSpec;
use super::state::ParkReason;
use crate::intent::guard_expiry::may_begin;
use crate::intent::policy::{StoreTime, millis};

/// How long after its beginning was sent to the journal a call may start. Later it is not made.
pub(super) const START_MAX: Duration = Duration::from_secs(1);

/// The name of the entry by which a person has a parked saga tried again.
pub(super) const RETRY: &str = "/retry";

/// The attempt that entries of a lookup carry.
pub(super) const LOOKUP_ATTEMPT: u32 = 0;

/// The journal of one saga, in order.
#[derive(Clone, Default, Debug)]
pub(super) struct History {
    entries: Vec<Entry>,
}

/// How far one operation of one step is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Progress {
    /// What is known of its result.
    pub(super) state: Known,
    /// How many attempts were begun.
    pub(super) attempts: u32,
    /// How many of them since a decision, if there was one: what the bound counts.
    pub(super) tried: u32,
    /// Some attempt may have had an effect although the last one had none: its result is unknown.
    pub(super) perhaps: bool,
    /// Lookups that found out nothing since the last attempt.
    pub(super) lookups: u32,
    /// When the last attempt began.
    pub(super) began_at: StoreTime,
    /// When the last entry was written.
    pub(super) at: StoreTime,
    /// Until when the participant's key protects it; set by the first attempt.
    pub(super) safe_until: Option<StoreTime>,
    /// The input of its first entry.
    pub(super) input: Bytes,
    /// The number of its first entry.
    pub(super) first: u32,
    /// The number of its last entry: where its result is, if it has one.
    pub(super) last: u32,
    /// Whether it is the pivot.
    pub(super) is_pivot: bool,
}

/// What is known of a step's result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// An attempt was begun, and its result is unknown.
    Nothing,
    /// The last attempt had no effect; it may be tried again.
    Failed(Bytes),
    /// The last attempt was refused for good.
    Refused(Bytes),
    /// It happened.
    Done(Bytes),
}

/// What to do about a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// It is settled.
    Settled,
    /// Begin an attempt.
    Attempt {
        /// Its number, counted from 1.
        attempt: u32,
        /// How long the participant's key protects it.
        safe: Safe,
    },
    /// Ask what happened.
    LookUp,
    /// Not before this moment.
    Wait(StoreTime),
    /// It cannot go on by itself; with a time, a lookup tries again then.
    Park(ParkReason, Option<StoreTime>),
    /// It failed too often, and none of its attempts had an effect.
    GiveUp(Bytes),
}

/// What undoing a saga does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum UndoNext {
    /// First find out what came of this step.
    Settle(StepId),
    /// Undo this step: not before the time, if there is one.
    Undo {
        /// The step.
        step: StepId,
        /// The input it had.
        input: Bytes,
        /// Its result; `None`: perhaps it happened, perhaps not.
        result: Option<Bytes>,
        /// When the last attempt of the step began, where its result is unknown.
        after: Option<StoreTime>,
    },
    /// The pivot happened: nothing may be undone.
    PastPivot,
    /// Everything that happened is undone.
    Finished,
}

impl History {
    /// The journal as it was read.
    pub(super) fn new(entries: Vec<Entry>) -> Self {
        Self { entries }
    }

    /// Its entries, in order.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The number of the next entry.
    pub(super) fn next_seq(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Adds what was written.
    pub(super) fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Forgets entries that the journal has not taken.
    pub(super) fn truncate(&mut self, from_seq: u32) {
        self.entries.truncate(from_seq as usize);
    }

    /// Replaces entries that were written by what the journal has: they have its time now.
    pub(super) fn restamp(&mut self, from_seq: u32, entries: Vec<NewEntry>, epoch: u64, at: StoreTime) {
        self.entries.truncate(from_seq as usize);
        let stamped = (from_seq..).zip(entries).map(|(seq, entry)| entry.stamp(seq, epoch, at));
        self.entries.extend(stamped);
    }

    /// When the newest entry was written.
    pub(super) fn latest(&self) -> StoreTime {
        self.entries.iter().map(|entry| entry.at).max().unwrap_or_default()
    }

    /// The entries of one operation of one step. The pivot is a step's forward operation under another name.
    fn of<'h>(&'h self, step: &'h StepId, undo: bool) -> impl Iterator<Item = &'h Entry> {
        self.entries.iter().filter(move |entry| entry.step == *step && (entry.op == Op::Undo) == undo)
    }

    /// How far the step, or its undo, is. `None`: it was never begun.
    pub(super) fn progress(&self, step: &StepId, undo: bool) -> Option<Progress> {
        let first = self.of(step, undo).next()?;
        let mut progress = Progress {
            state: Known::Nothing,
            attempts: 0,
            tried: 0,
            perhaps: false,
            lookups: 0,
            began_at: first.at,
            at: first.at,
            safe_until: first.safe_until,
            input: first.input.clone().unwrap_or_default(),
            first: first.seq,
            last: first.seq,
            is_pivot: false,
        };
        for entry in &self.entries[first.seq as usize..] {
            if entry.step == *step && (entry.op == Op::Undo) == undo && entry.is_of_a_step() {
                progress.add(entry);
            } else if entry.kind == EntryKind::Operator && entry.step.name == RETRY {
                let past_pivot = self.pivot_done().is_some_and(|done| done < progress.first);
                progress.retry(undo || past_pivot);
            }
        }
        Some(progress)
    }

    /// Every step that was begun, in the order in which they were.
    pub(super) fn steps(&self) -> Vec<StepId> {
        let mut steps: Vec<StepId> = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.op != Op::Undo && entry.is_of_a_step()) {
            if !steps.contains(&entry.step) {
                steps.push(entry.step.clone());
            }
        }
        steps
    }

    /// Whether the pivot was begun, and what is known of it.
    pub(super) fn pivot(&self) -> Option<Progress> {
        let pivot = self.entries.iter().find(|entry| entry.op == Op::Pivot)?;
        self.progress(&pivot.step, false)
    }

    /// The number of the entry by which the pivot was done.
    pub(super) fn pivot_done(&self) -> Option<u32> {
        let mut of_pivot = self.entries.iter().filter(|entry| entry.op == Op::Pivot);
        let done = of_pivot.find(|entry| {
            entry.kind == EntryKind::Done || (entry.kind == EntryKind::Decided && entry.body.is_some())
        });
        done.map(|entry| entry.seq)
    }

    /// What undoing does next. `leaves_nothing` says which steps have nothing to undo.
    pub(super) fn undo_next(&self, leaves_nothing: impl Fn(&str) -> bool) -> UndoNext {
        let steps = self.steps();
        if self.pivot().is_some_and(|pivot| matches!(pivot.state, Known::Done(_))) {
            return UndoNext::PastPivot;
        }
        // All results first: a step whose result is unknown may still be on its way.
        let open = |step: &&StepId| {
            self.progress(step, false).is_some_and(|progress| progress.state == Known::Nothing)
        };
        if let Some(step) = steps.iter().rev().find(open) {
            return UndoNext::Settle(step.clone());
        }
        for step in steps.iter().rev().filter(|step| !leaves_nothing(&step.name)) {
            let Some(progress) = self.progress(step, false) else { continue };
            let (result, after) = match progress.state {
                Known::Done(result) => (Some(result), None),
                _ if progress.perhaps => (None, Some(progress.began_at)),
                _ => continue,
            };
            let undone = self.progress(step, true);
            if undone.is_some_and(|undone| matches!(undone.state, Known::Done(_))) {
                continue;
            }
            return UndoNext::Undo { step: step.clone(), input: progress.input, result, after };
        }
        UndoNext::Finished
    }
}

impl Entry {
    /// Of a step, not of a sleep or a signal.
    fn is_of_a_step(&self) -> bool {
        !matches!(self.kind, EntryKind::Sleep | EntryKind::Signal | EntryKind::TimedOut | EntryKind::Operator)
    }
}

impl Progress {
    fn add(&mut self, entry: &Entry) {
        let body = || entry.body.clone().unwrap_or_default();
        self.at = entry.at;
        self.last = entry.seq;
        self.is_pivot |= entry.op == Op::Pivot;
        match entry.kind {
            EntryKind::Begin => {
                // What the attempt before came to is unknown, and stays it.
                self.perhaps |= self.attempts > 0 && self.state == Known::Nothing;
                self.attempts += 1;
                self.tried += 1;
                self.lookups = 0;
                self.began_at = entry.at;
                // Of the first attempt: a takeover or a restart does not make the key live longer. Where no attempt had an
                // effect there is nothing to protect, and it begins anew.
                self.safe_until =
                    if self.is_untouched() { entry.safe_until } else { self.safe_until.or(entry.safe_until) };
                self.state = Known::Nothing;
            }
            EntryKind::Done => self.state = Known::Done(body()),
            EntryKind::Refused => {
                self.count_atomic(entry);
                self.state = Known::Refused(body());
            }
            EntryKind::Failed => {
                self.count_atomic(entry);
                self.state = Known::Failed(body());
            }
            EntryKind::Unknown => {
                self.lookups += u32::from(entry.attempt == LOOKUP_ATTEMPT);
                self.state = Known::Nothing;
            }
            EntryKind::Decided => {
                // A lookup that finds nothing does not make the bound longer; a person's decision begins it anew.
                if entry.input.is_some() {
                    self.tried = 0;
                }
                self.lookups = 0;
                match &entry.body {
                    Some(result) => self.state = Known::Done(result.clone()),
                    None => {
                        self.perhaps = false;
                        self.state = Known::Failed(Bytes::from_static(b"it was found not to have happened"));
                    }
                }
            }
            EntryKind::Sleep | EntryKind::Signal | EntryKind::TimedOut | EntryKind::Operator => {}
        }
    }

    /// A person wants it tried again: the bounds begin anew. What was refused where nothing else can be done is no longer
    /// final.
    fn retry(&mut self, refused_too: bool) {
        (self.tried, self.lookups) = (0, 0);
        if let Known::Refused(why) = &self.state
            && refused_too
        {
            self.state = Known::Failed(why.clone());
        }
    }

    /// An atomic step has no `begin`: the entry of a failed attempt is the first that is known of it.
    fn count_atomic(&mut self, entry: &Entry) {
        if entry.attempt > self.attempts {
            self.attempts = entry.attempt;
            self.tried += 1;
            self.began_at = entry.at;
        }
    }

    /// No attempt had an effect, for certain.
    fn is_untouched(&self) -> bool {
        matches!(self.state, Known::Failed(_)) && !self.perhaps
    }

    /// What to do about it, by the rules of its step. `now` is the journal's clock.
    pub(super) fn next(&self, spec: &StepSpec, undo: bool, now: StoreTime) -> Next {
        let effect = if undo { spec.undo_effect } else { spec.effect };
        match &self.state {
            Known::Done(_) => Next::Settled,
            Known::Refused(_) if undo => Next::Park(ParkReason::UndoStuck, None),
            Known::Refused(_) => Next::Settled,
            // A result that is not known, and nothing that makes another call safe.
            Known::Nothing if !effect.may_rerun() => {
                self.find_out(spec, undo, now, ParkReason::UnknownResult)
            }
            Known::Nothing | Known::Failed(_)
                if self.tried < spec.attempts_max && self.is_safe(spec, now) =>
            {
                let due = self.at.plus_ms(millis(spec.backoff(self.tried.saturating_sub(1))));
                // A decision is followed at once.
                if self.tried > 0 && now < due {
                    return Next::Wait(due);
                }
                Next::Attempt { attempt: self.attempts + 1, safe: self.safe(spec) }
            }
            Known::Failed(why) if !undo && !self.perhaps => Next::GiveUp(why.clone()),
            Known::Nothing | Known::Failed(_) => {
                let expired = !self.is_safe(spec, now);
                let why = if expired { ParkReason::GuardExpired } else { ParkReason::UnknownResult };
                self.find_out(spec, undo, now, why)
            }
        }
    }

    /// What the next attempt carries: the first one's time, never a new one.
    fn safe(&self, spec: &StepSpec) -> Safe {
        match (self.safe_until, spec.safe_for) {
            (_, Some(safe_for)) if self.attempts == 0 || self.is_untouched() => Safe::ForMs(millis(safe_for)),
            (Some(until), _) => Safe::Until(until),
            (None, _) => Safe::Always,
        }
    }

    /// Whether another attempt is not made because the participant's key may protect it no longer.
    pub(super) fn has_expired(&self, spec: &StepSpec, undo: bool, now: StoreTime) -> bool {
        let effect = if undo { spec.undo_effect } else { spec.effect };
        let is_open = matches!(self.state, Known::Nothing | Known::Failed(_));
        is_open && effect.may_rerun() && !self.is_safe(spec, now)
    }

    /// Whether the participant's key still protects an attempt that begins now.
    fn is_safe(&self, spec: &StepSpec, now: StoreTime) -> bool {
        let call_ms = millis(START_MAX + spec.timeout + spec.safe_margin);
        self.is_untouched() || may_begin(now, call_ms, self.safe_until)
    }

    /// By a lookup where there is one, otherwise by a person.
    fn find_out(&self, spec: &StepSpec, undo: bool, now: StoreTime, otherwise: ParkReason) -> Next {
        if undo {
            return Next::Park(ParkReason::UndoStuck, None);
        }
        if !spec.has_lookup {
            return Next::Park(otherwise, None);
        }
        let settled = settled_after(spec, self.began_at);
        if now < settled {
            return Next::Wait(settled);
        }
        if self.lookups >= spec.lookups_max {
            return Next::Park(otherwise, None);
        }
        let again = self.at.plus_ms(millis(spec.lookup_backoff(self.lookups.saturating_sub(1))));
        if self.lookups > 0 && now < again {
            return Next::Park(otherwise, Some(again));
        }
        Next::LookUp
    }
}

/// What begins a step that was never begun.
pub(super) fn first(spec: &StepSpec) -> Next {
    let safe = spec.safe_for.map_or(Safe::Always, |safe_for| Safe::ForMs(millis(safe_for)));
    Next::Attempt { attempt: 1, safe }
}

/// When a step whose result is unknown may be undone: what was sent before has arrived or never will.
pub(super) fn settled_after(spec: &StepSpec, began_at: StoreTime) -> StoreTime {
    began_at.plus_ms(millis(START_MAX + spec.timeout + spec.settle))
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
