//! A saga with its journal as JSON: for `semel saga export`, and for tests that run today's code on it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::entry::{Entry, EntryKind, Op, StepId};
use super::journal::{Loaded, SagaNumber, SagaRecord, Signal};
use super::state::{ParkReason, SagaRow, Status, UndoCause};
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Intent, Operation};
use crate::intent::key::Key;
use crate::intent::policy::StoreTime;
use crate::intent::scope::Scope;

/// The form that is written today, and the newest that is read.
const FORM: u32 = 1;

/// Why an exported saga cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It is no JSON, or not of this form.
    #[error("not an exported saga: {0}; write it with `semel saga export`")]
    NotExported(#[from] serde_json::Error),
    /// A newer semel wrote it.
    #[error("written by a newer semel (form {form}, this one reads up to {FORM}); use that semel")]
    Newer {
        /// Its form.
        form: u32,
    },
    /// A value that it cannot have.
    #[error("{field} is {value:?}, which no saga has")]
    Value {
        /// Of which field.
        field: &'static str,
        /// The value.
        value: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Exported {
    semel_saga: u32,
    number: u64,
    name: String,
    version: u32,
    scope: String,
    operation: String,
    key: String,
    status: String,
    reason: Option<String>,
    cause: Option<String>,
    epoch: u64,
    created_at: u64,
    deadline: Option<u64>,
    input: Content,
    outcome: Option<Content>,
    entries: Vec<ExportedEntry>,
    #[serde(default)]
    signals: Vec<ExportedSignal>,
}

#[derive(Serialize, Deserialize)]
struct ExportedEntry {
    seq: u32,
    kind: String,
    step: String,
    nth: u32,
    op: String,
    attempt: u32,
    epoch: u64,
    at: u64,
    safe_until: Option<u64>,
    input: Option<Content>,
    body: Option<Content>,
}

#[derive(Serialize, Deserialize)]
struct ExportedSignal {
    id: String,
    name: String,
    body: Content,
}

/// JSON as it is, anything else as text.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Content {
    Json(Value),
    Text(String),
}

impl Content {
    fn of(bytes: &Bytes) -> Self {
        let text = || Self::Text(String::from_utf8_lossy(bytes).into_owned());
        serde_json::from_slice(bytes).map_or_else(|_| text(), Self::Json)
    }

    fn bytes(self) -> Bytes {
        match self {
            Self::Json(json) => Bytes::from(json.to_string()),
            Self::Text(text) => Bytes::from(text),
        }
    }
}

impl Loaded {
    /// The saga with its journal as JSON, its key and its inputs included: for `semel::saga::test::replay`. An error if
    /// something of it is compressed or sealed and was not opened.
    pub fn export(&self) -> Result<String, serde_json::Error> {
        if self.is_protected() {
            let why =
                "the saga is compressed or sealed; open the journal as a `ProtectedJournal`, with the keys";
            return Err(serde::ser::Error::custom(why));
        }
        let SagaRecord { number, row, intent, name, version, input, outcome, created_at, .. } = &self.record;
        let exported = Exported {
            semel_saga: FORM,
            number: number.0,
            name: name.clone(),
            version: *version,
            scope: intent.scope().as_str().to_owned(),
            operation: intent.operation().as_str().to_owned(),
            key: intent.key().as_str().to_owned(),
            status: row.status.as_str().to_owned(),
            reason: row.reason.map(|reason| reason.as_str().to_owned()),
            cause: row.undo.map(|cause| cause.as_str().to_owned()),
            epoch: row.epoch,
            created_at: created_at.0,
            deadline: row.deadline.map(|at| at.0),
            input: Content::of(input),
            outcome: outcome.as_ref().map(Content::of),
            entries: self.entries.iter().map(ExportedEntry::of).collect(),
            signals: self.signals.iter().map(ExportedSignal::of).collect(),
        };
        serde_json::to_string_pretty(&exported)
    }

    /// The saga that [`export`](Self::export) wrote. It belongs to no journal: nothing runs it.
    pub fn import(json: &[u8]) -> Result<Self, ImportError> {
        let form: Value = serde_json::from_slice(json)?;
        let form = form.get("semel_saga").and_then(Value::as_u64).and_then(|form| u32::try_from(form).ok());
        if let Some(form) = form.filter(|form| *form > FORM) {
            return Err(ImportError::Newer { form });
        }
        let exported: Exported = serde_json::from_slice(json)?;
        let wrong = |field, value: &str| ImportError::Value { field, value: value.to_owned() };
        let scope = Scope::from_text(&exported.scope).map_err(|_| wrong("scope", &exported.scope))?;
        let operation =
            Operation::new(&exported.operation).map_err(|_| wrong("operation", &exported.operation))?;
        let key = Key::new(exported.key.as_str()).map_err(|_| wrong("key", "a key that is not shown"))?;
        let row = SagaRow {
            status: Status::from_name(&exported.status).ok_or_else(|| wrong("status", &exported.status))?,
            reason: named(exported.reason.as_deref(), "reason", &ParkReason::ALL, ParkReason::as_str)?,
            undo: named(exported.cause.as_deref(), "cause", &UndoCause::ALL, UndoCause::as_str)?,
            epoch: exported.epoch,
            worker: None,
            due_at: None,
            deadline: exported.deadline.map(StoreTime),
            signals: u32::try_from(exported.signals.len()).unwrap_or(u32::MAX),
            cancelled: false,
            expires_at: None,
        };
        let entries = exported.entries.into_iter().map(ExportedEntry::entry);
        let entries: Vec<Entry> = entries.collect::<Result<_, _>>()?;
        let record = SagaRecord {
            number: SagaNumber(exported.number),
            row,
            intent: Intent::new(scope, operation, key),
            // It is not compared: the input is here.
            fingerprint: Fingerprint::from_parts([0; 32], 0),
            name: exported.name,
            version: exported.version,
            input: exported.input.bytes(),
            outcome: exported.outcome.map(Content::bytes),
            created_at: StoreTime(exported.created_at),
        };
        let now = entries.iter().map(|entry| entry.at).max().unwrap_or(record.created_at);
        let signals = exported.signals.into_iter();
        let signals =
            signals.map(|one| Signal { id: one.id, name: one.name, body: one.body.bytes() }).collect();
        Ok(Self { record, entries, signals, now })
    }
}

impl ExportedEntry {
    fn of(entry: &Entry) -> Self {
        Self {
            seq: entry.seq,
            kind: entry.kind.as_str().to_owned(),
            step: entry.step.name.clone(),
            nth: entry.step.nth,
            op: entry.op.as_str().to_owned(),
            attempt: entry.attempt,
            epoch: entry.epoch,
            at: entry.at.0,
            safe_until: entry.safe_until.map(|at| at.0),
            input: entry.input.as_ref().map(Content::of),
            body: entry.body.as_ref().map(Content::of),
        }
    }

    fn entry(self) -> Result<Entry, ImportError> {
        let wrong = |field, value: &str| ImportError::Value { field, value: value.to_owned() };
        let kind = named(Some(&self.kind), "kind", &EntryKind::ALL, EntryKind::as_str)?;
        let op = named(Some(&self.op), "op", &Op::ALL, Op::as_str)?;
        Ok(Entry {
            seq: self.seq,
            kind: kind.ok_or_else(|| wrong("kind", &self.kind))?,
            step: StepId { name: self.step, nth: self.nth },
            op: op.ok_or_else(|| wrong("op", &self.op))?,
            attempt: self.attempt,
            epoch: self.epoch,
            at: StoreTime(self.at),
            safe_until: self.safe_until.map(StoreTime),
            input: self.input.map(Content::bytes),
            body: self.body.map(Content::bytes),
        })
    }
}

impl ExportedSignal {
    fn of(signal: &Signal) -> Self {
        Self { id: signal.id.clone(), name: signal.name.clone(), body: Content::of(&signal.body) }
    }
}

fn named<T: Copy>(
    name: Option<&str>,
    field: &'static str,
    all: &[T],
    as_str: impl Fn(T) -> &'static str,
) -> Result<Option<T>, ImportError> {
    let Some(name) = name else { return Ok(None) };
    let found = all.iter().copied().find(|one| as_str(*one) == name);
    found.map(Some).ok_or_else(|| ImportError::Value { field, value: name.to_owned() })
}
