//! Reads and sweeps, on connections of their own: claims do not wait for them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::Row;
use tokio::sync::Semaphore;

use super::error::MysqlError;
use super::literal::{self, Template, template};
use super::row;
use super::schema;
use super::server::{Server, ids};
use super::session::{Failed, Session};
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;
use crate::store::queue::queue_full;
use crate::store::{ErrorKind, Fate, Record, StoreError};

static RECORD: Template = template!("sql/record.sql");
static EXPIRED: Template = template!("sql/expired.sql");
static DELETE: Template = template!("sql/delete.sql");
static LOCK_EXPIRED: Template = template!("sql/lock_expired.sql");

/// Connections for reading and sweeping.
const READERS: usize = 2;
/// Records a sweep deletes in one transaction.
const SWEEP_CHUNK: usize = 250;
/// How often a sweep tries again when all records it found are locked, and after which pause.
const SWEEP_ATTEMPTS_MAX: usize = 5;
const SWEEP_PAUSE: Duration = Duration::from_millis(5);

/// A pool of connections, opened when they are needed.
pub(super) struct Readers {
    pub(super) server: Arc<Server>,
    idle: Mutex<Vec<Session>>,
    permits: Semaphore,
    wait: Duration,
}

impl Readers {
    pub(super) fn new(server: Arc<Server>, wait: Duration) -> Self {
        Self { server, idle: Mutex::default(), permits: Semaphore::new(READERS), wait }
    }

    /// Runs a read; retries it once on another connection if the first one is lost. A read changes nothing, so
    /// nothing is in doubt.
    pub(super) async fn read<T, F>(&self, mut run: impl FnMut(Session) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = (Session, Result<T, Failed>)>,
    {
        let Ok(Ok(_permit)) = tokio::time::timeout(self.wait, self.permits.acquire()).await else {
            return Err(queue_full(READERS));
        };
        let explain = |error: &MysqlError| self.server.explain(error, Fate::NotApplied);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut session = self.take().await.map_err(|error| explain(&error))?;
            session.ready().await.map_err(|error| explain(&error))?;
            let (mut session, read) = run(session).await;
            if read.is_err() {
                session.roll_back().await;
            }
            if session.is_open() {
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
            }
            match read {
                Ok(read) => return Ok(read),
                Err(Failed { error: MysqlError::Lost(_), .. }) if attempts < 2 => {}
                Err(Failed { error, .. }) => return Err(explain(&error)),
            }
        }
    }

    async fn take(&self) -> Result<Session, MysqlError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(session) => Ok(session),
            None => self.server.dial.open().await,
        }
    }

    /// Closes the idle connections.
    pub(super) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        for session in idle {
            session.close().await;
        }
    }

    pub(super) async fn now(&self) -> Result<StoreTime, StoreError> {
        let server = &self.server;
        self.read(|mut session| async move {
            let now = server.now(&mut session).await;
            (session, now)
        })
        .await
    }

    pub(super) async fn lineage(&self) -> Result<[u8; 16], StoreError> {
        self.read(|mut session| async move {
            let lineage = schema::read_lineage(&mut session).await;
            (session, lineage)
        })
        .await
    }

    pub(super) async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        let server = &self.server;
        let mut found = self
            .read(|mut session| async move {
                let records = server.records(&mut session, &[id]).await;
                (session, records)
            })
            .await?;
        Ok(found.pop().filter(|(record, now)| record.state_at(*now).is_some()).map(|(record, _)| record))
    }

    /// Deletes up to `limit` expired records, a chunk at a time. What was swept stays swept, whatever fails later.
    pub(super) async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        let server = &self.server;
        let mut done = 0;
        while done < limit {
            let chunk = (limit - done).min(SWEEP_CHUNK);
            let swept = self
                .read(|mut session| async move {
                    let swept = server.sweep_chunk(&mut session, chunk).await;
                    (session, swept)
                })
                .await;
            match swept {
                Ok(swept) => {
                    done += swept;
                    if swept < chunk {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                // The connection may have broken during the commit. Sweeping again does no harm.
                Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error.in_doubt()),
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

impl Server {
    /// Whole records, each with the clock when it was read, in no order.
    pub(super) async fn records(
        &self,
        session: &mut Session,
        wanted: &[IntentId],
    ) -> Result<Vec<(Record, StoreTime)>, Failed> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let brought = session.run(RECORD.fill(&[("ids", &ids(wanted)), ("clock", &self.clock)])).await?;
        let rows = brought.iter().flat_map(|brought| &brought.rows);
        let records = rows.map(|row| Ok((row::full_record(row)?, row::now(row)?)));
        Ok(records.collect::<Result<_, MysqlError>>()?)
    }

    async fn sweep_chunk(&self, session: &mut Session, limit: usize) -> Result<usize, Failed> {
        for _ in 0..SWEEP_ATTEMPTS_MAX {
            match self.sweep_some(session, limit).await? {
                // Another sweep has locked them all; later ones may still be free.
                None => tokio::time::sleep(SWEEP_PAUSE).await,
                Some(swept) => return Ok(swept),
            }
        }
        Ok(0)
    }

    /// `None` when all records to sweep are locked.
    async fn sweep_some(&self, session: &mut Session, limit: usize) -> Result<Option<usize>, Failed> {
        let limit = limit.to_string();
        let candidates = session.run(EXPIRED.fill(&[("clock", &self.clock), ("limit", &limit)])).await?;
        let candidates = read_ids(candidates.first().map(|brought| brought.rows.as_slice()))?;
        if candidates.is_empty() {
            return Ok(Some(0));
        }
        let lock = LOCK_EXPIRED.fill(&[("ids", &ids(&candidates)), ("clock", &self.clock)]);
        let locked = session.run(lock).await?;
        let locked = read_ids(locked.last().map(|brought| brought.rows.as_slice()))?;
        if locked.is_empty() {
            session.roll_back().await;
            return Ok(None);
        }
        let mut expired = String::new();
        for id in &locked {
            literal::push_row(&mut expired, &[("id", &literal::bytes(id.as_bytes()))]);
        }
        session.run(DELETE.fill(&[("expired", &expired)])).await?;
        Ok(Some(locked.len()))
    }

    /// The numbers of an operation that was claimed before: one, or a few if several inserted it at once.
    pub(super) async fn find_operation(&self, session: &mut Session, name: &str) -> Result<Vec<i64>, Failed> {
        let name = literal::text(name);
        let sql = format!("SELECT CAST(n AS SIGNED) FROM semel_operation WHERE name = {name}");
        let brought = session.run(sql).await?;
        let rows = brought.iter().flat_map(|brought| &brought.rows);
        Ok(rows.map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(MysqlError::from)?)
    }
}

fn read_ids(rows: Option<&[sqlx::mysql::MySqlRow]>) -> Result<Vec<IntentId>, MysqlError> {
    rows.unwrap_or_default().iter().map(|row| row::id(row, 0)).collect()
}
