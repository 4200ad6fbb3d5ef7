//! A record as a row.

use bytes::Bytes;
use rusqlite::Row;

use super::error::unreadable;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Epoch, Intent, Operation, Owner};
use crate::intent::key::Key;
use crate::intent::outcome::Outcome;
use crate::intent::policy::{Effect, StoreTime};
use crate::intent::scope::Scope;
use crate::intent::state::{Head, State};
use crate::store::{Decision, Record};

// The columns of head.sql; record.sql and list.sql go on with scope, operation and key.
const SEQ: usize = 0;
const STATE: usize = 1;
const EFFECT: usize = 2;
const EPOCH: usize = 3;
const ATTEMPTS: usize = 4;
const LEASE_UNTIL: usize = 5;
const CREATED_AT: usize = 6;
const CHANGED_AT: usize = 7;
const EXPIRES_AT: usize = 8;
const OWNER: usize = 9;
const RECIPE: usize = 10;
const FINGERPRINT: usize = 11;
const DECISION: usize = 12;
const OUTCOME: usize = 13;
const SCOPE: usize = 14;
const OPERATION: usize = 15;
const KEY: usize = 16;

/// The stored number of a state. The open ones come first: `state < 2` is what the index asks.
pub(super) fn state_code(state: State) -> i64 {
    match state {
        State::InProgress => 0,
        State::Uncertain => 1,
        State::Completed => 2,
        State::FailedFinal => 3,
        State::FailedRetryable => 4,
    }
}

pub(super) fn effect_code(effect: Effect) -> i64 {
    match effect {
        Effect::Opaque => 0,
        Effect::Keyed => 1,
        Effect::Atomic => 2,
    }
}

/// SQLite's integers are signed. Times and epochs are far from the sign (see [`super::clock::MS_MAX`]).
pub(super) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The way back.
pub(super) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let stored: i64 = row.get(column)?;
    u64::try_from(stored).map_err(|_| unreadable(column, format!("{stored} is negative")))
}

/// A recipe uses all its bits: the same bits, read as a signed number.
pub(super) fn recipe_code(fingerprint: &Fingerprint) -> i64 {
    fingerprint.recipe().as_u64().cast_signed()
}

pub(super) fn seq(row: &Row<'_>) -> rusqlite::Result<i64> {
    row.get(SEQ)
}

pub(super) fn head(row: &Row<'_>) -> rusqlite::Result<Head> {
    let state: i64 = row.get(STATE)?;
    let effect: i64 = row.get(EFFECT)?;
    let known = State::ALL.into_iter().find(|known| state_code(*known) == state);
    let protected = Effect::ALL.into_iter().find(|known| effect_code(*known) == effect);
    let recipe: i64 = row.get(RECIPE)?;
    Ok(Head {
        state: known.ok_or_else(|| unreadable(STATE, format!("there is no state {state}")))?,
        effect: protected.ok_or_else(|| unreadable(EFFECT, format!("there is no effect {effect}")))?,
        fingerprint: Fingerprint::from_parts(row.get(FINGERPRINT)?, recipe.cast_unsigned()),
        owner: Owner::from_bytes(row.get(OWNER)?),
        epoch: Epoch(unsigned(row, EPOCH)?),
        lease_until: StoreTime(unsigned(row, LEASE_UNTIL)?),
        expires_at: match row.get::<_, Option<i64>>(EXPIRES_AT)? {
            Some(_) => Some(StoreTime(unsigned(row, EXPIRES_AT)?)),
            None => None,
        },
    })
}

/// The record but for its outcome, which may be large and is not always wanted.
pub(super) fn record(row: &Row<'_>, intent: Intent) -> rusqlite::Result<Record> {
    Ok(Record {
        intent,
        head: head(row)?,
        attempts: row.get(ATTEMPTS)?,
        created_at: StoreTime(unsigned(row, CREATED_AT)?),
        changed_at: StoreTime(unsigned(row, CHANGED_AT)?),
        outcome: None,
        decision: decision(row)?,
    })
}

/// The whole record, of a row that names its intent.
pub(super) fn full_record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let text = |column| row.get_ref(column)?.as_str().map_err(rusqlite::Error::from);
    let wrong = |column, error: &dyn std::fmt::Display| unreadable(column, error.to_string());
    let scope = Scope::from_text(text(SCOPE)?).map_err(|error| wrong(SCOPE, &error))?;
    let operation = Operation::new(text(OPERATION)?).map_err(|error| wrong(OPERATION, &error))?;
    let key = Key::new(text(KEY)?).map_err(|error| wrong(KEY, &error))?;
    let record = record(row, Intent::new(scope, operation, key))?;
    Ok(Record { outcome: outcome(row)?, ..record })
}

pub(super) fn outcome(row: &Row<'_>) -> rusqlite::Result<Option<Outcome>> {
    let Some(stored) = row.get_ref(OUTCOME)?.as_blob_or_null()? else { return Ok(None) };
    let decoded = Outcome::decode(Bytes::copy_from_slice(stored));
    decoded.map(Some).map_err(|error| unreadable(OUTCOME, error.to_string()))
}

pub(super) fn outcome_len(row: &Row<'_>) -> rusqlite::Result<usize> {
    Ok(row.get_ref(OUTCOME)?.as_blob_or_null()?.map_or(0, <[u8]>::len))
}

fn decision(row: &Row<'_>) -> rusqlite::Result<Option<Decision>> {
    let Some(text) = row.get_ref(DECISION)?.as_str_or_null()? else { return Ok(None) };
    let wrong = || unreadable(DECISION, "the decision is not one");
    let note: serde_json::Value = serde_json::from_str(text).map_err(|_| wrong())?;
    let field = |name: &str| note[name].as_str().map(str::to_owned).ok_or_else(wrong);
    Ok(Some(Decision {
        ruling: field("ruling")?,
        by: field("by")?,
        why: field("why")?,
        at: StoreTime(note["at"].as_u64().ok_or_else(wrong)?),
    }))
}

/// A decision as it is stored: JSON, so that the sqlite3 tool shows it and `->>` reads it.
pub(super) fn decision_text(decision: &Decision) -> String {
    let Decision { ruling, by, why, at } = decision;
    serde_json::json!({ "ruling": ruling, "by": by, "why": why, "at": at.0 }).to_string()
}
