//! The phases of an operation on MySQL and MariaDB: one row with all their results.
//!
//! - One row, not one per phase: a search for phases that do not exist yet locks the gap in the index where they would
//!   be inserted, and unrelated operations would wait for that lock and deadlock.
//! - Reads take locks (`FOR UPDATE`), because such a read sees the last commit even under REPEATABLE READ.
//! - A deadlock (1213) rolls back the whole transaction. If the work ignores that error, the server commits each later
//!   statement on its own. So the fence writes an id for this attempt into the row, and the result is written only if
//!   the row still has that id.

use bytes::{Buf, Bytes};

use super::steps::{After, Done};
use crate::intent::identity::{Epoch, Intent, Owner};
use crate::store::encoding;
use crate::tx::claim::Ask;
use crate::tx::driver::{DriverError, DriverErrorKind, OpenTx, Sql, Tx};
use crate::tx::error::TxError;
use crate::tx::lock_wait::{LockFailure, lock_failure};

const PHASES: Sql = only(include_str!("../sql/phases_mysql.sql"));
const FENCE: Sql = only(include_str!("../sql/fence_mysql.sql"));
const RESULTS: Sql =
    only("SELECT done, CAST(plan AS BINARY), results FROM semel_phase WHERE id = ?1 FOR UPDATE");
const PHASE: Sql = only(include_str!("../sql/phase_mysql.sql"));

const fn only(mysql: &'static str) -> Sql {
    Sql { postgres: "", mysql, sqlite: "" }
}

/// The committed phases. Creates the row if there is none; then nothing is done yet.
pub(super) async fn done(
    tx: &mut OpenTx<'_, impl Tx>,
    intent: &Intent,
    takeover: bool,
) -> Result<Vec<Done>, TxError> {
    let values = vec![
        intent.id().as_bytes()[..].into(),
        Owner::random().as_bytes()[..].into(),
        i64::from(takeover).into(),
    ];
    let rows = tx.run(&PHASES, values).await?;
    read(&rows)
}

/// How many phases are done. `None`: another transaction held the intent for more than a second.
pub(super) async fn fence(
    tx: &mut OpenTx<'_, impl Tx>,
    ask: &Ask,
    epoch: Epoch,
    attempt: Owner,
) -> Result<Option<Result<u64, TxError>>, DriverError> {
    let values = vec![
        ask.intent.id().as_bytes()[..].into(),
        ask.owner.as_bytes()[..].into(),
        encoding::number(epoch.0).into(),
        encoding::number(ask.lease_ms.min(encoding::MS_MAX)).into(),
        attempt.as_bytes()[..].into(),
    ];
    let rows = match tx.run(&FENCE, values).await {
        Ok(rows) => rows,
        Err(error) => match lock_failure(tx, error).await? {
            LockFailure::LockedElsewhere => return Ok(None),
            LockFailure::ReadOnly => return Err(read_only()),
        },
    };
    let done = rows.first().map(|row| row.int(0)).transpose()?;
    Ok(Some(done.map(i64::cast_unsigned).ok_or(TxError::Lost)))
}

fn read_only() -> DriverError {
    let message = "the transaction is read-only, so no phase can run in it; begin a read-write transaction";
    DriverError::new(DriverErrorKind::ReadOnly, message)
}

/// The outcome of a phase that was committed before.
pub(super) async fn outcome(
    tx: &mut OpenTx<'_, impl Tx>,
    intent: &Intent,
    position: u64,
) -> Result<Bytes, TxError> {
    let rows = tx.run(&RESULTS, vec![intent.id().as_bytes()[..].into()]).await?;
    let mut found = read(&rows)?.into_iter().map(|done| done.outcome);
    usize::try_from(position).ok().and_then(|at| found.nth(at)).ok_or(TxError::Lost)
}

/// Writes the result of a phase that is not the last one.
pub(super) async fn put(tx: &mut OpenTx<'_, impl Tx>, after: After) -> Result<(), TxError> {
    let mut result = Vec::with_capacity(4 + after.outcome.len());
    let length = u32::try_from(after.outcome.len()).map_err(|_| too_large(&after))?;
    result.extend_from_slice(&length.to_be_bytes());
    result.extend_from_slice(&after.outcome);
    let position = encoding::number(after.position as u64);
    let values = vec![
        after.id.as_bytes()[..].into(),
        after.attempt.as_bytes()[..].into(),
        position.into(),
        after.plan.as_str().into(),
        Bytes::from(result).into(),
    ];
    let rows = tx.run(&PHASE, values).await?;
    match rows.first().map(|row| row.int(0)).transpose()? {
        Some(done) if done == position + 1 => Ok(()),
        Some(done) if done == position => Err(too_large(&after)),
        _ => Err(TxError::Lost),
    }
}

fn too_large(after: &After) -> TxError {
    let why = format!(
        "the results of the phases up to number {} are together larger than the server's max_allowed_packet; \
         return less from them, or raise it",
        after.position + 1
    );
    TxError::Value { why }
}

fn read(rows: &crate::tx::driver::Rows) -> Result<Vec<Done>, TxError> {
    let Some(row) = rows.first() else { return Err(TxError::Lost) };
    // Names are ASCII. Read as bytes, because text of a binary collation comes as either.
    let plan = String::from_utf8_lossy(&row.bytes(1)?).into_owned();
    let (count, mut results) = (row.int(0)?, row.bytes(2)?);
    let mut done = Vec::new();
    while results.len() >= 4 {
        let length = results.get_u32() as usize;
        if length > results.len() {
            break;
        }
        done.push(Done { plan: plan.clone(), outcome: results.split_to(length) });
    }
    if !results.is_empty() || i64::try_from(done.len()) != Ok(count) {
        let message = format!("semel_phase says {count} phases are done, but has {} results", done.len());
        return Err(DriverError::of(DriverErrorKind::Unreadable, message).into());
    }
    Ok(done)
}
