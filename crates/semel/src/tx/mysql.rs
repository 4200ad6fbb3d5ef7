//! The claim inside the caller's transaction on MySQL and MariaDB.
//!
//! There is no named lock that ends with a transaction, so the row itself is the lock: it is inserted before anything
//! is decided, and a second transaction waits for it at the primary key. An existing row is locked by the same
//! statement, and read by a locking read, which sees the last commit also under REPEATABLE READ.
//!
//! - `INSERT … ON DUPLICATE KEY UPDATE`, not `INSERT IGNORE`: the latter takes shared locks, and waiters deadlock
//!   when the first rolls back.
//! - The wait is bounded by `innodb_lock_wait_timeout`, for that statement only. MariaDB sets it in the statement
//!   (`SET STATEMENT`, in a comment only MariaDB reads), so nothing is left behind if the caller goes away while it
//!   waits. MySQL cannot: there the session's value is set and restored by the same packet, or after its error; if
//!   the caller went away before that, the next claim on the connection restores it.
//! - Its error (1205) undoes the statement and nothing else, so the caller's transaction is unharmed. Unless the
//!   server runs with `innodb_rollback_on_timeout`: then the transaction is gone, which is reported like a deadlock.
//! - Nothing is read before the lock. A plain read first would spare duplicates the lock, but under REPEATABLE READ,
//!   the default, it would fix the transaction's snapshot: a duplicate that waits for the first would then get an
//!   answer whose rows it cannot see. So a caller that gets "in flight" keeps the row locked until it rolls back, as
//!   it must after any error.
//! - Names are read by `SELECT … INTO`: a query inside `SET` would be a locking one under REPEATABLE READ.
//! - A deadlock (1213) undoes the whole transaction, and the server commits what comes after it statement by
//!   statement. So the owner is written when the intent is claimed, and the outcome only where that owner still
//!   stands: after a deadlock that the work has swallowed there is no such row.
//! - Failed work is undone here, not left to a rollback: a caller may take its error for an answer and commit.

use super::claim::{Ask, Inspected, inspected, no_row};
use super::driver::{DriverError, OpenTx, Sql, Tx, Value};
use super::lock_wait::{LockFailure, lock_failure};
use crate::intent::identity::{Epoch, Owner};
use crate::store::encoding;

const INSPECT: Sql = only(include_str!("sql/look_mysql.sql"));
const INSPECT_READ_ONLY: Sql = only(include_str!("sql/look_only_mysql.sql"));
const UNDO_INSERT: Sql = only("DELETE FROM semel_intent WHERE id = ?1 AND owner = ?2 AND epoch = 0");
const UNDO_TAKE: Sql = only("UPDATE semel_intent SET owner = ?3 WHERE id = ?1 AND owner = ?2");
const TAKE: Sql = only("UPDATE semel_intent SET owner = ?2 WHERE id = ?1");

const fn only(mysql: &'static str) -> Sql {
    Sql { postgres: "", mysql, sqlite: "" }
}

/// Locks the intent's row, and reads it. Locked elsewhere: another transaction kept it for more than a second.
pub(super) async fn inspect(tx: &mut OpenTx<'_, impl Tx>, ask: &Ask) -> Result<Inspected, DriverError> {
    let id = || Value::from(&ask.intent.id().as_bytes()[..]);
    let values = vec![
        id(),
        ask.owner.as_bytes()[..].into(),
        encoding::effect_code(ask.effect).into(),
        encoding::recipe_code(&ask.fingerprint).into(),
        ask.fingerprint.digest()[..].into(),
        ask.intent.scope().as_str().into(),
        ask.intent.key().as_str().into(),
    ];
    let rows = match tx.run(&INSPECT, values).await {
        Ok(rows) => rows,
        Err(error) => match lock_failure(tx, error).await? {
            LockFailure::LockedElsewhere => return Ok(Inspected::locked_elsewhere()),
            // A committed outcome can be replayed in a read-only transaction.
            LockFailure::ReadOnly => {
                let rows = tx.run(&INSPECT_READ_ONLY, vec![id()]).await?;
                let row = rows.first().ok_or_else(no_row)?;
                let mut inspected = inspected(row, 1, true, false, row.int(0)?)?;
                inspected.head = inspected.head.filter(|head| head.epoch != Epoch(0));
                return Ok(inspected);
            }
        },
    };
    let row = rows.first().ok_or_else(no_row)?;
    let mut inspected = inspected(row, 1, true, true, row.int(0)?)?;
    // Epoch 0: this very statement inserted the row, or an older version left it behind without undoing it.
    if let Some(head) = inspected.head.filter(|head| head.epoch == Epoch(0)) {
        if head.owner != ask.owner {
            take(tx, ask).await?;
        }
        inspected.head = None;
    }
    Ok(inspected)
}

/// Records the new owner in a row that existed before.
pub(super) async fn take(tx: &mut OpenTx<'_, impl Tx>, ask: &Ask) -> Result<(), DriverError> {
    let values = vec![ask.intent.id().as_bytes()[..].into(), ask.owner.as_bytes()[..].into()];
    tx.run(&TAKE, values).await.map(drop)
}

/// Undoes what [`inspect`] and [`take`] have written. `before`: the previous owner, if there was a row.
pub(super) async fn undo(
    tx: &mut OpenTx<'_, impl Tx>,
    ask: &Ask,
    before: Option<Owner>,
) -> Result<(), DriverError> {
    let mut values: Vec<Value> = vec![ask.intent.id().as_bytes()[..].into(), ask.owner.as_bytes()[..].into()];
    let undo = match before {
        None => &UNDO_INSERT,
        Some(before) => {
            values.push(before.as_bytes()[..].into());
            &UNDO_TAKE
        }
    };
    tx.run(undo, values).await.map(drop)
}
