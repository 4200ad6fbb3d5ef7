//! The laws, judged by what the participants wrote down.

use std::collections::BTreeSet;
use std::time::Duration;

use semel::outbox::Event;
use semel::saga::{Entry, EntryKind, Loaded, Op, ParkReason, Status};

use super::network::{Network, Note};
use super::plan::{Plan, SagaPlan, StepPlan};
use super::run::Got;
use crate::stage::Stage;
use crate::world::Violation;

const ONCE: &str = "each step has its effect at most once";
const BLIND: &str = "what may have happened is not called again";
const KEY: &str = "every attempt has the same key";
const WHOLE: &str = "a completed saga did all its steps and undid none";
const UNDONE: &str = "an undone saga left nothing";
const REVERSE: &str = "steps are undone in reverse";
const NOT_BEFORE: &str = "no undo of a step that was never begun";
const NOT_AFTER: &str = "no effect of a step after its undo";
const PIVOT: &str = "nothing is undone past the pivot";
const ENDS: &str = "every saga ends or is parked within a bound";
const PARKED: &str = "a saga is parked for a reason";
const ANSWER: &str = "the client gets what the journal has";
const PUBLISHED: &str = "a saga publishes once if it completes, and nothing otherwise";
const AT_ONCE: &str = "a process calls no more of one kind of step at once than it may";
const CANCELLED: &str = "a saga cancelled before its pivot began does not complete";
const SEEN: &str = "a signal that came in time is seen, and soon";

/// How long after the last fault every saga has ended, or waits for a person.
pub(super) fn bound(plan: &Plan) -> Duration {
    let settings = &plan.settings;
    // A lease that has to run out, twice: a takeover may meet the last fault; and the raised lease of long timeouts.
    let lease_ms = settings.workers_lease_ms();
    let attempts = u64::from(settings.attempts_max);
    // One operation: its attempts with their backoff (6.2 s for six), a settle delay, the lookup's.
    let backoff_ms: u64 = (0..attempts).map(|attempt| 200 << attempt).sum();
    let op_ms = attempts * (settings.timeout_ms + 2 * settings.poll_ms + 8 * settings.journal_ms + 1_000)
        + backoff_ms
        + 2 * (settings.timeout_ms + settings.settle_ms);
    let waits_ms = 60_000;
    let ops: u64 = plan.sagas.iter().map(|saga| 2 * saga.steps().len() as u64 + 1).sum();
    Duration::from_millis(3 * lease_ms + ops * op_ms + waits_ms)
}

pub(super) fn judge(
    plan: &Plan,
    stage: &Stage,
    network: &Network,
    loaded: &[Option<Loaded>],
    published: &[Event],
    got: &[Option<Got>],
) -> Result<(), Violation> {
    if let Some(calls) = network.ledger().too_many.take() {
        return Err(Violation::new(AT_ONCE, calls));
    }
    for (n, saga) in plan.sagas.iter().enumerate() {
        let judged = Judged { n, saga, network, entries: loaded[n].as_ref().map_or(&[], |one| &one.entries) };
        judged.safety(plan)?;
        let Some(loaded) = &loaded[n] else {
            return Err(Violation::new(ENDS, format!("saga {n} was never started")));
        };
        let row = &loaded.record.row;
        stage.count(row.status.as_str(), 1);
        match row.status {
            Status::Completed => judged.whole()?,
            Status::Undone => judged.nothing_left()?,
            Status::Parked => judged.parked(plan, row.reason, row.due_at.is_some())?,
            status => {
                let what = format!("saga {n} is still {}: {row:?}", status.as_str());
                return Err(Violation::new(ENDS, what));
            }
        }
        judged.signal(loaded, row.status)?;
        judged.signal_soon(plan)?;
        let payload = n.to_string();
        let events = published.iter().filter(|event| event.payload() == payload.as_bytes()).count();
        if events != usize::from(row.status == Status::Completed) {
            return Err(Violation::new(
                PUBLISHED,
                format!("saga {n} is {}: {events} events", row.status.as_str()),
            ));
        }
        let expected = match row.status {
            Status::Completed => Some(Got::Completed(u32::try_from(n).unwrap_or_default())),
            Status::Undone => Some(Got::Undone),
            _ => None,
        };
        if got[n] != expected {
            return Err(Violation::new(ANSWER, format!("saga {n}: {:?}, not {expected:?}", got[n])));
        }
    }
    Ok(())
}

/// `cancelled`: sagas whose cancel was recorded before their pivot began.
pub(super) fn cancelled(cancelled: &BTreeSet<usize>, loaded: &[Option<Loaded>]) -> Result<(), Violation> {
    for n in cancelled {
        let status = loaded.get(*n).and_then(Option::as_ref).map(|loaded| loaded.record.row.status);
        if status == Some(Status::Completed) {
            return Err(Violation::new(CANCELLED, format!("saga {n} is completed")));
        }
    }
    Ok(())
}

