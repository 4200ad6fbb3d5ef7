//! Reads a record from a row.

use bytes::Bytes;
use rusqlite::Row;

use super::error::unreadable;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Epoch, Intent, Operation, Owner};
use crate::intent::key::Key;
use crate::intent::outcome::Outcome;
use crate::intent::policy::StoreTime;
use crate::intent::scope::Scope;
use crate::intent::state::Head;
use crate::store::encoding::{Codes, Decoded, decision_of};
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

pub(super) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let stored: i64 = row.get(column)?;
    u64::try_from(stored).map_err(|_| unreadable(column, format!("{stored} is negative")))
}

pub(super) fn seq(row: &Row<'_>) -> rusqlite::Result<i64> {
    row.get(SEQ)
}

pub(super) fn head(row: &Row<'_>) -> rusqlite::Result<Head> {
    let codes = Codes { state: row.get(STATE)?, effect: row.get(EFFECT)?, expires_at: row.get(EXPIRES_AT)? };
    let Decoded { state, effect, expires_at, safe_until } =
        codes.read().map_err(|why| unreadable(STATE, why))?;
    let recipe: i64 = row.get(RECIPE)?;
    Ok(Head {
        state,
        effect,
        fingerprint: Fingerprint::from_parts(row.get(FINGERPRINT)?, recipe.cast_unsigned()),
        owner: Owner::from_bytes(row.get(OWNER)?),
        epoch: Epoch(unsigned(row, EPOCH)?),
        lease_until: StoreTime(unsigned(row, LEASE_UNTIL)?),
        expires_at,
        safe_until,
    })
}

/// The record without its outcome, which may be large and is not always needed.
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

/// The whole record, from a row that has scope, operation and key.
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
    decision_of(text).map(Some).map_err(|why| unreadable(DECISION, why))
}
