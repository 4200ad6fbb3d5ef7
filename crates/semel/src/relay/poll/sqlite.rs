//! Polling in SQLite: one writer at a time, so numbers become visible in order, and AUTOINCREMENT never reuses one. The
//! cursor is a number. One relay at a time holds the lease; others wait for its end.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::table::{LeasedCursor, Table};
use super::PolledOutbox;
use super::reader::{ChunkRead, Leased, PollReader};
use crate::relay::lease::RelayLease;
use crate::relay::outbox_reader::{Lag, OutboxReaderError, Pending, Pruned, Rebase, Settled};
use crate::relay::parking::{ParkedRows, Retry, RetryResult};
use crate::relay::reader_options::{ReaderOptions, reader_options};
use crate::store::{ErrorKind, Fate, StoreError};

mod admin;
mod table;

/// An outbox in the caller's own SQLite file. Cheap to clone. Create the tables with
/// [`outbox::schema`](crate::outbox::schema).
pub type SqliteOutbox = PolledOutbox<SqliteTables>;

/// The outbox tables in a SQLite file.
#[derive(Clone, Debug)]
pub struct SqliteTables {
    path: Arc<PathBuf>,
    options: ReaderOptions,
}

reader_options!(SqliteOutbox, database.options);

impl SqliteOutbox {
    /// The outbox in this file, which must exist.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = Arc::new(path.as_ref().to_owned());
        Self { database: SqliteTables { path, options: ReaderOptions::default() } }
    }

    /// Accepts the file as the right one from now on.
    pub async fn rebase(&self, rebase: Rebase) -> Result<(), OutboxReaderError> {
        let path = self.database.path.clone();
        blocking(move || Table::rebase(&path, rebase)).await
    }
}

impl SqliteTables {
    /// Works on a table of its own, off the runtime's threads.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Table) -> Result<T, OutboxReaderError> + Send + 'static,
    ) -> Result<T, OutboxReaderError> {
        let path = self.path.clone();
        blocking(move || work(&Table::open(&path)?)).await
    }
}

/// Reads an outbox in SQLite while this relay holds the lease.
pub type SqliteOutboxReader = PollReader<SqliteTables>;

/// A connection to an outbox in SQLite.
pub struct LeasedFile {
    options: ReaderOptions,
    /// `None` while work runs on it, and after such work failed or was cancelled.
    table: Option<Table>,
    lease: RelayLease,
    cursor: Option<LeasedCursor>,
}

/// The recorded chunk, up to `until`.
pub struct FileChunk {
    seqs: Vec<i64>,
    until: i64,
}

impl LeasedFile {
    async fn open(tables: &SqliteTables, me: &str) -> Result<Self, OutboxReaderError> {
        let (path, options) = (tables.path.clone(), tables.options.clone());
        let table = blocking(move || Table::open(&path)).await?;
        let lease = RelayLease::new(me, table.lineage.clone());
        Ok(Self { options, table: Some(table), lease, cursor: None })
    }

    /// Works on the table. After a failure the stored state has to be read again.
    async fn with<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Table) -> Result<T, OutboxReaderError> + Send + 'static,
    ) -> Result<T, OutboxReaderError> {
        let table = self.table.take().ok_or(OutboxReaderError::Fenced)?;
        let done = blocking(move || {
            let done = work(&table)?;
            Ok((table, done))
        });
        match done.await {
            Ok((table, done)) => {
                self.table = Some(table);
                Ok(done)
            }
            Err(error) => {
                self.lease.safe_until = Instant::now();
                Err(error)
            }
        }
    }

    fn epoch(&self) -> Result<i64, OutboxReaderError> {
        self.cursor.as_ref().map(|cursor| cursor.epoch).ok_or(OutboxReaderError::Fenced)
    }
}

impl Leased for LeasedFile {
    type Chunk = FileChunk;
    type Cursor = FileCursor;

    const NEEDS_LEASE_TO_PRUNE: bool = false;

    fn lease(&self) -> &RelayLease {
        &self.lease
    }

    fn lease_mut(&mut self) -> &mut RelayLease {
        &mut self.lease
    }

    fn is_open(&self) -> bool {
        self.table.is_some()
    }

    fn owns_any(&self) -> bool {
        self.cursor.is_some()
    }

    fn is_behind(&self, cursor: &FileCursor) -> bool {
        self.cursor.as_ref().is_some_and(|leased| cursor.until > leased.recorded.unwrap_or(leased.after))
    }

