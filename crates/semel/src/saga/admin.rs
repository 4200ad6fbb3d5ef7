//! What a person does about sagas, over any journal: it needs no definitions, so one program can do it for all.
//!
//! A decision names the epoch that the person saw: a saga that has changed meanwhile refuses.

use std::sync::Arc;

use bytes::Bytes;

use super::approval::Approval;
use super::entry::{EntryKind, NewEntry, Op, Safe, StepId};
use super::history::{History, Known, LOOKUP_ATTEMPT, RETRY};
use super::journal::{
    BODY_BYTES_MAX, ENTRIES_MAX, Journal, Loaded, SIGNAL_ID_BYTES_MAX, SagaChange, SagaFilter, SagaNumber,
    SagaRecord, Signal, Signalled,
};
use super::metrics::SagaMetrics;
use super::spec::{NAME_BYTES_MAX, is_name};
use super::state::{RowAnswer, RowEvent, Status};
use crate::intent::identity::IntentId;
use crate::intent::policy::Retention;
use crate::store::StoreError;

/// Who decides, and why: recorded with the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedBy {
    /// Who.
    pub by: String,
    /// Why.
    pub why: String,
}

impl DecidedBy {
    /// Who decides, and why.
    pub fn new(by: impl Into<String>, why: impl Into<String>) -> Self {
        Self { by: by.into(), why: why.into() }
    }

    fn json(&self) -> Bytes {
        Bytes::from(serde_json::json!({ "by": self.by, "why": self.why }).to_string())
    }
}

/// What a person found out about a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolvedAs {
    /// It happened, with this result, as JSON. Of an undo: `null`.
    Applied(Bytes),
    /// It did not happen, and cannot any more.
    NotApplied,
}

/// What became of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminResult {
    /// Recorded; the saga follows it.
    Recorded,
    /// It was so before.
    Already,
    /// Not in this state.
    Refused(Status),
    /// The saga has changed since it was read, or there is none.
    Stale,
}

/// Why a decision could not be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The step was never begun, or its result is known.
    #[error(
        "{step} was never begun, or is done: there is nothing to resolve; `semel saga show` lists what is open"
    )]
    NothingToResolve {
        /// The step.
        step: StepId,
    },
    /// Undoing would leave what the pivot did.
    #[error("its pivot has begun, so it cannot be undone; resolve the pivot, or retry what comes after it")]
    PivotBegun,
    /// The result is not JSON.
    #[error("the result is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// A result, a signal, or the reason is too large.
    #[error("{bytes} bytes are too many, at most {BODY_BYTES_MAX}")]
    TooLarge {
        /// How many.
        bytes: usize,
    },
    /// The journal is full.
    #[error("the saga has {ENTRIES_MAX} entries, and no room for a decision; abandon it")]
    Full,
    /// What would be recorded could be read by anyone with the database.
    #[error(
        "saga {} is sealed, and the key is missing here, so nothing was recorded: it would be in plain text; open the \
         journal with the key (`--keys file:PATH` or `env:NAME`)", number.0
    )]
    Sealed {
        /// The saga.
        number: SagaNumber,
    },
    /// The signal cannot be named so.
    #[error(
        "a signal has a name (1 to {NAME_BYTES_MAX} printable ASCII characters without # and /) and an id (1 to \
         {SIGNAL_ID_BYTES_MAX} bytes)"
    )]
    SignalName,
    /// Somebody said the opposite before, and the first decision counts.
    #[error("saga {} was already {decided}", number.0)]
    AlreadyDecided {
        /// The saga.
        number: SagaNumber,
        /// What they said.
        decided: Approval,
    },
    /// A signal with this id is there, and it does not answer this.
    #[error(
        "saga {} has a signal with the id {id:?}, and it is no decision about {name:?}; `semel saga show` prints it; \
         another id makes this another decision", number.0
    )]
    SignalIdTaken {
        /// The saga.
        number: SagaNumber,
        /// The id.
        id: String,
        /// What was to be decided.
        name: String,
    },
    /// The journal.
    #[error(transparent)]
    Journal(#[from] StoreError),
}

/// What a person can do about sagas. Cheap to clone.
#[derive(Clone)]
pub struct SagaAdmin {
    journal: Arc<dyn Journal>,
    metrics: Option<SagaMetrics>,
}

impl std::fmt::Debug for SagaAdmin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SagaAdmin").finish_non_exhaustive()
    }
}

impl SagaAdmin {
    /// Over this journal.
    pub fn new(journal: impl Journal) -> Self {
        Self { journal: Arc::new(journal), metrics: None }
    }

