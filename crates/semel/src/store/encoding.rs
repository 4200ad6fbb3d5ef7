//! How SQL stores encode the parts of a record: small numbers, signed integers, and a decision as JSON.

use super::Decision;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::policy::{Effect, Retention, StoreTime};
use crate::intent::state::State;

/// Times and durations are capped at this many ms, so that their sum still fits a signed integer.
pub(crate) const MS_MAX: u64 = 1 << 61;

/// Caps a retention at [`MS_MAX`].
pub(crate) fn bounded(retention: Retention) -> Retention {
    match retention {
        Retention::Ms(ms) => Retention::Ms(ms.min(MS_MAX)),
        Retention::Forever => Retention::Forever,
    }
}

/// The stored code of a state. Open states come first: the index is over `state < 2`.
pub(crate) fn state_code(state: State) -> i64 {
    match state {
        State::InProgress => 0,
        State::Uncertain => 1,
        State::Completed => 2,
        State::FailedFinal => 3,
        State::FailedRetryable => 4,
    }
}

pub(crate) fn effect_code(effect: Effect) -> i64 {
    match effect {
        Effect::Opaque => 0,
        Effect::Keyed => 1,
        Effect::Atomic => 2,
    }
}

/// Database integers are signed. Times and epochs stay far below the limit (see [`MS_MAX`]).
pub(crate) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A recipe uses all 64 bits: stored as the signed integer with the same bits.
pub(crate) fn recipe_code(fingerprint: &Fingerprint) -> i64 {
    fingerprint.recipe().as_u64().cast_signed()
}

/// A decision as stored: JSON, so that the database's own tool shows it and `->>` reads it.
pub(crate) fn decision_text(decision: &Decision) -> String {
    let Decision { ruling, by, why, at } = decision;
    serde_json::json!({ "ruling": ruling, "by": by, "why": why, "at": at.0 }).to_string()
}

/// The state of a stored code.
pub(crate) fn state_of(code: i64) -> Result<State, String> {
    let known = State::ALL.into_iter().find(|known| state_code(*known) == code);
    known.ok_or_else(|| format!("{code} is not the code of a state"))
}

/// The effect of a stored code.
pub(crate) fn effect_of(code: i64) -> Result<Effect, String> {
    let known = Effect::ALL.into_iter().find(|known| effect_code(*known) == code);
    known.ok_or_else(|| format!("{code} is not the code of an effect"))
}

/// Parses what [`decision_text`] wrote.
pub(crate) fn decision_of(text: &str) -> Result<Decision, String> {
    let wrong = || "the stored decision cannot be parsed".to_owned();
    let note: serde_json::Value = serde_json::from_str(text).map_err(|_| wrong())?;
    let field = |name: &str| note[name].as_str().map(str::to_owned).ok_or_else(wrong);
    Ok(Decision {
        ruling: field("ruling")?,
        by: field("by")?,
        why: field("why")?,
        at: StoreTime(note["at"].as_u64().ok_or_else(wrong)?),
    })
}
