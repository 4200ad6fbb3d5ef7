//! The claim inside the caller's transaction on MySQL and MariaDB.
//!
//! There is no lock by name that ends with a transaction, so the row itself is the lock: it is inserted before
//! anything is decided, and whoever comes second waits for it at the primary key. A row that was there is
//! locked by the same statement, and read by a locking read, which sees the last commit also under
//! REPEATABLE READ.
//!
//! - `INSERT … ON DUPLICATE KEY UPDATE`, not `INSERT IGNORE`: the latter takes shared locks, and those who
//!   wait deadlock when the first rolls back.
//! - The wait is bounded by `innodb_lock_wait_timeout`, for that statement only. MariaDB can say so in the
//!   statement (`SET STATEMENT`, in a comment only MariaDB reads), so nothing is left behind if the caller goes
//!   away while it waits. MySQL cannot: there the session's value is set and put back by the same packet, or
//!   after its error; where nobody was left to do that, the next claim on the connection does.
//! - Its error (1205) undoes the statement and nothing else, so the caller's transaction is as good as before.
//!   Unless the server runs with `innodb_rollback_on_timeout`: then the transaction is gone, which is told like a
//!   deadlock.
//! - Nothing is read before the lock. A plain read first would spare those who need not run the lock, and under
//!   REPEATABLE READ, the default, it would make the transaction's snapshot: a duplicate that waits for the first
//!   would then be given an answer whose rows it cannot see. So whoever is told "in flight" keeps the row locked
//!   until it rolls back, as it must after any error.
//! - Names are read by `SELECT … INTO`: a query inside `SET` would be a locking one under REPEATABLE READ.
//! - A deadlock (1213) undoes the whole transaction, and the server commits what comes after it statement by
//!   statement. So the owner is written when the intent is claimed, and the outcome only where it still
//!   stands: after a deadlock that the work has swallowed there is no such row.
//! - Work that fails is undone here, not left to a rollback: a caller may take its error for an answer and commit.

use super::claim::{Ask, Looked, looked, no_row};
use super::driver::{DriverError, Sql, Value};
use super::lock_wait::{NotHad, not_had};
use super::script::Port;
use crate::intent::identity::{Epoch, Owner};
use crate::store::encoding;

const LOOK: Sql = only(include_str!("sql/look_mysql.sql"));
const LOOK_ONLY: Sql = only(include_str!("sql/look_only_mysql.sql"));
const UNDO_INSERT: Sql = only("DELETE FROM semel_intent WHERE id = ?1 AND owner = ?2 AND epoch = 0");
const UNDO_TAKE: Sql = only("UPDATE semel_intent SET owner = ?3 WHERE id = ?1 AND owner = ?2");
const TAKE: Sql = only("UPDATE semel_intent SET owner = ?2 WHERE id = ?1");

const fn only(mysql: &'static str) -> Sql {
    Sql { postgres: "", mysql, sqlite: "" }
}

/// Locks the intent's row, and reads it. Held: somebody else has it, and a second was not enough.
pub(super) async fn look(port: &Port, ask: &Ask) -> Result<Looked, DriverError> {
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
    let rows = match port.run(&LOOK, values).await {
        Ok(rows) => rows,
        Err(error) => match not_had(port, error).await? {
            NotHad::Held => return Ok(Looked::held()),
            // What was committed before can be given again in a transaction that may not write.
            NotHad::ReadOnly => {
                let rows = port.run(&LOOK_ONLY, vec![id()]).await?;
                let row = rows.first().ok_or_else(no_row)?;
                let mut looked = looked(row, 1, true, false, row.int(0)?)?;
                looked.head = looked.head.filter(|head| head.epoch != Epoch(0));
                return Ok(looked);
            }
        },
    };
    let row = rows.first().ok_or_else(no_row)?;
    let mut looked = looked(row, 1, true, true, row.int(0)?)?;
    // A row without an epoch says nothing: this very statement has inserted it, or it was left behind by a version that
    // did not undo that.
    if let Some(head) = looked.head.filter(|head| head.epoch == Epoch(0)) {
        if head.owner != ask.owner {
            take(port, ask).await?;
        }
        looked.head = None;
    }
    Ok(looked)
}

/// Writes down who runs, where there was a row before.
pub(super) async fn take(port: &Port, ask: &Ask) -> Result<(), DriverError> {
    let values = vec![ask.intent.id().as_bytes()[..].into(), ask.owner.as_bytes()[..].into()];
    port.run(&TAKE, values).await.map(drop)
}

/// Takes back what [`look`] and [`take`] have written. `before`: whose the row was, if there was one.
pub(super) async fn undo(port: &Port, ask: &Ask, before: Option<Owner>) -> Result<(), DriverError> {
    let mut values: Vec<Value> = vec![ask.intent.id().as_bytes()[..].into(), ask.owner.as_bytes()[..].into()];
    let undo = match before {
        None => &UNDO_INSERT,
        Some(before) => {
            values.push(before.as_bytes()[..].into());
            &UNDO_TAKE
        }
    };
    port.run(undo, values).await.map(drop)
}
