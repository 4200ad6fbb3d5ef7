//! Reads a record from a row.

use bytes::Bytes;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::error::{PostgresError, unreadable};
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Epoch, Intent, Operation, Owner};
use crate::intent::key::Key;
use crate::intent::outcome::Outcome;
use crate::intent::policy::StoreTime;
use crate::intent::scope::Scope;
use crate::intent::state::Head;
use crate::store::Record;
use crate::store::encoding::{Codes, Decoded, decision_of};

/// A column by its name, as the type it has to be.
pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Result<T, PostgresError> {
    row.try_get(name).map_err(|error| unreadable(format!("column {name}: {error}")))
}

pub(super) fn unsigned(row: &Row, name: &str) -> Result<u64, PostgresError> {
    let stored: i64 = column(row, name)?;
    u64::try_from(stored).map_err(|_| unreadable(format!("column {name}: {stored} is negative")))
}

pub(super) fn time(row: &Row, name: &str) -> Result<StoreTime, PostgresError> {
    unsigned(row, name).map(StoreTime)
}

fn array<const N: usize>(row: &Row, name: &str) -> Result<[u8; N], PostgresError> {
    let stored: &[u8] = column(row, name)?;
    let wrong = |_| unreadable(format!("column {name} has {} bytes, not {N}", stored.len()));
    stored.try_into().map_err(wrong)
}

fn head(row: &Row) -> Result<Head, PostgresError> {
    let state: i16 = column(row, "state")?;
    let effect: i16 = column(row, "effect")?;
    let recipe: i64 = column(row, "recipe")?;
    let codes = Codes { state: state.into(), effect: effect.into(), expires_at: column(row, "expires_at")? };
    let Decoded { state, effect, expires_at, safe_until } = codes.read().map_err(unreadable)?;
    Ok(Head {
        state,
        effect,
        fingerprint: Fingerprint::from_parts(array(row, "fingerprint")?, recipe.cast_unsigned()),
        owner: Owner::from_bytes(array(row, "owner")?),
        epoch: Epoch(unsigned(row, "epoch")?),
        lease_until: time(row, "lease_until")?,
        expires_at,
        safe_until,
    })
}

/// The record of a known intent.
pub(super) fn record(row: &Row, intent: Intent) -> Result<Record, PostgresError> {
    let attempts: i32 = column(row, "attempts")?;
    let outcome: Option<&[u8]> = column(row, "outcome")?;
    let decision: Option<&str> = column(row, "decision")?;
    let decoded = |stored: &[u8]| Outcome::decode(Bytes::copy_from_slice(stored));
    Ok(Record {
        intent,
        head: head(row)?,
        attempts: u32::try_from(attempts).map_err(|error| unreadable(error.to_string()))?,
        created_at: time(row, "created_at")?,
        changed_at: time(row, "changed_at")?,
        outcome: outcome.map(decoded).transpose().map_err(|error| unreadable(error.to_string()))?,
        decision: decision.map(decision_of).transpose().map_err(unreadable)?,
    })
}

/// The record, from a row that has scope, operation and key.
pub(super) fn full_record(row: &Row) -> Result<Record, PostgresError> {
    let wrong = |error: &dyn std::fmt::Display| unreadable(error.to_string());
    let scope = Scope::from_text(column(row, "scope")?).map_err(|error| wrong(&error))?;
    let operation = Operation::new(column(row, "name")?).map_err(|error| wrong(&error))?;
    let key = Key::new(column::<&str>(row, "key")?).map_err(|error| wrong(&error))?;
    record(row, Intent::new(scope, operation, key))
}

pub(super) fn outcome_len(row: &Row) -> Result<usize, PostgresError> {
    Ok(column::<Option<&[u8]>>(row, "outcome")?.map_or(0, <[u8]>::len))
}
