//! How SQL stores encode the parts of a record: small numbers, signed integers, and a decision as JSON.
//!
//! A keyed intent whose key is remembered downstream for a limited time is stored so that a version of semel that does
//! not know that time holds it instead of running it again: as an opaque one, with the time where a finished record has
//! its expiry. No column is added, and the tables stay as they are.
//!
//! | state | `state` | `effect` | `expires_at` |
//! |---|---|---|---|
//! | in_progress, with `safe_until` | 0 | 0 opaque | `safe_until` |
//! | failed_retryable, with `safe_until` | 1 uncertain | 0 opaque | `safe_until` |
//! | uncertain, with `safe_until` | 1 uncertain | 1 keyed | `safe_until` |
//! | in_progress or uncertain without | 0, 1 | as claimed | NULL |
//! | finished | 2, 3, 4 | as claimed | when it is forgotten, NULL is never |

use super::Decision;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::policy::{Effect, Retention, StoreTime};
use crate::intent::state::{Head, State};

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

/// The stored state, effect and time of a record; see the table above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Codes {
    pub(crate) state: i64,
    pub(crate) effect: i64,
    pub(crate) expires_at: Option<i64>,
}

impl Codes {
    pub(crate) fn of(head: &Head) -> Self {
        let stored = |state, effect| Self {
            state: state_code(state),
            effect: effect_code(effect),
            expires_at: head.safe_until.or(head.expires_at).map(|at| number(at.0)),
        };
        match (head.state, head.safe_until) {
            (State::InProgress, Some(_)) => stored(State::InProgress, Effect::Opaque),
            (State::FailedRetryable, Some(_)) => stored(State::Uncertain, Effect::Opaque),
            (State::Uncertain, Some(_)) => stored(State::Uncertain, Effect::Keyed),
            (state, _) => stored(state, head.effect),
        }
    }

    /// State, effect, expiry and until when the key protects.
    pub(crate) fn read(self) -> Result<Decoded, String> {
        let (state, effect) = (state_of(self.state)?, effect_of(self.effect)?);
        let at = self.expires_at.map(|at| u64::try_from(at).map(StoreTime));
        let at = at.transpose().map_err(|_| "a stored time is negative".to_owned())?;
        let (safe_until, expires_at) = if state.is_finished() { (None, at) } else { (at, None) };
        let (state, effect) = match (state, effect, safe_until) {
            (State::Uncertain, Effect::Opaque, Some(_)) => (State::FailedRetryable, Effect::Keyed),
            (state, _, Some(_)) => (state, Effect::Keyed),
            (state, effect, None) => (state, effect),
        };
        Ok(Decoded { state, effect, expires_at, safe_until })
    }
}

/// What [`Codes`] stand for.
pub(crate) struct Decoded {
    pub(crate) state: State,
    pub(crate) effect: Effect,
    pub(crate) expires_at: Option<StoreTime>,
    pub(crate) safe_until: Option<StoreTime>,
}

/// How long a key protects, where it does, as a database takes it.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
pub(crate) fn safe_for_code(effect: Effect, window: &crate::intent::guard_expiry::KeyWindow) -> Option<i64> {
    window.safe_for_ms.filter(|_| effect == Effect::Keyed).map(|ms| number(ms.min(MS_MAX)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::identity::{Epoch, Owner};

    fn head(state: State, effect: Effect, expires_at: Option<u64>, safe_until: Option<u64>) -> Head {
        Head {
            state,
            effect,
            fingerprint: Fingerprint::from_parts([0; 32], 0),
            owner: Owner::NONE,
            epoch: Epoch(1),
            lease_until: StoreTime(2),
            expires_at: expires_at.map(StoreTime),
            safe_until: safe_until.map(StoreTime),
        }
    }

    #[test]
    fn every_record_reads_back() {
        let open = [State::InProgress, State::Uncertain, State::FailedRetryable];
        let guarded = open.map(|state| head(state, Effect::Keyed, None, Some(9)));
        let plain = State::ALL.into_iter().flat_map(|state| {
            let expiry = if state.is_finished() { vec![None, Some(7)] } else { vec![None] };
            let of = move |effect| expiry.clone().into_iter().map(move |at| head(state, effect, at, None));
            Effect::ALL.into_iter().flat_map(of)
        });
        for head in plain.chain(guarded) {
            let Decoded { state, effect, expires_at, safe_until } = Codes::of(&head).read().unwrap();
            assert_eq!(Head { state, effect, expires_at, safe_until, ..head }, head);
        }
    }

    /// What a version makes of it that knows nothing of `safe_until`: it reads state and effect alone.
    #[test]
    fn a_version_that_does_not_know_the_time_holds_the_intent() {
        for state in [State::InProgress, State::Uncertain, State::FailedRetryable] {
            let codes = Codes::of(&head(state, Effect::Keyed, None, Some(9)));
            let (state, effect) = (state_of(codes.state).unwrap(), effect_of(codes.effect).unwrap());
            let read =
                Head { safe_until: None, ..head(state, effect, codes.expires_at.map(|at| at as u64), None) };
            assert_eq!(read.state_at(StoreTime(8)), Some(State::Uncertain));
            assert_eq!(read.state_at(StoreTime(u64::MAX)), Some(State::Uncertain), "it does not expire");
        }
    }

    #[test]
    fn a_time_before_1970_is_an_error() {
        assert!(Codes { state: 0, effect: 1, expires_at: Some(-1) }.read().is_err());
    }
}