    /// Counts in these metrics the sagas that are abandoned here.
    pub fn observed_by(mut self, metrics: &SagaMetrics) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }

    /// Lists sagas, newest first.
    pub async fn list(&self, filter: SagaFilter) -> Result<Vec<SagaRecord>, AdminError> {
        Ok(self.journal.list(filter).await?)
    }

    /// The saga of an intent.
    pub async fn find(&self, id: IntentId) -> Result<Option<SagaRecord>, AdminError> {
        Ok(self.journal.find(id).await?)
    }

    /// A saga with its journal and its signals.
    pub async fn load(&self, number: SagaNumber) -> Result<Option<Loaded>, AdminError> {
        Ok(self.journal.load(number).await?)
    }

    /// Has a parked saga go on: what failed is tried again, what was looked up is looked up again.
    pub async fn retry(
        &self,
        number: SagaNumber,
        seen: u64,
        by: &DecidedBy,
    ) -> Result<AdminResult, AdminError> {
        let entry = |_: &History| Ok(intervened(RETRY, by));
        self.decide(number, seen, RowEvent::Decide { epoch: seen }, entry).await
    }

    /// Has a parked saga undone that has not begun its pivot.
    pub async fn compensate(
        &self,
        number: SagaNumber,
        seen: u64,
        by: &DecidedBy,
    ) -> Result<AdminResult, AdminError> {
        let entry = |history: &History| match history.pivot() {
            Some(pivot) if !matches!(pivot.state, Known::Refused(_)) => Err(AdminError::PivotBegun),
            _ => Ok(intervened("/compensate", by)),
        };
        self.decide(number, seen, RowEvent::Compensate { epoch: seen }, entry).await
    }

    /// Records what became of a step, or of its undo, and has the parked saga go on.
    pub async fn resolve(
        &self,
        number: SagaNumber,
        seen: u64,
        step: &StepId,
        undo: bool,
        found: ResolvedAs,
        by: &DecidedBy,
    ) -> Result<AdminResult, AdminError> {
        if let ResolvedAs::Applied(result) = &found {
            check_size(result)?;
            serde_json::from_slice::<serde::de::IgnoredAny>(result)?;
        }
        let undoing = |history: &History| {
            // A step whose definition is gone can be undone by hand.
            let known =
                history.progress(step, false).filter(|_| undo && history.progress(step, true).is_none());
            known.filter(|known| matches!(known.state, Known::Done(_)) || known.perhaps)
        };
        let entry = |history: &History| {
            if undoing(history).is_some() {
                let body = match found {
                    ResolvedAs::Applied(result) => Some(result),
                    ResolvedAs::NotApplied => None,
                };
                return Ok(NewEntry { op: Op::Undo, body, step: step.clone(), ..decision(by) });
            }
            let open = history.progress(step, undo).filter(|known| !matches!(known.state, Known::Done(_)));
            let known = open.ok_or_else(|| AdminError::NothingToResolve { step: step.clone() })?;
            let op = match (undo, known.is_pivot) {
                (true, _) => Op::Undo,
                (false, true) => Op::Pivot,
                (false, false) => Op::Forward,
            };
            let body = match found {
                ResolvedAs::Applied(result) => Some(result),
                ResolvedAs::NotApplied => None,
            };
            Ok(NewEntry { op, body, kind: EntryKind::Decided, step: step.clone(), ..decision(by) })
        };
        self.decide(number, seen, RowEvent::Decide { epoch: seen }, entry).await
    }

    /// Ends a parked saga as it is: nothing is undone, and nothing goes on.
    pub async fn abandon(
        &self,
        number: SagaNumber,
        seen: u64,
        retention: Retention,
        by: &DecidedBy,
    ) -> Result<AdminResult, AdminError> {
        let retention_ms = match retention {
            Retention::Ms(ms) => Some(ms),
            Retention::Forever => None,
        };
        let entry = |_: &History| Ok(intervened("/abandon", by));
        self.decide(number, seen, RowEvent::Abandon { epoch: seen, retention_ms }, entry).await
    }

    /// Asks for a saga to be undone. It is, unless its pivot has begun by then and happens.
    pub async fn cancel(&self, number: SagaNumber, by: &DecidedBy) -> Result<AdminResult, AdminError> {
        let body = by.json();
        check_size(&body)?;
        if let Some(loaded) = self.journal.load(number).await? {
            check_sealed(&loaded)?;
        }
        // Recorded as a signal that no code can wait for, once.
        let signal = Signal { id: CANCEL.to_owned(), name: CANCEL.to_owned(), body };
        match self.journal.signal(number, signal).await? {
            Signalled::TooLate => return self.refused(number).await,
            Signalled::Recorded | Signalled::Already | Signalled::TooMany => {}
        }
        let changed = self.journal.change(number, SagaChange::of(RowEvent::Cancel)).await?;
        match changed.answer {
            RowAnswer::Refused | RowAnswer::Lost => self.refused(number).await,
            RowAnswer::Already => Ok(AdminResult::Already),
            RowAnswer::Done | RowAnswer::Signalled => Ok(AdminResult::Recorded),
        }
    }

    /// Sends a signal. The same id again is the same signal.
    pub async fn signal(&self, number: SagaNumber, signal: Signal) -> Result<Signalled, AdminError> {
        if !is_name(&signal.name)
            || signal.id.starts_with('/')
            || signal.id.is_empty()
            || signal.id.len() > SIGNAL_ID_BYTES_MAX
        {
            return Err(AdminError::SignalName);
        }
        check_size(&signal.body)?;
        serde_json::from_slice::<serde::de::IgnoredAny>(&signal.body)?;
        if let Some(loaded) = self.journal.load(number).await? {
            check_sealed(&loaded)?;
        }
        Ok(self.journal.signal(number, signal).await?)
    }

    async fn refused(&self, number: SagaNumber) -> Result<AdminResult, AdminError> {
        let loaded = self.journal.load(number).await?;
        Ok(loaded.map_or(AdminResult::Stale, |loaded| AdminResult::Refused(loaded.record.row.status)))
    }

    /// Applies an event to a parked saga, with the entry that says who and why.
    async fn decide(
        &self,
        number: SagaNumber,
        seen: u64,
        event: RowEvent,
        entry: impl FnOnce(&History) -> Result<NewEntry, AdminError>,
    ) -> Result<AdminResult, AdminError> {
        let Some(loaded) = self.journal.load(number).await? else { return Ok(AdminResult::Stale) };
        check_sealed(&loaded)?;
        let row = loaded.record.row;
        if row.epoch != seen {
            return Ok(AdminResult::Stale);
        }
        if row.status != Status::Parked {
            return Ok(AdminResult::Refused(row.status));
        }
        let name = loaded.record.name;
        let history = History::new(loaded.entries);
        if history.next_seq() > 2 * ENTRIES_MAX && !matches!(event, RowEvent::Abandon { .. }) {
            return Err(AdminError::Full);
        }
        let entry = entry(&history)?;
        check_size(entry.input.as_ref().unwrap_or(&Bytes::new()))?;
        // Nothing else writes to a parked saga in this epoch.
        let change = SagaChange::new(event, history.next_seq(), vec![entry]);
        let abandons = matches!(change.event, RowEvent::Abandon { .. });
        let changed = self.journal.change(number, change).await?;
        if abandons && changed.answer == RowAnswer::Done {
            self.metrics.iter().for_each(|metrics| metrics.ended(&name, Status::Abandoned));
        }
        Ok(match (changed.answer, changed.row) {
            (RowAnswer::Done | RowAnswer::Signalled, _) => AdminResult::Recorded,
            (RowAnswer::Already, _) => AdminResult::Already,
            (RowAnswer::Refused, Some(row)) => AdminResult::Refused(row.status),
            (RowAnswer::Lost | RowAnswer::Refused, _) => AdminResult::Stale,
        })
    }
}

/// The name and the id of the signal that records who cancelled. No code can wait for it: names have no slash.
const CANCEL: &str = "/cancel";

fn check_sealed(loaded: &Loaded) -> Result<(), AdminError> {
    let number = loaded.record.number;
    if loaded.is_protected() { Err(AdminError::Sealed { number }) } else { Ok(()) }
}

fn check_size(body: &Bytes) -> Result<(), AdminError> {
    let bytes = body.len();
    if bytes <= BODY_BYTES_MAX { Ok(()) } else { Err(AdminError::TooLarge { bytes }) }
}

/// A decision, with who and why.
fn decision(by: &DecidedBy) -> NewEntry {
    let step = StepId { name: String::new(), nth: 0 };
    let (op, safe, input) = (Op::Forward, Safe::Always, Some(by.json()));
    NewEntry { kind: EntryKind::Decided, step, op, attempt: LOOKUP_ATTEMPT, safe, input, body: None }
}

/// A decision that is not about a step.
fn intervened(how: &str, by: &DecidedBy) -> NewEntry {
    let step = StepId { name: how.to_owned(), nth: 0 };
    let decided = decision(by);
    NewEntry { kind: EntryKind::Operator, step, body: decided.input.clone(), input: None, ..decided }
}
