//! The code alone, on a journal: does it ask for the same? Nothing is called, and no clock runs.

use std::collections::BTreeSet;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::FutureExt;

use crate::saga::definition::{AnyDefinition, CodeEnd, CodeError};
use crate::saga::entry::{Entry, EntryKind, Op, StepId};
use crate::saga::forward::is_same_input;
use crate::saga::handle::{Ask, Asks, Reply, Wanted};
use crate::saga::history::{History, Known};
use crate::saga::journal::SagaRecord;
use crate::saga::state::Status;

/// The code asks for something else than its journal has: such a saga is parked as `changed`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ChangedStep {
    /// Which step, where it is about one.
    pub step: Option<String>,
    /// What is different.
    pub why: String,
    /// What the journal has: the step's input.
    pub journal: Option<String>,
    /// What the code asks for: its input, or the step it asks for instead.
    pub code: Option<String>,
}

impl fmt::Display for ChangedStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(step) = &self.step {
            write!(f, "{step}: ")?;
        }
        f.write_str(&self.why)?;
        if let Some(journal) = &self.journal {
            write!(f, "\n  the journal has {journal}")?;
        }
        if let Some(code) = &self.code {
            write!(f, "\n  the code asks for {code}")?;
        }
        Ok(())
    }
}

/// How the code went over a journal: it ended, or it waits for something that the journal does not have yet.
pub(super) type AskedAgain = Result<Option<CodeEnd>, ChangedStep>;

/// Runs the code; finished steps answer from the journal.
pub(super) fn ask_again<App: Send + Sync + ?Sized + 'static>(
    definition: &dyn AnyDefinition<App>,
    app: Arc<App>,
    record: &SagaRecord,
    history: &History,
) -> AskedAgain {
    let asks = Asks::new(record.intent.clone(), record.version);
    let mut code = AssertUnwindSafe(definition.run(&asks, app, &record.input)).catch_unwind();
    let mut open: Vec<Ask> = Vec::new();
    let mut asked = BTreeSet::new();
    loop {
        if let Poll::Ready(end) = code.poll_unpin(&mut Context::from_waker(Waker::noop())) {
            let end = end.map_err(|_| changed(None, "the code panicked"))?;
            if let Err(CodeError::Unreadable(why)) = &end {
                return Err(changed(None, why));
            }
            return match not_asked(history, &asked) {
                Some(entry) => {
                    let end = "nothing more: it ended".to_owned();
                    Err(ChangedStep { code: Some(end), ..missing(history, entry) })
                }
                None => Ok(Some(end)),
            };
        }
        let new = asks.take();
        if !new.is_empty() {
            for ask in new {
                check(history, &ask)?;
                asked.insert(ask.step.clone());
                open.push(ask);
            }
            continue;
        }
        if let Some(why) = asks.wrong() {
            return Err(changed(None, &why));
        }
        // In the order of the journal, one answer after the other: as the engine does.
        let known = open.iter().enumerate().filter_map(|(at, ask)| Some((answer(history, ask)?, at)));
        let Some(((_, reply), at)) = known.min_by_key(|((seq, _), _)| *seq) else { break };
        let _ = open.remove(at).reply.send(reply);
    }
    let Some(first) = open.first() else {
        return Err(changed(None, WAITS));
    };
    if let Some(entry) = not_asked(history, &asked) {
        return Err(ChangedStep { code: Some(described(first)), ..missing(history, entry) });
    }
    if record.row.status == Status::Completed {
        let more = changed(Some(&first.step), "the code asks for it, and the saga ended without it");
        return Err(ChangedStep { code: Some(described(first)), ..more });
    }
    Ok(None)
}

fn changed(step: Option<&StepId>, why: &str) -> ChangedStep {
    ChangedStep { step: step.map(ToString::to_string), why: why.to_owned(), journal: None, code: None }
}

fn missing(history: &History, entry: &Entry) -> ChangedStep {
    let why = "the journal has it, and the code does not ask for it any more";
    let input = history.progress(&entry.step, false).map(|known| text(&known.input));
    ChangedStep { journal: input.filter(|input| !input.is_empty()), ..changed(Some(&entry.step), why) }
}

fn described(ask: &Ask) -> String {
    match &ask.wanted {
        Wanted::Step { input, .. } => format!("{} with {}", ask.step, text(input)),
        Wanted::Sleep { ms } => format!("a sleep of {ms} ms"),
        Wanted::Signal { .. } => ask.step.to_string(),
    }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn check(history: &History, ask: &Ask) -> Result<(), ChangedStep> {
    let Wanted::Step { op, input } = &ask.wanted else { return Ok(()) };
    let Some(known) = history.progress(&ask.step, false) else { return Ok(()) };
    let (journal, code) = (Some(text(&known.input)), Some(text(input)));
    if !is_same_input(&known.input, input) {
        return Err(ChangedStep { journal, code, ..changed(Some(&ask.step), "its input is another one") });
    }
    if known.is_pivot != (*op == Op::Pivot) {
        let was =
            if known.is_pivot { "it was the pivot, and is none" } else { "it is the pivot, and was none" };
        return Err(changed(Some(&ask.step), was));
    }
    Ok(())
}

/// The answer that the journal has, with the number of its entry.
fn answer(history: &History, ask: &Ask) -> Option<(u32, Reply)> {
    match &ask.wanted {
        Wanted::Step { op, .. } => {
            let known = history.progress(&ask.step, false)?;
            // Past the pivot a refusal is no answer: the saga is parked.
            let past_pivot =
                *op == Op::Forward && history.pivot_done().is_some_and(|done| done < known.first);
            match known.state {
                Known::Done(result) => Some((known.last, Reply::Done(result))),
                Known::Refused(why) if !past_pivot => Some((known.last, Reply::Refused(why))),
                Known::Nothing | Known::Failed(_) | Known::Refused(_) => None,
            }
        }
        Wanted::Sleep { .. } | Wanted::Signal { .. } => {
            let mut entries = history.entries().iter().filter(|entry| entry.step == ask.step);
            let ended =
                entries.find(|entry| matches!(entry.kind, EntryKind::Signal | EntryKind::TimedOut))?;
            let reply = match (&ask.wanted, ended.kind) {
                (Wanted::Sleep { .. }, _) => Reply::Done(Bytes::new()),
                (_, EntryKind::Signal) => Reply::Done(ended.body.clone().unwrap_or_default()),
                _ => Reply::TimedOut,
            };
            Some((ended.seq, reply))
        }
    }
}

fn not_asked<'h>(history: &'h History, asked: &BTreeSet<StepId>) -> Option<&'h Entry> {
    let entries = history.entries().iter();
    let mut entries = entries.filter(|entry| entry.op != Op::Undo && entry.kind != EntryKind::Operator);
    entries.find(|entry| !asked.contains(&entry.step))
}

/// What is said of code that waits for something else than its steps.
const WAITS: &str = "the code waits for something that is no step; its journal cannot have it";

impl ChangedStep {
    /// It is not about what the code asks for, but about what it waits for.
    pub(super) fn is_about_waiting(&self) -> bool {
        self.why == WAITS
    }
}
