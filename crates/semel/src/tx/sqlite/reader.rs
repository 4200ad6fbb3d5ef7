//! The read-only store of an HTTP layer whose handlers claim in their own transactions.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row};

use crate::intent::fingerprint::Fingerprint;
use crate::intent::identity::{Epoch, Intent, IntentId, Operation, Owner};
use crate::intent::key::Key;
use crate::intent::outcome::Outcome;
use crate::intent::policy::StoreTime;
use crate::intent::scope::Scope;
use crate::intent::state::Head;
use crate::store::encoding::{Codes, Decoded};
use crate::store::{
    Capabilities, Claim, Claimed, Decide, Decided, ErrorKind, Fate, Filter, Finish, Finished, Page, Record,
    Renewed, Store, StoreError, Ticket,
};
use crate::tx::driver::explain_rusqlite;

/// Idle connections kept for the next read.
const CONNECTIONS_MAX: usize = 4;
const BUSY: Duration = Duration::from_secs(1);

/// Reads from the application's own database file what [`once_tx`](crate::blocking::once_tx) committed there: the store of an
/// HTTP layer whose operations are all [`Atomic`](crate::Effect::Atomic).
///
/// It only reads, and deletes what has expired ([`sweep`](super::sweep()), for a
/// [`Sweeper`](crate::recover::Sweeper)). Claims, finishes and decisions are refused: they belong in the
/// application's transactions.
#[derive(Clone, Debug)]
pub struct SqliteReader {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl SqliteReader {
    /// A reader of the file at `path`, which must exist and have semel's tables; see
    /// [`migrate`](super::migrate).
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let shared = Shared { path: path.as_ref().to_owned(), idle: Mutex::default() };
        let reader = Self { shared: Arc::new(shared) };
        reader.get(IntentId::from_bytes([0; 32])).await?;
        Ok(reader)
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.shared);
        let done = tokio::task::spawn_blocking(move || {
            let connection = shared.connection()?;
            let found = read(&connection);
            // A connection that failed is not used again.
            if found.is_ok() {
                shared.keep(connection);
            }
            found
        });
        let found = done.await.map_err(|_| wrong(ErrorKind::Unavailable, "the reader's thread failed"))?;
        found.map_err(|error| {
            let path = self.shared.path.display();
            let message = format!("{path} cannot be read; check that it exists and has semel's tables");
            wrong(ErrorKind::Unavailable, message).with_source(error.to_string())
        })
    }
}

impl Shared {
    fn connection(&self) -> rusqlite::Result<Connection> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(connection) = idle {
            return Ok(connection);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(BUSY)?;
        Ok(connection)
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < CONNECTIONS_MAX {
            idle.push(connection);
        }
    }
}

const GET: &str = include_str!("../sql/get_sqlite.sql");
const NOW: &str = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)";

impl Store for SqliteReader {
    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: true, shared: true, same_tx: true }
    }

    async fn now(&self) -> Result<StoreTime, StoreError> {
        let now = self.read(|connection| connection.prepare_cached(NOW)?.query_row([], |row| row.get(0)));
        now.await.map(|now: i64| StoreTime(now.cast_unsigned()))
    }

    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        let found = self.read(move |connection| {
            let mut find = connection.prepare_cached(GET)?;
            find.query_row([id.as_bytes()], |row| Ok((record(row)?, row.get::<_, i64>(0)?))).optional()
        });
        let record = found.await?;
        Ok(record
            .filter(|(record, now)| record.state_at(StoreTime(now.cast_unsigned())).is_some())
            .map(|it| it.0))
    }

    async fn claim(&self, _: Claim) -> Result<Claimed, StoreError> {
        Err(only_reads())
    }

    async fn renew(&self, _: Ticket, _: u64) -> Result<Renewed, StoreError> {
        Err(only_reads())
    }

    async fn finish(&self, _: Ticket, _: Finish) -> Result<Finished, StoreError> {
        Err(only_reads())
    }

    async fn list(&self, _: Filter) -> Result<Page, StoreError> {
        Err(only_reads())
    }

    async fn decide(&self, _: IntentId, _: Decide) -> Result<Decided, StoreError> {
        Err(only_reads())
    }

    /// On a connection of its own, which waits at most a second for the application's writers.
    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        let shared = Arc::clone(&self.shared);
        let done = tokio::task::spawn_blocking(move || {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(&shared.path, flags)
                .and_then(|connection| connection.busy_timeout(BUSY).map(|()| connection));
            super::sweep(&connection.map_err(explain_rusqlite)?, limit)
        });
        // A thread that failed may have committed; sweeping again does no harm.
        let broke = |_| {
            StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, "the sweeping thread failed; sweep again")
        };
        done.await.map_err(broke)?.map_err(|error| {
            let path = self.shared.path.display();
            let message =
                format!("could not delete the expired records in {path}; the next sweep tries again");
            wrong(ErrorKind::Unavailable, message).with_source(error)
        })
    }
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let moment = |column| row.get::<_, i64>(column).map(|ms| StoreTime(ms.cast_unsigned()));
    let text = |column| row.get::<_, String>(column);
    let codes = Codes { state: row.get(1)?, effect: row.get(2)?, expires_at: row.get(5)? };
    let Decoded { state, effect, expires_at, safe_until } = codes.read().map_err(unreadable)?;
    let head = Head {
        state,
        effect,
        epoch: Epoch(row.get::<_, i64>(3)?.cast_unsigned()),
        lease_until: moment(4)?,
        expires_at,
        safe_until,
        owner: Owner::from_bytes(row.get(6)?),
        fingerprint: Fingerprint::from_parts(row.get(8)?, row.get::<_, i64>(7)?.cast_unsigned()),
    };
    let scope = Scope::from_text(&text(13)?).map_err(|error| unreadable(error.to_string()))?;
    let operation = Operation::new(&text(14)?).map_err(|error| unreadable(error.to_string()))?;
    let key = Key::new(text(15)?).map_err(|error| unreadable(error.to_string()))?;
    let outcome = row.get::<_, Option<Vec<u8>>>(9)?.map(Bytes::from).map(Outcome::decode).transpose();
    Ok(Record {
        intent: Intent::new(scope, operation, key),
        head,
        attempts: row.get(10)?,
        created_at: moment(11)?,
        changed_at: moment(12)?,
        outcome: outcome.map_err(|error| unreadable(error.to_string()))?,
        decision: None,
    })
}

fn unreadable(why: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, why.into())
}

fn wrong(kind: ErrorKind, message: impl Into<String>) -> StoreError {
    StoreError::new(kind, Fate::NotApplied, message)
}

fn only_reads() -> StoreError {
    let message = "this store only reads what the application's transactions committed; give the operation \
                   `effect = atomic` and claim in the handler's transaction, or use one of semel's own stores";
    wrong(ErrorKind::Misconfigured, message)
}
