//! Reads and the sweep, on connections of their own, never behind a batch.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connect::{Connections, Session};
use super::error::PostgresError;
use super::lock::SWEEP_CLASS;
use super::probe::PostgresLineage;
use super::row::{column, full_record, outcome_len, time};
use super::statement::{FLOOR, LIST, LIST_OPEN, NOW, RECORD, SWEEP, Sql};
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;
use crate::store::connect_backoff::ConnectBackoff;
use crate::store::encoding::number;
use crate::store::pager::{Pager, expiring_by, state_bits};
use crate::store::{Filter, Page, Record};
use crate::timeout::bounded;

/// Rows scanned in one statement at most.
const WINDOW_ROWS_MAX: i64 = 50_000;
/// Records one statement deletes.
const SWEEP_CHUNK: usize = 500;
/// How often to try again while another sweep is running, and the pause between tries.
const SWEEP_ATTEMPTS_MAX: u32 = 40;
const SWEEP_PAUSE: Duration = Duration::from_millis(25);

/// One connection for many concurrent reads: they are pipelined, without waiting for answers.
pub(super) struct Reader {
    connections: Arc<Connections>,
    session: Mutex<Option<Arc<Session>>>,
    connect_backoff: ConnectBackoff,
}

impl Reader {
    pub(super) fn new(connections: Arc<Connections>) -> Self {
        Self { connections, session: Mutex::new(None), connect_backoff: ConnectBackoff::default() }
    }

    async fn session(&self) -> Result<Arc<Session>, PostgresError> {
        let mut kept = self.session.lock().await;
        if let Some(session) = kept.as_ref().filter(|session| session.is_open()) {
            return Ok(Arc::clone(session));
        }
        if let Some(failure) = self.connect_backoff.recent_failure() {
            return Err(PostgresError::Outage(failure));
        }
        let connected = self.connections.session().await;
        let connected = connected
            .map_err(|error| PostgresError::Outage(self.connect_backoff.record_failure(error.failure())));
        let session = Arc::new(connected?.0);
        self.connect_backoff.reset();
        *kept = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Drops a broken session, unless it was already replaced.
    async fn discard(&self, broken: &Arc<Session>) {
        let mut kept = self.session.lock().await;
        if kept.as_ref().is_some_and(|session| Arc::ptr_eq(session, broken)) {
            *kept = None;
        }
    }

    pub(super) async fn close(&self) {
        let session = self.session.lock().await.take();
        if let Some(session) = session.and_then(Arc::into_inner) {
            session.close().await;
        }
    }

    /// Runs a statement that changes nothing, so it is retried once if the connection is broken.
    async fn read(&self, sql: &Sql, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, PostgresError> {
        let session = self.session().await?;
        match session.query(sql, values).await {
            Err(error) if error.loses_connection() => {
                self.discard(&session).await;
                if matches!(error, PostgresError::TimedOut(_)) {
                    return Err(error);
                }
            }
            answered => return answered,
        }
        let session = self.session().await?;
        let answered = session.query(sql, values).await;
        if answered.as_ref().is_err_and(PostgresError::loses_connection) {
            self.discard(&session).await;
        }
        answered
    }

    pub(super) async fn now(&self) -> Result<StoreTime, PostgresError> {
        let rows = self.read(&NOW, &[]).await?;
        rows.first().map_or(Ok(StoreTime(0)), |row| time(row, "now"))
    }

    /// Read anew each time: it changes when a database is restored or a standby is promoted.
    pub(super) async fn lineage(&self) -> Result<PostgresLineage, PostgresError> {
        let session = self.session().await?;
        let timeout = self.connections.options.statement_timeout;
        let late = || {
            PostgresError::TimedOut(format!(
                "PostgreSQL did not return its lineage within {timeout:?}; check its load and locks"
            ))
        };
        let asked = bounded(timeout, PostgresLineage::ask(&session.client), late).await;
        if asked.as_ref().is_err_and(PostgresError::loses_connection) {
            self.discard(&session).await;
        }
        asked
    }

    pub(super) async fn get(&self, id: &IntentId) -> Result<Option<Record>, PostgresError> {
        let rows = self.read(&RECORD, &[&&id.as_bytes()[..]]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let now = time(row, "now")?;
        Ok(Some(full_record(row)?).filter(|record| record.state_at(now).is_some()))
    }

    /// A page of the records after that sequence number.
    pub(super) async fn list(&self, filter: &Filter, after: Option<i64>) -> Result<Page, PostgresError> {
        let now = self.now().await?;
        let sql: &Sql = if filter.only_open() { &LIST_OPEN } else { &LIST };
        let (states, older_than_ms) = (state_bits(filter), number(filter.older_than_ms.unwrap_or(0)));
        let mut pager = Pager::new(filter, after, WINDOW_ROWS_MAX);
        loop {
            let below = pager.below().unwrap_or(i64::MAX);
            // Open records are few, and read in one window.
            let floor = if filter.only_open() { None } else { self.floor(below, pager.window()).await? };
            let values: [&(dyn ToSql + Sync); 9] = [
                &number(now.0),
                &below,
                &floor.unwrap_or(0),
                &states,
                &filter.operation,
                &filter.tenant,
                &older_than_ms,
                &pager.room(),
                &expiring_by(filter, now),
            ];
            for row in &self.read(sql, &values).await? {
                if pager.ends_here() {
                    break;
                }
                pager.push(column::<i64>(row, "seq")?, outcome_len(row)? as u64, full_record(row)?);
            }
            if !pager.next_window(floor) {
                break;
            }
        }
        let (records, next) = pager.finish();
        Ok(Page { records, next: next.map(|seq| seq.to_string()), now })
    }

    /// Where the window ends; `None` at the end of the list.
    async fn floor(&self, below: i64, window: i64) -> Result<Option<i64>, PostgresError> {
        let rows = self.read(&FLOOR, &[&below, &window]).await?;
        rows.first().map(|row| column(row, "seq")).transpose()
    }

    /// Deletes up to `limit` expired records, a chunk at a time; claims run in between.
    pub(super) async fn sweep(&self, limit: usize) -> Result<usize, PostgresError> {
        let (mut swept, mut attempts) = (0, 0);
        while swept < limit {
            let chunk = (limit - swept).min(SWEEP_CHUNK);
            let session = self.session().await?;
            let rows = session.query(&SWEEP, &[&number(chunk as u64), &SWEEP_CLASS]).await;
            if rows.as_ref().is_err_and(PostgresError::loses_connection) {
                self.discard(&session).await;
            }
            let gone: i64 = rows?.first().map_or(Ok(0), |row| column(row, "swept"))?;
            match usize::try_from(gone) {
                Ok(gone) => {
                    swept += gone;
                    if gone < chunk {
                        break;
                    }
                }
                // Another sweep is running: what it deletes, we need not.
                Err(_) if attempts >= SWEEP_ATTEMPTS_MAX => break,
                Err(_) => {
                    attempts += 1;
                    tokio::time::sleep(SWEEP_PAUSE).await;
                }
            }
        }
        Ok(swept)
    }
}