    /// Renews the lease, or takes a free one.
    async fn heartbeat(&mut self) -> Result<(), OutboxReaderError> {
        let (asked, lease_ms) = (Instant::now(), self.options.lease_ms());
        let (me, epoch) = (self.lease.me.clone(), self.epoch().ok());
        let cursor = self.with(move |table| table.take_or_renew(&me, epoch, lease_ms)).await?;
        self.lease.renewed(asked, self.options.lease);
        if cursor.is_none() {
            self.lease.safe_until = asked;
        }
        // A renewed lease keeps its cursor.
        if self.cursor.is_none() || cursor.is_none() {
            self.cursor = cursor;
        }
        Ok(())
    }

    /// There is one lease, and nothing to share.
    async fn rebalance(&mut self) -> Result<(), OutboxReaderError> {
        Ok(())
    }

    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        if self.lease.heartbeat_due() {
            self.heartbeat().await?;
        }
        Ok(self.owns_any())
    }

    async fn chunk(
        &mut self,
        cursor: Option<&FileCursor>,
    ) -> Result<Option<ChunkRead<Self>>, OutboxReaderError> {
        let leased = self.cursor.clone().ok_or(OutboxReaderError::Fenced)?;
        let recorded = leased.recorded.map(|until| FileCursor { after: leased.after, until });
        if cursor.is_some() && cursor != recorded.as_ref() {
            return Ok(None);
        }
        let (after, bounds) = (leased.after, self.options.bounds);
        let chunk = self.with(move |table| table.chunk(&leased, bounds)).await?;
        let Some((until, seqs, events)) = chunk else { return Ok(None) };
        if let Some(leased) = &mut self.cursor {
            leased.recorded = Some(until);
        }
        let (cursor, chunk) = (FileCursor { after, until }, FileChunk { seqs, until });
        Ok(Some(ChunkRead { cursor, events, chunk }))
    }

    async fn advance(
        &mut self,
        FileChunk { seqs, until }: &FileChunk,
        events: &[Pending],
        settled: &[Settled],
    ) -> Result<(), OutboxReaderError> {
        let (epoch, until, retry) = (self.epoch()?, *until, self.options.retry_ms());
        let parked = ParkedRows::of(seqs, events, settled);
        self.with(move |table| table.advance(epoch, until, &parked, retry)).await?;
        if let Some(leased) = &mut self.cursor {
            (leased.after, leased.recorded) = (until, None);
        }
        Ok(())
    }

    async fn due(&mut self) -> Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError> {
        let (epoch, bytes_max) = (self.epoch()?, self.options.bounds.bytes_max);
        let (tried, events) = self.with(move |table| table.due(bytes_max)).await?;
        let any = !tried.ns.is_empty() || !tried.empty.is_empty();
        Ok(any.then(|| (Retry { tried, fence: vec![(0, epoch)] }, events)))
    }

    async fn still_parked(&mut self, ns: &[i64]) -> Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError> {
        let (epoch, ns) = (self.epoch()?, ns.to_vec());
        let (tried, events) = self.with(move |table| table.still_parked(&ns)).await?;
        Ok((!events.is_empty()).then(|| (Retry { tried, fence: vec![(0, epoch)] }, events)))
    }

    async fn retried(&mut self, retry: &Retry, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        let result = RetryResult::of(&retry.tried, settled);
        // The epoch under which they were read: the lease may have been lost and taken again since.
        let [(_, epoch)] = retry.fence[..] else { return Err(OutboxReaderError::Fenced) };
        let pause = self.options.retry_ms();
        self.with(move |table| table.retried(epoch, &result, pause)).await
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        self.with(move |table| table.prune(older_than)).await
    }

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        let epoch = self.epoch().ok();
        self.with(move |table| table.lag(epoch)).await
    }

    async fn release(mut self) -> Result<(), OutboxReaderError> {
        match self.epoch() {
            Ok(epoch) => self.with(move |table| table.release(epoch)).await,
            Err(_) => Ok(()),
        }
    }
}

/// The events after one number, up to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileCursor {
    after: i64,
    until: i64,
}

impl fmt::Display for FileCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.after, self.until)
    }
}

impl FromStr for FileCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = |text: &str| text.parse().map_err(drop);
        let (after, until) = text.split_once('-').ok_or(())?;
        Ok(Self { after: number(after)?, until: number(until)? })
    }
}

/// Runs blocking work on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OutboxReaderError> + Send + 'static,
) -> Result<T, OutboxReaderError> {
    let lost = |error| {
        let message = "the thread that works on the outbox file ended early; restart the relay";
        StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message).with_source(error)
    };
    tokio::task::spawn_blocking(work).await.map_err(lost)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_what_it_wrote() {
        let cursor = FileCursor { after: 5, until: 9 };
        assert_eq!(cursor.to_string(), "5-9", "it is stored in sinks");
        assert_eq!("5-9".parse(), Ok(cursor));
        for other in ["parked [7, 9]", "0:5-6", "t1 1/FF+3", ""] {
            assert_eq!(other.parse::<FileCursor>(), Err(()));
        }
    }
}
