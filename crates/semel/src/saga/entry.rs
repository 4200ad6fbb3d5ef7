//! The journal's entries: what a saga did, one line each, never changed.

use bytes::Bytes;

use crate::intent::policy::StoreTime;

/// Which of a step's operations an entry is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Op {
    /// The step itself.
    Forward,
    /// The step after which nothing is undone.
    Pivot,
    /// The step's undo.
    Undo,
}

impl Op {
    /// All of them, for tables.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Pivot, Self::Undo];

    /// Its name for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Pivot => "pivot",
            Self::Undo => "undo",
        }
    }
}

/// One call of one step: the `nth` use of the step `name` in the saga, counted from 0.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StepId {
    /// The step's name.
    pub name: String,
    /// Which use of it.
    pub nth: u32,
}

impl std::fmt::Display for StepId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}", self.name, self.nth)
    }
}

/// What an entry records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EntryKind {
    /// An attempt is about to be made: written before the call.
    Begin,
    /// It happened, with this result.
    Done,
    /// It was refused for good; this attempt had no effect.
    Refused,
    /// This attempt had no effect and may be repeated.
    Failed,
    /// It is not known whether this attempt, or what was looked up, had an effect.
    Unknown,
    /// A person or a lookup found out: with a result it happened, without one no attempt so far had an effect.
    Decided,
    /// The saga sleeps until the time in the body.
    Sleep,
    /// The saga's code saw this signal.
    Signal,
    /// The wait for a signal was over before one came.
    TimedOut,
    /// A person intervened: the step's name says how, the body who and why.
    Operator,
}

impl EntryKind {
    /// All of them, for tables.
    pub const ALL: [Self; 10] = [
        Self::Begin,
        Self::Done,
        Self::Refused,
        Self::Failed,
        Self::Unknown,
        Self::Decided,
        Self::Sleep,
        Self::Signal,
        Self::TimedOut,
        Self::Operator,
    ];

    /// Its name for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
            Self::Decided => "decided",
            Self::Sleep => "sleep",
            Self::Signal => "signal",
            Self::TimedOut => "timed_out",
            Self::Operator => "operator",
        }
    }
}

/// How long the participant's own key protects a step (guard expiry).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Safe {
    /// It is not known to end.
    Always,
    /// For this many ms from the entry on: the first attempt.
    ForMs(u64),
    /// Until this moment: later attempts carry what the first one got.
    Until(StoreTime),
}

/// An entry as its worker writes it. The journal adds the number, the epoch and the time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewEntry {
    /// What it records.
    pub kind: EntryKind,
    /// Of which step.
    pub step: StepId,
    /// Of which of its operations.
    pub op: Op,
    /// The attempt, counted from 1; 0 is a lookup.
    pub attempt: u32,
    /// How long the participant's key protects it.
    pub safe: Safe,
    /// The step's input: in its first entry. Of a decision: who decided, and why.
    pub input: Option<Bytes>,
    /// The result, the refusal, or what was decided.
    pub body: Option<Bytes>,
}

impl NewEntry {
    /// The entry as it is stored.
    pub fn stamp(self, seq: u32, epoch: u64, at: StoreTime) -> Entry {
        let safe_until = match self.safe {
            Safe::Always => None,
            Safe::ForMs(ms) => Some(at.plus_ms(ms)),
            Safe::Until(until) => Some(until),
        };
        let Self { kind, step, op, attempt, input, body, .. } = self;
        Entry { seq, kind, step, op, attempt, epoch, at, safe_until, input, body }
    }
}

/// An entry as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its number in the saga, counted from 0 without gaps.
    pub seq: u32,
    /// What it records.
    pub kind: EntryKind,
    /// Of which step.
    pub step: StepId,
    /// Of which of its operations.
    pub op: Op,
    /// The attempt, counted from 1; 0 is a lookup.
    pub attempt: u32,
    /// The epoch of the worker that wrote it.
    pub epoch: u64,
    /// When, by the journal's clock.
    pub at: StoreTime,
    /// Until when the participant's key protects the step.
    pub safe_until: Option<StoreTime>,
    /// The step's input: in its first entry.
    pub input: Option<Bytes>,
    /// The result, the refusal, or what was decided.
    pub body: Option<Bytes>,
}

impl Entry {
    /// Whether this is the same entry written again: its answer was lost, and it was sent once more.
    pub fn is_repeat_of(&self, stored: &Self) -> bool {
        let of = |entry: &Self| (entry.epoch, entry.kind, entry.op, entry.attempt);
        of(self) == of(stored) && self.step == stored.step
    }
}
