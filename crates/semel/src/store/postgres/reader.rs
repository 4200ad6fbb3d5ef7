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
use crate::intent::state::State;
use crate::store::connect_backoff::ConnectBackoff;
use crate::store::encoding::{number, state_code};
use crate::store::{ErrorKind, Fate, Filter, Page, Record, StoreError};
use crate::timeout::bounded;

/// Bytes of outcomes after which a page ends, however few records it has.
const PAGE_OUTCOME_BYTES: usize = 16 << 20;
/// Rows scanned in one statement, at first and at most: a scan over millions that do not match must not hold a snapshot
/// for long.
const WINDOW_ROWS_MIN: i64 = 1_000;
const WINDOW_ROWS_MAX: i64 = 50_000;
/// Records one statement deletes.
const SWEEP_CHUNK: usize = 500;
/// How often to try again while another sweep is running, and the pause between tries.
const SWEEP_TRIES: u32 = 40;
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

    /// A page, scanned a window at a time.
    pub(super) async fn list(&self, filter: &Filter) -> Result<Page, PostgresError> {
        let now = self.now().await?;
        let mut page = Page { records: Vec::new(), next: None, now };
        let wanted = if filter.states.is_empty() { &State::ALL[..] } else { &filter.states };
        let states = wanted.iter().fold(0i32, |bits, state| bits | 1 << state_code(*state));
        let only_open = wanted.iter().all(|state| !state.is_finished());
        let older_than_ms = number(filter.older_than_ms.unwrap_or(0));
        let limit = filter.page_records();
        let mut below = filter.after.as_deref().and_then(|after| after.parse().ok()).unwrap_or(i64::MAX);
        let (mut window, mut last, mut outcome_bytes) = (WINDOW_ROWS_MIN, 0, 0);
        loop {
            // Open records are few, and read in one window.
            let floor = if only_open { 0 } else { self.floor(below, window).await? };
            let room = number((limit + 1 - page.records.len()) as u64);
            let sql: &Sql = if only_open { &LIST_OPEN } else { &LIST };
            let rows = self
                .read(
                    sql,
                    &[
                        &number(now.0),
                        &below,
                        &floor,
                        &states,
                        &filter.operation,
                        &filter.tenant,
                        &older_than_ms,
                        &room,
                    ],
                )
                .await?;
            for row in &rows {
                // One more than the limit shows that there is another page.
                if page.records.len() == limit || outcome_bytes > PAGE_OUTCOME_BYTES {
                    page.next = Some(last.to_string());
                    return Ok(page);
                }
                last = column::<i64>(row, "seq")?;
                outcome_bytes += outcome_len(row)?;
                page.records.push(full_record(row)?);
            }
            if floor == 0 {
                return Ok(page);
            }
            below = floor;
            window = (window * 2).min(WINDOW_ROWS_MAX);
        }
    }

    async fn floor(&self, below: i64, window: i64) -> Result<i64, PostgresError> {
        let rows = self.read(&FLOOR, &[&below, &window]).await?;
        rows.first().map_or(Ok(0), |row| column(row, "seq"))
    }

    /// Deletes up to `limit` expired records, a chunk at a time; claims run in between.
    pub(super) async fn sweep(&self, limit: usize) -> Result<usize, PostgresError> {
        let (mut swept, mut tries) = (0, 0);
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
                Err(_) if tries >= SWEEP_TRIES => break,
                Err(_) => {
                    tries += 1;
                    tokio::time::sleep(SWEEP_PAUSE).await;
                }
            }
        }
        Ok(swept)
    }
}

/// Refuses a cursor that is not from a page of this store.
pub(super) fn check_cursor(filter: &Filter) -> Result<(), StoreError> {
    match &filter.after {
        Some(cursor) if !cursor.parse::<i64>().is_ok_and(|seq| seq > 0) => {
            let message =
                format!("{cursor:?} is not a cursor of this store; use the one the previous page ended with");
            Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message))
        }
        _ => Ok(()),
    }
}
