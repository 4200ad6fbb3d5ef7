//! One phase: the fence before the work, the result with its position after it.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::on_mysql;
use crate::intent::identity::{Epoch, Intent, IntentId, Owner};
use crate::intent::policy::Retention;
use crate::store::encoding;
use crate::tx::claim::{Ask, LOCK_SQLITE, lock_key};
use crate::tx::driver::{Dialect, DriverError, DriverErrorKind, OpenTx, Sql, Tx};
use crate::tx::error::TxError;

const PAUSE: Duration = Duration::from_millis(5);

// Where there is no text for MySQL, its phases are stored differently: `on_mysql`.
const DONE: Sql = Sql {
    postgres: "SELECT plan, outcome FROM semel_phase WHERE id = $1 ORDER BY position",
    mysql: "",
    sqlite: "SELECT plan, outcome FROM semel_phase WHERE id = ?1 ORDER BY position",
};

const FORGET: Sql = Sql {
    postgres: "DELETE FROM semel_phase WHERE id = $1",
    mysql: "",
    sqlite: "DELETE FROM semel_phase WHERE id = ?1",
};

const FENCE: Sql = Sql {
    postgres: "SELECT * FROM semel_tx_fence($1, $2, $3, $4, $5)",
    mysql: "",
    sqlite: include_str!("../sql/fence_sqlite.sql"),
};

const OUTCOME: Sql = Sql {
    postgres: "SELECT outcome FROM semel_phase WHERE id = $1 AND position = $2",
    mysql: "",
    sqlite: "SELECT outcome FROM semel_phase WHERE id = ?1 AND position = ?2",
};

const INSERT: Sql = Sql {
    postgres: "INSERT INTO semel_phase (id, position, plan, outcome) VALUES ($1, $2::bigint, $3, $4)",
    mysql: "",
    sqlite: "INSERT INTO semel_phase (id, position, plan, outcome) VALUES (?1, ?2, ?3, ?4)",
};

const END: Sql = Sql {
    postgres: "SELECT semel_tx_end($1, $2, $3, $4)",
    mysql: include_str!("../sql/end_mysql.sql"),
    sqlite: include_str!("../sql/end_sqlite.sql"),
};

/// A phase that was committed.
pub(super) struct Done {
    pub(super) plan: String,
    pub(super) outcome: Bytes,
}

/// The committed phases. A fresh intent has none; rows that are there were left by one that is forgotten.
pub(super) async fn done(
    tx: &mut OpenTx<'_, impl Tx>,
    intent: &Intent,
    takeover: bool,
) -> Result<Vec<Done>, TxError> {
    if tx.dialect() == Dialect::Mysql {
        return on_mysql::done(tx, intent, takeover).await;
    }
    let id = vec![intent.id().as_bytes()[..].into()];
    if !takeover {
        tx.run(&FORGET, id).await?;
        return Ok(Vec::new());
    }
    let rows = tx.run(&DONE, id).await?;
    let read =
        |row: &crate::tx::driver::Row| Ok(Done { plan: row.text(0)?.to_owned(), outcome: row.bytes(1)? });
    rows.rows.iter().map(read).collect()
}

