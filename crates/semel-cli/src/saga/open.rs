//! How far the steps of a saga are, read from its journal: what is open, and what was begun last.

use semel::StoreTime;
use semel::saga::{Entry, EntryKind, Op, StepId, is_protected};

/// A step, or its undo, that has no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OpenStep {
    pub(super) step: StepId,
    pub(super) op: Op,
    pub(super) state: OpenState,
    /// In the participant's words, or the worker's.
    pub(super) why: Option<String>,
    /// Until when the participant's key protects it.
    pub(super) safe_until: Option<StoreTime>,
    /// It was called more than once, or looked up: its declaration allows that.
    pub(super) is_repeatable: bool,
}

/// What is known about a step without a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OpenState {
    /// It may have happened.
    Unknown,
    /// It did not happen, and may be tried again.
    Failed,
    /// It was refused.
    Refused,
}

impl OpenState {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

impl OpenStep {
    pub(super) fn is_undo(&self) -> bool {
        self.op == Op::Undo
    }
}

/// What has no result, in the order in which it was begun. While a saga is undone, a step that is known not to have
/// happened is settled: there is nothing to undo.
pub(super) fn open_steps(entries: &[Entry], undoing: bool) -> Vec<OpenStep> {
    let mut seen: Vec<(&StepId, bool)> = Vec::new();
    for entry in entries.iter().filter(|entry| is_of_a_step(entry)) {
        let of = (&entry.step, entry.op == Op::Undo);
        if !seen.contains(&of) {
            seen.push(of);
        }
    }
    let open = seen.into_iter().filter_map(|(step, undo)| open_step(entries, step, undo));
    open.filter(|open| !undoing || open.is_undo() || open.state == OpenState::Unknown).collect()
}

/// Whether the pivot has begun and is not refused: nothing can be undone any more.
pub(super) fn has_begun_pivot(entries: &[Entry]) -> bool {
    let Some(pivot) = entries.iter().find(|entry| entry.op == Op::Pivot) else { return false };
    let mut of_pivot = entries.iter().filter(|entry| entry.step == pivot.step && entry.op != Op::Undo);
    of_pivot.rfind(|entry| is_of_a_step(entry)).is_some_and(|last| last.kind != EntryKind::Refused)
}

/// What was begun last: `charge#0`, `undo of reserve#0`, `signal approval`, `sleep`.
pub(super) fn current_step(entries: &[Entry]) -> Option<String> {
    let last = entries.iter().rfind(|entry| entry.kind != EntryKind::Operator)?;
    Some(named(&last.step, last.op))
}

/// A step as people read it.
pub(super) fn named(step: &StepId, op: Op) -> String {
    match (op, step.name.strip_prefix('/')) {
        (Op::Undo, _) => format!("undo of {step}"),
        (_, Some("sleep")) => "sleep".to_owned(),
        (_, Some(name)) => name.replacen('/', " ", 1),
        (_, None) => step.to_string(),
    }
}

fn is_of_a_step(entry: &Entry) -> bool {
    use EntryKind::{Operator, Signal, Sleep, TimedOut};
    !matches!(entry.kind, Sleep | Signal | TimedOut | Operator)
}

fn open_step(entries: &[Entry], step: &StepId, undo: bool) -> Option<OpenStep> {
    let mut op = if undo { Op::Undo } else { Op::Forward };
    let (mut state, mut why, mut safe_until) = (None, None, None);
    // An attempt whose result got lost stays unknown, whatever the next one came to.
    let mut perhaps = false;
    let (mut attempts, mut lookups) = (0, 0);
    let of = |entry: &&Entry| entry.step == *step && (entry.op == Op::Undo) == undo && is_of_a_step(entry);
    for entry in entries.iter().filter(of) {
        op = entry.op;
        safe_until = safe_until.or(entry.safe_until);
        match entry.kind {
            EntryKind::Begin => {
                attempts += 1;
                perhaps |= state == Some(OpenState::Unknown);
                state = Some(OpenState::Unknown);
                continue;
            }
            EntryKind::Done => return None,
            EntryKind::Decided if entry.body.is_some() => return None,
            EntryKind::Decided => (state, perhaps) = (Some(OpenState::Failed), false),
            EntryKind::Refused => state = Some(OpenState::Refused),
            EntryKind::Failed => state = Some(OpenState::Failed),
            _ => {
                lookups += u32::from(entry.attempt == 0);
                state = Some(OpenState::Unknown);
            }
        }
        why = entry.body.as_ref().map(|body| match is_protected(body) {
            true => "sealed; --keys opens it".to_owned(),
            false => String::from_utf8_lossy(body).into_owned(),
        });
    }
    let state = if perhaps { OpenState::Unknown } else { state? };
    let is_repeatable = attempts > 1 || lookups > 0;
    Some(OpenStep { step: step.clone(), op, state, why, safe_until, is_repeatable })
}

#[cfg(test)]
mod tests {
    use super::*;
    use EntryKind::{Begin, Decided, Done, Failed, Refused, Unknown};

    /// A journal of one step.
    fn journal(op: Op, kinds: &[EntryKind]) -> Vec<Entry> {
        let step = StepId { name: "charge".to_owned(), nth: 0 };
        let entry = |(seq, kind): (usize, &EntryKind)| Entry {
            seq: seq as u32,
            kind: *kind,
            step: step.clone(),
            op,
            attempt: 1,
            epoch: 1,
            at: StoreTime(seq as u64),
            safe_until: None,
            input: None,
            body: None,
        };
        kinds.iter().enumerate().map(entry).collect()
    }

    #[test]
    fn what_is_open_by_the_last_that_is_known() {
        for (kinds, open) in [
            (&[Begin][..], Some(OpenState::Unknown)),
            (&[Begin, Unknown], Some(OpenState::Unknown)),
            (&[Begin, Failed], Some(OpenState::Failed)),
            (&[Begin, Refused], Some(OpenState::Refused)),
            (&[Begin, Begin, Refused], Some(OpenState::Unknown)),
            (&[Begin, Unknown, Begin, Failed], Some(OpenState::Unknown)),
            (&[Begin, Unknown, Decided], Some(OpenState::Failed)),
            (&[Begin, Unknown, Begin, Done], None),
        ] {
            let found = open_steps(&journal(Op::Forward, kinds), false);
            assert_eq!(found.first().map(|open| open.state), open, "{kinds:?}");
        }
    }

    #[test]
    fn undoing_is_about_what_may_have_happened() {
        assert!(open_steps(&journal(Op::Forward, &[Begin, Failed]), true).is_empty());
        assert_eq!(open_steps(&journal(Op::Forward, &[Begin]), true).len(), 1);
        let undo = open_steps(&journal(Op::Undo, &[Begin, Refused]), true);
        assert!(undo[0].is_undo() && undo[0].state == OpenState::Refused);
        assert_eq!(named(&undo[0].step, undo[0].op), "undo of charge#0");
    }

    #[test]
    fn a_pivot_counts_from_its_beginning_until_it_is_refused() {
        assert!(!has_begun_pivot(&journal(Op::Forward, &[Begin])));
        assert!(has_begun_pivot(&journal(Op::Pivot, &[Begin])));
        assert!(!has_begun_pivot(&journal(Op::Pivot, &[Begin, Refused])));
    }
}
