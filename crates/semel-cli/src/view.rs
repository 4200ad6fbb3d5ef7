//! A record as JSON.

use semel::store::{Decision, Record};
use semel::{Body, Outcome, State, StoreTime};
use serde::Serialize;

use crate::moment::rfc3339;

/// What `--json` shows of a record. Names here are an interface: add, never rename.
#[derive(Serialize)]
pub(crate) struct RecordView {
    pub(crate) id: String,
    pub(crate) state: &'static str,
    /// How long it has been in that state.
    pub(crate) age_ms: u64,
    pub(crate) operation: String,
    pub(crate) tenant: String,
    pub(crate) scope: String,
    pub(crate) key_hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    pub(crate) effect: &'static str,
    pub(crate) epoch: u64,
    pub(crate) attempts: u32,
    pub(crate) created_at: String,
    pub(crate) changed_at: String,
    pub(crate) lease_until: String,
    pub(crate) expires_at: Option<String>,
    /// Until when the other side remembers the key of an unfinished keyed intent.
    pub(crate) safe_until: Option<String>,
    pub(crate) code: Option<u16>,
    pub(crate) decision: Option<DecisionView>,
}

#[derive(Serialize)]
pub(crate) struct DecisionView {
    pub(crate) ruling: String,
    pub(crate) by: String,
    pub(crate) why: String,
    pub(crate) at: String,
}

/// What `show --json` adds.
#[derive(Serialize)]
pub(crate) struct OutcomeView {
    pub(crate) code: u16,
    pub(crate) headers: Vec<(String, String)>,
    /// `None` if the body was too large to keep, or unknown.
    pub(crate) body_bytes: Option<usize>,
    /// `None` as well when it is not text; `show --body` gives the bytes.
    pub(crate) body: Option<String>,
    /// `reference` or `sealed`, if the answer itself cannot be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kept: Option<&'static str>,
    /// The reference to the result, if only that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reference: Option<String>,
}

impl RecordView {
    pub(crate) fn new(record: &Record, now: StoreTime, show_keys: bool) -> Self {
        let (intent, head) = (&record.intent, &record.head);
        Self {
            id: intent.id().to_string(),
            state: state(record, now).as_str(),
            age_ms: now.since_ms(record.since(now)),
            operation: intent.operation().as_str().to_owned(),
            tenant: intent.scope().tenant_text().to_owned(),
            scope: intent.scope().as_str().to_owned(),
            key_hash: intent.key().short_hash(),
            key: show_keys.then(|| intent.key().as_str().to_owned()),
            effect: head.effect.as_str(),
            epoch: head.epoch.0,
            attempts: record.attempts,
            created_at: rfc3339(record.created_at),
            changed_at: rfc3339(record.changed_at),
            lease_until: rfc3339(head.lease_until),
            expires_at: head.expires_at.map(rfc3339),
            safe_until: head.safe_until.map(rfc3339),
            code: record.outcome.as_ref().map(|outcome| outcome.code),
            decision: record.decision.as_ref().map(DecisionView::new),
        }
    }
}

impl DecisionView {
    fn new(decision: &Decision) -> Self {
        Self {
            ruling: decision.ruling.clone(),
            by: decision.by.clone(),
            why: decision.why.clone(),
            at: rfc3339(decision.at),
        }
    }
}

impl OutcomeView {
    pub(crate) fn new(outcome: &Outcome) -> Self {
        let header = |(name, value): &(String, _)| (name.clone(), lossy(value));
        let (body_bytes, body) = match &outcome.body {
            Body::NotKept => (None, None),
            Body::Reference(reference) => {
                let text = String::from_utf8_lossy(reference).into_owned();
                return Self::named(outcome, "reference", Some(text));
            }
            Body::Sealed(_) => return Self::named(outcome, "sealed", None),
            Body::Kept(bytes) => (Some(bytes.len()), std::str::from_utf8(bytes).ok().map(str::to_owned)),
        };
        let headers = outcome.headers.iter().map(header).collect();
        Self { code: outcome.code, headers, body_bytes, body, kept: None, reference: None }
    }

    fn named(outcome: &Outcome, kept: &'static str, reference: Option<String>) -> Self {
        let (headers, code) = (Vec::new(), outcome.code);
        Self { code, headers, body_bytes: None, body: None, kept: Some(kept), reference }
    }
}

pub(crate) fn lossy(value: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(value.as_ref()).into_owned()
}

/// The state as of now. A record that expired since it was read is shown as it was.
pub(crate) fn state(record: &Record, now: StoreTime) -> State {
    record.state_at(now).unwrap_or(record.head.state)
}