/// The fence: checks that the claim is still ours and everything before this phase is committed. Returns the result
/// if this phase is committed too.
pub(super) async fn before(
    tx: &mut OpenTx<'_, impl Tx>,
    ask: &Ask,
    epoch: Epoch,
    position: usize,
    attempt: Owner,
) -> Result<Option<Bytes>, TxError> {
    let begun = Instant::now();
    let done = loop {
        match fence(tx, ask, epoch, attempt).await {
            Ok(Some(done)) => break done?,
            Ok(None) if begun.elapsed() >= ask.wait => {
                return Err(TxError::InFlight { waited: begun.elapsed() });
            }
            Err(error) if error.kind() == DriverErrorKind::Busy => {
                if begun.elapsed() >= ask.wait {
                    return Err(TxError::Busy { waited: begun.elapsed() });
                }
            }
            Ok(None) => {}
            Err(error) => return Err(error.into()),
        }
        tx.pause(PAUSE).await;
    };
    let position = position as u64;
    if done == position {
        return Ok(None);
    }
    if done < position {
        // The transaction of an earlier phase was rolled back, or phases were skipped.
        return Err(TxError::Lost);
    }
    if tx.dialect() == Dialect::Mysql {
        return on_mysql::outcome(tx, &ask.intent, position).await.map(Some);
    }
    let values = vec![ask.intent.id().as_bytes()[..].into(), encoding::number(position).into()];
    let rows = tx.run(&OUTCOME, values).await?;
    let row = rows.first().ok_or(TxError::Lost)?;
    Ok(Some(row.bytes(0)?))
}

/// How many phases are done; `None` while another owner is taking over.
async fn fence(
    tx: &mut OpenTx<'_, impl Tx>,
    ask: &Ask,
    epoch: Epoch,
    attempt: Owner,
) -> Result<Option<Result<u64, TxError>>, DriverError> {
    let mut values = vec![
        ask.intent.id().as_bytes()[..].into(),
        ask.owner.as_bytes()[..].into(),
        encoding::number(epoch.0).into(),
        encoding::number(ask.lease_ms.min(encoding::MS_MAX)).into(),
    ];
    let done = match tx.dialect() {
        Dialect::Postgres => {
            values.insert(0, lock_key(&ask.intent).into());
            let rows = tx.run(&FENCE, values).await?;
            let Some(row) = rows.first() else { return Ok(Some(Err(TxError::Lost))) };
            if row.int(0)? == 0 {
                return Ok(None);
            }
            row.int_or_null(1)?
        }
        Dialect::Sqlite => {
            tx.run(&LOCK_SQLITE, Vec::new()).await?;
            let rows = tx.run(&FENCE, values).await?;
            rows.first().map(|row| row.int(0)).transpose()?
        }
        Dialect::Mysql => return on_mysql::fence(tx, ask, epoch, attempt).await,
    };
    Ok(Some(done.map(i64::cast_unsigned).ok_or(TxError::Lost)))
}

/// What a phase writes.
pub(super) struct After {
    pub(super) id: IntentId,
    pub(super) epoch: Epoch,
    pub(super) position: usize,
    pub(super) attempt: Owner,
    pub(super) last: bool,
    pub(super) plan: String,
    pub(super) retention: Retention,
    pub(super) outcome: Bytes,
}

pub(super) async fn after(tx: &mut OpenTx<'_, impl Tx>, after: After) -> Result<(), TxError> {
    if tx.dialect() == Dialect::Mysql && !after.last {
        return on_mysql::put(tx, after).await;
    }
    let id = after.id.as_bytes();
    if !after.last {
        let position = encoding::number(after.position as u64);
        let values = vec![id[..].into(), position.into(), after.plan.into(), after.outcome.into()];
        tx.run(&INSERT, values).await?;
        return Ok(());
    }
    let retention_ms = match encoding::bounded(after.retention) {
        Retention::Ms(ms) => Some(encoding::number(ms)),
        Retention::Forever => None,
    };
    if tx.dialect() == Dialect::Sqlite {
        tx.run(&FORGET, vec![id[..].into()]).await?;
    }
    let epoch = encoding::number(after.epoch.0);
    let mut values = vec![id[..].into(), epoch.into(), retention_ms.into(), after.outcome.into()];
    if tx.dialect() == Dialect::Mysql {
        values.push(after.attempt.as_bytes()[..].into());
    }
    let rows = tx.run(&END, values).await?;
    let ended = match rows.first() {
        Some(row) => row.int_or_null(0)?,
        None => None,
    };
    ended.map(|_| ()).ok_or(TxError::Lost)
}
