//! A saga as JSON. Names here are an interface: add, never rename.

use bytes::Bytes;
use semel::StoreTime;
use semel::saga::{Entry, EntryKind, Op, SagaRecord, Signal, Status, is_protected};
use serde::Serialize;
use serde_json::Value;

use super::open::{OpenStep, named};
use crate::moment::rfc3339;

/// What `--json` shows of a saga.
#[derive(Serialize)]
pub(super) struct SagaView {
    pub(super) number: u64,
    pub(super) name: String,
    /// The version of the definition it began with.
    version: u32,
    status: &'static str,
    /// Why it is parked.
    reason: Option<&'static str>,
    /// Why it is undone.
    cause: Option<&'static str>,
    tenant: String,
    scope: String,
    key_hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// The step that was begun last; of an ended saga, only `show` says it.
    step: Option<String>,
    epoch: u64,
    /// The worker that has it.
    worker: Option<u64>,
    cancelled: bool,
    age_ms: u64,
    created_at: String,
    due_at: Option<String>,
    deadline: Option<String>,
    expires_at: Option<String>,
}

impl SagaView {
    pub(super) fn new(record: &SagaRecord, step: Option<String>, now: StoreTime, show_keys: bool) -> Self {
        let (row, intent) = (&record.row, &record.intent);
        Self {
            number: record.number.0,
            name: record.name.clone(),
            version: record.version,
            status: row.status.as_str(),
            reason: row.reason.map(semel::saga::ParkReason::as_str),
            cause: row.undo.map(semel::saga::UndoCause::as_str),
            tenant: intent.scope().tenant_text().to_owned(),
            scope: intent.scope().as_str().to_owned(),
            key_hash: intent.key().short_hash(),
            key: show_keys.then(|| intent.key().as_str().to_owned()),
            step,
            epoch: row.epoch,
            worker: row.worker.map(|worker| worker.0),
            cancelled: row.cancelled,
            age_ms: now.since_ms(record.created_at),
            created_at: rfc3339(record.created_at),
            due_at: row.due_at.map(rfc3339),
            deadline: row.deadline.map(rfc3339),
            expires_at: row.expires_at.map(rfc3339),
        }
    }
}

/// One entry of the journal.
#[derive(Serialize)]
pub(super) struct EntryView {
    seq: u32,
    at: String,
    step: String,
    op: &'static str,
    attempt: u32,
    epoch: u64,
    kind: &'static str,
    safe_until: Option<String>,
    /// The step's input: in its first entry.
    input: Option<Value>,
    /// The result; a text where it is a refusal or an error.
    body: Option<Value>,
    /// Of a decision: who.
    by: Option<String>,
    /// Of a decision: why.
    why: Option<String>,
}

impl EntryView {
    pub(super) fn new(entry: &Entry) -> Self {
        let decided = decided_by(entry);
        let (by, why) = decided.clone().unzip();
        // Who and why are shown once, under their names.
        let is_note = |bytes: &&Bytes| decided.is_none() || note(bytes).is_none();
        Self {
            seq: entry.seq,
            at: rfc3339(entry.at),
            step: entry.step.to_string(),
            op: entry.op.as_str(),
            attempt: entry.attempt,
            epoch: entry.epoch,
            kind: entry.kind.as_str(),
            safe_until: entry.safe_until.map(rfc3339),
            input: entry.input.as_ref().filter(is_note).map(json_value),
            body: entry.body.as_ref().filter(is_note).map(|body| body_value(entry.kind, body)),
            by,
            why,
        }
    }
}

/// A signal. `by` and `why` are there for a cancellation.
#[derive(Serialize)]
pub(super) struct SignalView {
    id: String,
    name: String,
    body: Value,
}

impl SignalView {
    pub(super) fn new(signal: &Signal) -> Self {
        Self { id: signal.id.clone(), name: signal.name.clone(), body: json_value(&signal.body) }
    }
}

