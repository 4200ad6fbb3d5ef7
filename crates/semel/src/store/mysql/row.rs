//! Reads a record from a row.

use bytes::Bytes;
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use super::error::MysqlError;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Epoch, Intent, IntentId, Operation, Owner};
use crate::intent::key::Key;
use crate::intent::outcome::Outcome;
use crate::intent::policy::StoreTime;
use crate::intent::scope::Scope;
use crate::intent::state::Head;
use crate::store::Record;
use crate::store::encoding::{Codes, Decoded, decision_of};

/// The columns that are read, in this order. The operation's table has none of these names.
pub(super) const COLUMNS: &str = "id, state, effect, epoch, attempts, lease_until, created_at, changed_at, \
     expires_at, owner, recipe, fingerprint, decision, outcome";

const ID: usize = 0;
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
/// After the columns, if the statement selects it: the clock when the row was read.
const NOW: usize = 14;
// record.sql goes on with these; claim.sql has the first epoch of its own in their place.
const SCOPE: usize = 15;
const OPERATION: usize = 16;
const KEY: usize = 17;

fn unreadable(column: &str, why: impl std::fmt::Display) -> MysqlError {
    MysqlError::Unreadable(format!("{column}: {why}"))
}

pub(super) fn unsigned(row: &MySqlRow, column: usize) -> Result<u64, MysqlError> {
    let stored: i64 = row.try_get(column)?;
    u64::try_from(stored).map_err(|_| unreadable("a number", format!("{stored} is negative")))
}

fn fixed<const N: usize>(row: &MySqlRow, column: usize) -> Result<[u8; N], MysqlError> {
    let stored: &[u8] = row.try_get(column)?;
    stored.try_into().map_err(|_| unreadable("a binary column", format!("{} bytes", stored.len())))
}

pub(super) fn id(row: &MySqlRow, column: usize) -> Result<IntentId, MysqlError> {
    Ok(IntentId::from_bytes(fixed(row, column)?))
}

/// The clock when the row was read.
pub(super) fn now(row: &MySqlRow) -> Result<StoreTime, MysqlError> {
    Ok(StoreTime(unsigned(row, NOW)?))
}

/// The first epoch a claim's packet took, if it took any.
pub(super) fn first_epoch(row: &MySqlRow) -> Result<Option<Epoch>, MysqlError> {
    match row.try_get::<Option<i64>, _>(SCOPE)? {
        Some(_) => Ok(Some(Epoch(unsigned(row, SCOPE)?))),
        None => Ok(None),
    }
}

pub(super) fn record_id(row: &MySqlRow) -> Result<IntentId, MysqlError> {
    id(row, ID)
}

pub(super) fn owner(row: &MySqlRow) -> Result<Owner, MysqlError> {
    Ok(Owner::from_bytes(fixed(row, OWNER)?))
}

pub(super) fn head(row: &MySqlRow) -> Result<Head, MysqlError> {
    let recipe: i64 = row.try_get(RECIPE)?;
    let (state, effect, expires_at) = (row.try_get(STATE)?, row.try_get(EFFECT)?, row.try_get(EXPIRES_AT)?);
    let decoded = Codes { state, effect, expires_at }.read();
    let Decoded { state, effect, expires_at, safe_until } =
        decoded.map_err(|why| unreadable("state", why))?;
    Ok(Head {
        state,
        effect,
        fingerprint: Fingerprint::from_parts(fixed(row, FINGERPRINT)?, recipe.cast_unsigned()),
        owner: owner(row)?,
        epoch: Epoch(unsigned(row, EPOCH)?),
        lease_until: StoreTime(unsigned(row, LEASE_UNTIL)?),
        expires_at,
        safe_until,
    })
}

/// The record of a known intent: the id is its digest, so the row need not name it.
pub(super) fn record(row: &MySqlRow, intent: Intent) -> Result<Record, MysqlError> {
    let decision: Option<&str> = row.try_get(DECISION)?;
    let outcome: Option<&[u8]> = row.try_get(OUTCOME)?;
    let attempts = unsigned(row, ATTEMPTS)?;
    Ok(Record {
        intent,
        head: head(row)?,
        attempts: u32::try_from(attempts).map_err(|_| unreadable("attempts", attempts))?,
        created_at: StoreTime(unsigned(row, CREATED_AT)?),
        changed_at: StoreTime(unsigned(row, CHANGED_AT)?),
        outcome: outcome
            .map(|stored| Outcome::decode(Bytes::copy_from_slice(stored)))
            .transpose()
            .map_err(|error| unreadable("outcome", error))?,
        decision: decision.map(decision_of).transpose().map_err(|why| unreadable("decision", why))?,
    })
}

/// The record, from a row that has scope, operation and key.
pub(super) fn full_record(row: &MySqlRow) -> Result<Record, MysqlError> {
    let scope = Scope::from_text(row.try_get(SCOPE)?).map_err(|error| unreadable("scope", error))?;
    let operation =
        Operation::new(row.try_get(OPERATION)?).map_err(|error| unreadable("operation", error))?;
    let key = Key::new(row.try_get::<&str, _>(KEY)?).map_err(|error| unreadable("key", error))?;
    record(row, Intent::new(scope, operation, key))
}
