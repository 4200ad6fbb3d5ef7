//! Work that is idempotent by itself: what a statement's count of changed rows means.
//!
//! Not everything needs a key. "The address of customer 7 *is* this" can be said twice; "customer 7 orders once more"
//! cannot. Where a row's own key or version distinguishes a repetition from a new request, that is cheaper than any
//! record, and these helpers say which of the two a statement was. `docs/natural.md` says when that is enough, and
//! when not.
//!
//! They run the caller's own statement, unchanged. Each says what it has to look like.

use super::driver::{Dialect, DriverError, DriverErrorKind, OpenTx, Rows, Sql, Tx, Value};

/// The result of an insert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inserted {
    /// The row is new.
    New,
    /// A row with that key exists already, and stays as it is. Whether it is the same is yours to compare.
    There,
}

/// The result of a conditional update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Updated {
    /// The row was as expected, and is changed.
    Done,
    /// The row does not exist, or not in the expected version. Read it again before you decide: an earlier attempt
    /// may have made this very change.
    Stale,
}

/// Inserts a row that is identified by its content, such as `(order, line)`.
///
/// The statement inserts one row, does nothing when its key is there, and returns something for a new row only:
/// `INSERT … ON CONFLICT (…) DO NOTHING RETURNING 1`. MySQL has no `RETURNING`, and counts are not reliable there (a
/// driver may ask for rows found instead of rows changed): use `INSERT IGNORE …` and know that it waits on locks.
pub async fn insert<X: Tx>(tx: &mut X, sql: &Sql, values: Vec<Value>) -> Result<Inserted, DriverError> {
    Ok(if changes_one(tx, sql, values).await? { Inserted::New } else { Inserted::There })
}

/// Changes one row if it is in the version that was read, or is newer than what is there.
///
/// The statement names one row by its key and says what is expected of it:
/// `UPDATE cart SET …, version = version + 1 WHERE id = $1 AND version = $2`, or an upsert that only moves forward:
/// `INSERT … ON CONFLICT (id) DO UPDATE SET … WHERE excluded.version > t.version`. More than one changed row is an
/// error, because then the statement did not name one row; roll back.
pub async fn update<X: Tx>(tx: &mut X, sql: &Sql, values: Vec<Value>) -> Result<Updated, DriverError> {
    Ok(if changes_one(tx, sql, values).await? { Updated::Done } else { Updated::Stale })
}

/// Whether a row was changed. MySQL counts an upsert that changed a row as two.
async fn changes_one(tx: &mut impl Tx, sql: &Sql, values: Vec<Value>) -> Result<bool, DriverError> {
    let mut tx = OpenTx::new(tx)?;
    let Rows { rows, changed } = tx.run(sql, values).await?;
    match changed.max(rows.len() as u64) {
        0 => Ok(false),
        1 => Ok(true),
        2 if tx.dialect() == Dialect::Mysql => Ok(true),
        many => {
            let message = format!(
                "{many} rows were changed where one was meant: the statement has to name one row by its key"
            );
            Err(DriverError::new(DriverErrorKind::Other, message))
        }
    }
}