/// A step, or its undo, that has no result.
#[derive(Serialize)]
pub(super) struct OpenView {
    step: String,
    op: &'static str,
    state: &'static str,
    why: Option<String>,
    safe_until: Option<String>,
}

impl OpenView {
    pub(super) fn new(open: &OpenStep) -> Self {
        Self {
            step: open.step.to_string(),
            op: open.op.as_str(),
            state: open.state.as_str(),
            why: open.why.clone(),
            safe_until: open.safe_until.map(rfc3339),
        }
    }
}

/// What it ended in: the result as JSON, or why it was undone as a text.
pub(super) fn outcome_value(record: &SagaRecord) -> Option<Value> {
    let outcome = record.outcome.as_ref()?;
    Some(match record.row.status {
        Status::Completed => json_value(outcome),
        _ => text_value(outcome),
    })
}

/// The bytes as JSON; as text where they are not; that they are sealed where the key is missing.
pub(super) fn json_value(bytes: &Bytes) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|_| text_value(bytes))
}

fn text_value(bytes: &Bytes) -> Value {
    if is_protected(bytes) {
        return serde_json::json!({ "sealed": "--keys opens it" });
    }
    Value::String(String::from_utf8_lossy(bytes).into_owned())
}

fn body_value(kind: EntryKind, body: &Bytes) -> Value {
    match kind {
        EntryKind::Refused | EntryKind::Failed | EntryKind::Unknown => text_value(body),
        EntryKind::Sleep => match std::str::from_utf8(body).ok().and_then(|ms| ms.parse().ok()) {
            Some(until) => Value::String(rfc3339(StoreTime(until))),
            None => text_value(body),
        },
        _ => json_value(body),
    }
}

/// Who decided, and why: of what a person decided, not of what a lookup found.
pub(super) fn decided_by(entry: &Entry) -> Option<(String, String)> {
    match entry.kind {
        EntryKind::Decided => note(entry.input.as_ref()?),
        EntryKind::Operator => note(entry.body.as_ref()?),
        _ => None,
    }
}

/// `{"by": …, "why": …}`
pub(super) fn note(bytes: &Bytes) -> Option<(String, String)> {
    let note: Value = serde_json::from_slice(bytes).ok()?;
    let text = |name: &str| note.get(name)?.as_str().map(str::to_owned);
    Some((text("by")?, text("why")?))
}

/// One line for the timeline.
pub(super) fn entry_line(entry: &Entry) -> String {
    let value = entry.body.as_ref().map(|body| body_value(entry.kind, body));
    let said = value.map(|value| match value {
        Value::String(text) if entry.kind != EntryKind::Done => text,
        value => value.to_string(),
    });
    let by = |(by, why): (String, String)| format!("by {by}: {why}");
    match (entry.kind, decided_by(entry)) {
        (EntryKind::Operator, Some(decided)) => by(decided),
        (EntryKind::Decided, decided) => {
            let found = match entry.body.as_ref().map(json_value) {
                Some(Value::Null) if entry.op == Op::Undo => "it happened".to_owned(),
                Some(result) => format!("it happened: {result}"),
                None => "it did not happen".to_owned(),
            };
            let sealed = entry.input.as_deref().is_some_and(is_protected);
            let by_whom = || if sealed { "by a person; sealed" } else { "by a lookup" }.to_owned();
            format!("{found}, {}", decided.map_or_else(by_whom, by))
        }
        (EntryKind::Begin, _) => {
            entry.input.as_ref().map(|input| json_value(input).to_string()).unwrap_or_default()
        }
        (EntryKind::Sleep, _) => format!("until {}", said.unwrap_or_default()),
        _ => said.unwrap_or_default(),
    }
}

/// The step of an entry for the timeline; of a decision about the saga, what was decided.
pub(super) fn entry_step(entry: &Entry) -> String {
    match entry.kind {
        EntryKind::Operator | EntryKind::Sleep | EntryKind::Signal | EntryKind::TimedOut => {
            named(&entry.step, entry.op)
        }
        _ => entry.step.to_string(),
    }
}