struct Judged<'a> {
    n: usize,
    saga: &'a SagaPlan,
    network: &'a Network,
    entries: &'a [Entry],
}

type Notes = Vec<(Duration, Note)>;

impl Judged<'_> {
    fn notes(&self, op: &str) -> Notes {
        self.network.ledger().notes.get(&(self.n, op.to_owned())).cloned().unwrap_or_default()
    }

    fn effect(&self, op: &str) -> Option<Duration> {
        let notes = self.notes(op);
        notes.iter().find(|(_, note)| matches!(note, Note::Effect(_))).map(|(at, _)| *at)
    }

    fn broken(&self, law: &'static str, what: impl std::fmt::Display) -> Violation {
        Violation::new(law, format!("saga {}: {what}", self.n))
    }

    /// What holds at every moment, whatever the saga ended in.
    fn safety(&self, plan: &Plan) -> Result<(), Violation> {
        for (name, step) in self.saga.steps() {
            let (forward, undo) = (self.notes(name), self.notes(&format!("{name}/undo")));
            for (op, notes) in [(name.to_owned(), &forward), (format!("{name}/undo"), &undo)] {
                self.once(&op, step, notes)?;
            }
            let begun = self.entries.iter().any(|entry| entry.step.name == name && entry.op != Op::Undo);
            if !undo.is_empty() && !begun && forward.is_empty() {
                return Err(self.broken(NOT_BEFORE, format_args!("{name} was undone")));
            }
            if let (Some(undone), Some(last)) = (
                self.effect(&format!("{name}/undo")),
                forward.iter().rev().find(|(_, note)| matches!(note, Note::Effect(_))),
            ) && last.0 > undone
            {
                return Err(
                    self.broken(NOT_AFTER, format_args!("{name} at {:?}, undone at {undone:?}", last.0))
                );
            }
        }
        let undone = |name: &str| !self.notes(&format!("{name}/undo")).is_empty();
        if self.effect(super::plan::PIVOT).is_some()
            && let Some((name, _)) = self.saga.steps().into_iter().find(|(name, _)| undone(name))
        {
            return Err(self.broken(PIVOT, format_args!("{name} was undone")));
        }
        let _ = plan;
        Ok(())
    }

    fn once(&self, op: &str, step: &StepPlan, notes: &Notes) -> Result<(), Violation> {
        let effects = notes.iter().filter(|(_, note)| matches!(note, Note::Effect(_))).count();
        if effects > 1 {
            return Err(self.broken(ONCE, format_args!("{op} {effects} times")));
        }
        let mut keys: Vec<&String> = notes
            .iter()
            .filter_map(|(_, note)| if let Note::Call(key) = note { Some(key) } else { None })
            .collect();
        keys.dedup();
        if keys.len() > 1 {
            return Err(self.broken(KEY, format_args!("{op}: {keys:?}")));
        }
        if step.keyed {
            return Ok(());
        }
        // Nothing protects it: before another call somebody knew that the one before had no effect.
        let mut open = false;
        for (at, note) in notes {
            match note {
                Note::Call(_) if open => {
                    return Err(self.broken(BLIND, format_args!("{op} was called again at {at:?}")));
                }
                Note::Call(_) => open = true,
                Note::NoEffect | Note::Refused | Note::LookedUpNothing => open = false,
                Note::Effect(_) | Note::Answered | Note::Fenced => {}
            }
        }
        Ok(())
    }

    fn whole(&self) -> Result<(), Violation> {
        for (name, _) in self.saga.steps() {
            if self.effect(name).is_none() {
                return Err(self.broken(WHOLE, format_args!("{name} did not happen")));
            }
            if !self.notes(&format!("{name}/undo")).is_empty() {
                return Err(self.broken(WHOLE, format_args!("{name} was undone")));
            }
        }
        Ok(())
    }

    fn nothing_left(&self) -> Result<(), Violation> {
        let mut undone: Vec<(Duration, &str)> = Vec::new();
        for (name, step) in self.saga.steps() {
            let is_before = super::plan::BEFORE.contains(&name);
            let undo = self.effect(&format!("{name}/undo"));
            match (self.effect(name), undo) {
                (Some(_), None) if step.undo => {
                    return Err(self.broken(UNDONE, format_args!("{name} is left")));
                }
                (Some(_), _) if !is_before => {
                    return Err(self.broken(UNDONE, format_args!("{name} happened")));
                }
                (Some(_), Some(at)) => undone.push((at, name)),
                _ => {}
            }
        }
        // Parallel ones began together.
        let together = |one: &str, other: &str| self.saga.parallel && one == "b0" && other == "b1";
        for pair in undone.windows(2) {
            if pair[0].0 < pair[1].0 && !together(pair[0].1, pair[1].1) {
                return Err(self.broken(REVERSE, format_args!("{} before {}", pair[0].1, pair[1].1)));
            }
        }
        Ok(())
    }

    /// Somebody has to find out or to decide: for a reason that the participants know of.
    fn parked(&self, plan: &Plan, reason: Option<ParkReason>, looked_up: bool) -> Result<(), Violation> {
        let attempts_max = plan.settings.attempts_max as usize;
        let attempts = |name: &str, undo: bool| {
            let of =
                self.entries.iter().filter(|entry| entry.step.name == name && (entry.op == Op::Undo) == undo);
            // An atomic step has no `begin`: its failed attempts stand for themselves.
            let atomic = self.saga.steps().into_iter().any(|(step, plan)| step == name && plan.atomic);
            let counts = if atomic { EntryKind::Failed } else { EntryKind::Begin };
            of.filter(|entry| entry.kind == counts).count()
        };
        let refused = |op: &str| self.notes(op).iter().any(|(_, note)| *note == Note::Refused);
        let steps = self.saga.steps();
        let justified = match reason {
            Some(ParkReason::UnknownResult) => steps.iter().any(|(name, step)| {
                let begun = attempts(name, false);
                begun > 0 && (if step.keyed { begun >= attempts_max } else { !step.lookup || looked_up })
            }),
            Some(ParkReason::GuardExpired) => steps.iter().any(|(_, step)| step.safe_for_ms.is_some()),
            Some(ParkReason::UndoStuck) => steps.iter().any(|(name, step)| {
                let begun = attempts(name, true);
                begun >= attempts_max || (begun > 0 && !step.keyed) || step.safe_for_ms.is_some()
            }),
            Some(ParkReason::ForwardStuck) => {
                super::plan::AFTER.iter().zip(&self.saga.after).any(|(name, step)| {
                    refused(name) || attempts(name, false) >= attempts_max || step.safe_for_ms.is_some()
                })
            }
            // A pivot, or a step without undo, that was refused after an attempt with unknown result.
            Some(ParkReason::NoHandler) => {
                refused(super::plan::PIVOT) && attempts(super::plan::PIVOT, false) > 1
                    || attempts(super::plan::PIVOT, false) >= attempts_max
            }
            _ => false,
        };
        if justified { Ok(()) } else { Err(self.broken(PARKED, format_args!("{reason:?}"))) }
    }

    /// Where nothing is in the way, a saga that waits goes on at once when its signal comes.
    fn signal_soon(&self, plan: &Plan) -> Result<(), Violation> {
        let settings = &plan.settings;
        let calm =
            plan.faults.is_empty() && settings.running_max >= plan.sagas.len() && !settings.slow_clocks;
        let of_kind =
            |kind| self.entries.iter().find(|entry| entry.kind == kind && entry.step.name == "/signal/go");
        let (Some(signal_ms), Some(waits), Some(seen)) =
            (self.saga.signal_ms, of_kind(EntryKind::Sleep), of_kind(EntryKind::Signal))
        else {
            return Ok(());
        };
        // The entry may be written by an atomic step, at the end of it.
        let bound_ms = 2 * settings.poll_ms + 40 * settings.journal_ms + 500 + 2 * settings.timeout_ms;
        let came = (1_000_000 + signal_ms).max(waits.at.0);
        if calm && came + bound_ms < seen.at.0 {
            let what = format!("it could be seen at {came}, and was at {}", seen.at.0);
            return Err(self.broken(SEEN, what));
        }
        Ok(())
    }

    /// The code refuses without its signal; with one that came long before, it does not.
    fn signal(&self, loaded: &Loaded, status: Status) -> Result<(), Violation> {
        let of_signal = |entry: &&Entry| entry.kind == EntryKind::TimedOut && entry.step.name == "/signal/go";
        let timed_out = loaded.entries.iter().find(of_signal);
        let (Some(timed_out), Status::Undone, Some(signal_ms)) = (timed_out, status, self.saga.signal_ms)
        else {
            return Ok(());
        };
        let came = 1_000_000 + signal_ms;
        // The wait ends a moment before it is written down.
        if !loaded.signals.is_empty() && came + 5_000 < timed_out.at.0 {
            let what = format!("it came at {came}, and the wait ended at {}", timed_out.at.0);
            return Err(self.broken(SEEN, what));
        }
        Ok(())
    }
}
