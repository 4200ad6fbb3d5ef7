//! How many sagas there are, for metrics; and whether those that were taken can be read.

use std::sync::{Arc, Mutex, PoisonError};

use super::operations::{self, Done};
use crate::database::OwnTx;
use crate::intent::policy::StoreTime;
use crate::saga::journal::{DefinitionId, FIGURES_MAX, MayRead, SagaFigures, SagaNumber, TakenSaga};
use crate::saga::state::{Status, WorkerId};
use crate::store::StoreError;
use crate::store::encoding::number;
use crate::tx::driver::{DriverError, DriverErrorKind, Sql, Value};

macro_rules! open {
    ($code:literal) => {
        // Both conditions: the second one is the index's own.
        concat!(
            "SELECT ",
            $code,
            ", count(*) FROM (SELECT 1 FROM semel_saga WHERE status = ",
            $code,
            " AND status < 4 LIMIT 10000) s"
        )
    };
}

/// Sagas by status, as far as they are counted.
const OPEN: Sql = Sql::same(concat!(
    open!("0"),
    " UNION ALL ",
    open!("1"),
    " UNION ALL ",
    open!("2"),
    " UNION ALL ",
    open!("3")
));

const OLDEST_PARKED: Sql =
    Sql::same("SELECT created_at FROM semel_saga WHERE status = 3 AND status < 4 ORDER BY n LIMIT 1");

/// Sagas that have been due since before a moment, by definition.
const OVERDUE: Sql = Sql {
    postgres: "SELECT name, version, count(*) FROM (SELECT name, version FROM semel_saga WHERE worker IS NULL AND \
               due_at <= $1 LIMIT 10000) s GROUP BY name, version",
    mysql: "SELECT CONVERT(name USING utf8mb4), version, count(*) FROM (SELECT name, version FROM semel_saga WHERE \
            status < 4 AND worker IS NULL AND due_at <= ?1 LIMIT 10000) s GROUP BY name, version",
    sqlite: "SELECT name, version, count(*) FROM (SELECT name, version FROM semel_saga WHERE worker IS NULL AND \
             due_at IS NOT NULL AND due_at <= ?1 LIMIT 10000) s GROUP BY name, version",
};

/// Sagas whose worker ended before a moment, by definition.
const ORPHANED: Sql = Sql {
    postgres: "SELECT name, version, count(*) FROM (SELECT s.name, s.version FROM semel_saga_worker w JOIN semel_saga s \
               ON s.worker = w.id WHERE w.ended = 1 AND w.lease_until <= $1 LIMIT 10000) s GROUP BY name, version",
    mysql: "SELECT CONVERT(name USING utf8mb4), version, count(*) FROM (SELECT s.name, s.version FROM \
            semel_saga_worker w JOIN semel_saga s ON s.worker = w.id WHERE w.ended = 1 AND w.lease_until <= ?1 \
            LIMIT 10000) s GROUP BY name, version",
    sqlite: "SELECT name, version, count(*) FROM (SELECT s.name, s.version FROM semel_saga_worker w JOIN semel_saga s \
             ON s.worker = w.id WHERE w.ended = 1 AND w.lease_until <= ?1 LIMIT 10000) s GROUP BY name, version",
};

/// The beginnings of those inputs of a worker's sagas that are compressed or sealed.
const PROTECTED: Sql = Sql {
    postgres: "SELECT n, substring(input FROM 1 FOR 80) FROM semel_saga WHERE worker = $1 AND \
               substring(input FROM 1 FOR 1) = '\\xff'::bytea",
    mysql: "SELECT n, SUBSTRING(input, 1, 80) FROM semel_saga WHERE worker = ?1 AND SUBSTRING(input, 1, 1) = x'ff'",
    sqlite: "SELECT n, substr(input, 1, 80) FROM semel_saga WHERE worker = ?1 AND substr(input, 1, 1) = x'ff'",
};

pub(super) async fn figures(tx: &mut OwnTx<'_, '_>, overdue_ms: u64) -> Done<SagaFigures> {
    let now = operations::now(tx).await?;
    let mut open = Vec::new();
    for row in tx.run(&OPEN, Vec::new()).await?.rows {
        let status = Status::ALL.get(row.int(0)?.unsigned_abs() as usize).copied();
        open.extend(status.map(|status| Ok((status, row.int(1)?.unsigned_abs()))).transpose()?);
    }
    let oldest = tx.run(&OLDEST_PARKED, Vec::new()).await?;
    let oldest = oldest.first().map(|row| row.int(0)).transpose()?;
    let since: Value = number(now.0.saturating_sub(overdue_ms)).into();
    let mut overdue = Vec::new();
    for which in [&OVERDUE, &ORPHANED] {
        for row in tx.run(which, vec![since.clone()]).await?.rows {
            let version = u32::try_from(row.int(1)?).unwrap_or(u32::MAX);
            let of = DefinitionId { name: row.text(0)?.to_owned(), version };
            overdue.push((of, row.int(2)?.unsigned_abs().min(FIGURES_MAX)));
        }
    }
    Ok(SagaFigures { open, oldest_parked: oldest.map(|at| StoreTime(at.unsigned_abs())), overdue, now })
}

/// Takes sagas. If one of them may not be read, `refused` gets why, and an error of its own rolls all of it back.
pub(super) async fn take_readable(
    tx: &mut OwnTx<'_, '_>,
    worker: WorkerId,
    definitions: Vec<DefinitionId>,
    limit: usize,
    may_read: Arc<MayRead>,
    refused: Arc<Mutex<Option<StoreError>>>,
) -> Done<Vec<TakenSaga>> {
    let taken = operations::take(tx, worker, definitions, limit).await?;
    if taken.is_empty() {
        return Ok(taken);
    }
    for row in tx.run(&PROTECTED, vec![number(worker.0).into()]).await?.rows {
        let saga = SagaNumber(row.int(0)?.unsigned_abs());
        if !taken.iter().any(|taken| taken.number == saga) {
            continue;
        }
        if let Err(error) = may_read(saga, &row.bytes(1)?) {
            *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            return Err(DriverError::new(DriverErrorKind::Other, "a saga cannot be read here"));
        }
    }
    Ok(taken)
}
