//! What all parts of the store share about the server: how to connect, its clock, numbers of operations.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::error::MysqlError;
use super::literal;
use super::row;
use super::session::{Dial, Failed, Session};
use crate::intent::identity::{IntentId, Operation};
use crate::intent::policy::StoreTime;
use crate::store::coalesce::Failure;
use crate::store::encoding::MS_MAX;
use crate::store::{Fate, StoreError};

/// The clock in ms. SYSDATE is the time at which it is evaluated, also after a wait in the middle of a statement; NOW
/// would be the statement's start. Sessions use UTC, where no hour occurs twice.
pub(super) const CLOCK: &str = "CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)";

/// Operations whose numbers are cached.
const OPERATIONS_MAX: usize = 10_000;

#[derive(Debug)]
pub(super) struct Server {
    /// Its URL, without the password.
    pub(super) name: String,
    pub(super) dial: Dial,
    /// [`CLOCK`], except in tests with virtual time.
    pub(super) clock: String,
    /// Bytes a packet may have.
    pub(super) packet_bytes: usize,
    operations: Mutex<HashMap<Operation, i64>>,
}

impl Server {
    pub(super) fn new(name: String, dial: Dial, clock: String, packet_bytes: usize) -> Self {
        Self { name, dial, clock, packet_bytes, operations: Mutex::default() }
    }

    pub(super) fn explain(&self, error: &MysqlError, fate: Fate) -> StoreError {
        error.explain(&self.name, fate)
    }

    /// The failure to report to the requests of a packet that failed. `commit`: index of the statement that commits, or
    /// `None` if none does.
    pub(super) fn failure(&self, failed: &Failed, commit: Option<usize>) -> Failure {
        let Failed { error, done } = failed;
        let fate = match commit {
            None => Fate::NotApplied,
            // Refused before the commit, or by the commit for a reason that rolls it back.
            Some(commit) => match error {
                MysqlError::Refused { .. } if *done < commit => Fate::NotApplied,
                MysqlError::Refused { .. } if *done == commit && error.is_before_commit() => Fate::NotApplied,
                _ => Fate::InDoubt,
            },
        };
        error.failure(&self.name, fate)
    }

    /// The number of an operation, created if it is new. Names are never deleted.
    pub(super) async fn operation(
        &self,
        session: &mut Session,
        operation: &Operation,
    ) -> Result<i64, Failed> {
        if let Some(n) = self.cached(operation) {
            return Ok(n);
        }
        let name = literal::text(operation.as_str());
        let find =
            format!("SELECT CAST(n AS SIGNED) FROM semel_operation WHERE name = {name} ORDER BY n LIMIT 1");
        let add = format!("INSERT INTO semel_operation (name) VALUES ({name}); {find}");
        for sql in [find, add] {
            let brought = session.run(sql).await?;
            if let Some(row) = brought.last().and_then(|brought| brought.rows.first()) {
                let n = sqlx::Row::try_get(row, 0).map_err(MysqlError::from)?;
                self.remember(operation, n);
                return Ok(n);
            }
        }
        Err(MysqlError::Unreadable(format!(
            "the operation {:?} was not found after it was inserted",
            operation.as_str()
        ))
        .into())
    }

    fn cached(&self, operation: &Operation) -> Option<i64> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).get(operation).copied()
    }

    fn remember(&self, operation: &Operation, n: i64) {
        let mut known = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= OPERATIONS_MAX {
            known.clear();
        }
        known.insert(operation.clone(), n);
    }

    pub(super) async fn now(&self, session: &mut Session) -> Result<StoreTime, Failed> {
        let brought = session.run(format!("SELECT {}", self.clock)).await?;
        let row = brought.first().and_then(|brought| brought.rows.first());
        let row = row.ok_or_else(|| MysqlError::Unreadable("the server did not return its clock".into()))?;
        Ok(StoreTime(row::unsigned(row, 0)?.min(MS_MAX)))
    }
}

pub(super) fn ids<'a>(ids: impl IntoIterator<Item = &'a IntentId>) -> String {
    literal::list(ids.into_iter().map(IntentId::as_bytes))
}
