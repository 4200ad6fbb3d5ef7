//! Polling in SQLite: one writer at a time, so numbers become visible in order, and AUTOINCREMENT never reuses one. The
//! cursor is a number. One relay at a time holds the lease; others wait for its end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use self::table::{LeasedCursor, Table};
use super::parking::{ParkedRows, RetryBatch};
use super::{DUE_EVERY, PolledOutbox, due_after};
use crate::relay::outbox_reader::{
    Batch, Lag, OutboxLineage, OutboxReader, OutboxReaderError, Pending, Position, Pruned, Rebase, Settled,
    SinkCheckpoint,
};
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

    /// A reader for one relay.
    pub fn source(&self) -> SqliteOutboxReader {
        SqliteOutboxReader {
            outbox: self.database.clone(),
            me: Uuid::now_v7().to_string(),
            table: None,
            leased: None,
            in_flight: None,
            heartbeat_at: Instant::now(),
            lease_safe_until: Instant::now(),
            due_at: Instant::now(),
            exclusive: false,
            reached: None,
        }
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

/// Reads the outbox while this relay holds the lease.
pub struct SqliteOutboxReader {
    outbox: SqliteTables,
    me: String,
    /// `None` while work runs on it, and after such work was cancelled: then the next call opens another.
    table: Option<Table>,
    leased: Option<LeasedCursor>,
    in_flight: Option<(Batch, Origin)>,
    heartbeat_at: Instant,
    lease_safe_until: Instant,
    due_at: Instant,
    /// Only `acquire_exclusive` takes the lease.
    exclusive: bool,
    /// Cursor of the last batch the sink has. It comes before any other until it is acked.
    reached: Option<String>,
}

enum Origin {
    Chunk { seqs: Vec<i64>, until: i64 },
    Parked(RetryBatch),
}

impl SqliteOutboxReader {
    /// Works on the table. After a failure the stored state is read again.
    async fn with<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Table) -> Result<T, OutboxReaderError> + Send + 'static,
    ) -> Result<T, OutboxReaderError> {
        let path = self.outbox.path.clone();
        let table = match self.table.take() {
            Some(table) => table,
            None => {
                // Cancelled half way: what was written is in doubt.
                self.reset();
                blocking(move || Table::open(&path)).await?
            }
        };
        let (table, result) = blocking(move || {
            let result = work(&table);
            Ok((table, result))
        })
        .await?;
        match result {
            Ok(done) => {
                self.table = Some(table);
                Ok(done)
            }
            Err(error) => {
                self.reset();
                Err(error)
            }
        }
    }

    fn reset(&mut self) {
        self.table = None;
        self.leased = None;
        self.in_flight = None;
    }

    /// Whether this relay holds the lease. Takes or renews it.
    async fn ready(&mut self) -> Result<bool, OutboxReaderError> {
        self.still_ours();
        if self.exclusive && self.leased.is_none() {
            return Err(OutboxReaderError::Fenced);
        }
        self.take_or_renew().await
    }

    fn still_ours(&mut self) {
        if self.leased.is_some() && Instant::now() >= self.lease_safe_until {
            self.reset();
        }
    }

    async fn take_or_renew(&mut self) -> Result<bool, OutboxReaderError> {
        let now = Instant::now();
        if now < self.heartbeat_at && (self.leased.is_none() || self.table.is_some()) {
            return Ok(self.leased.is_some());
        }
        let (me, lease) = (self.me.clone(), self.outbox.options.lease);
        let epoch = self.leased.as_ref().map(|leased| leased.epoch);
        self.heartbeat_at = now + lease / 3;
        let leased = self.with(move |table| table.take_or_renew(&me, epoch, lease)).await?;
        if leased.is_some() {
            self.lease_safe_until = now + lease * 7 / 8;
        }
        // A renewed lease keeps its cursor.
        if self.leased.is_none() || leased.is_none() {
            self.leased = leased;
            self.in_flight = None;
        }
        Ok(self.leased.is_some())
    }

    async fn find_due(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let bytes_max = self.outbox.options.bounds.bytes_max;
        let (tried, events) = self.with(move |table| table.due(bytes_max)).await?;
        if tried.ns.is_empty() && tried.empty.is_empty() {
            self.due_at = Instant::now() + DUE_EVERY;
            return Ok(None);
        }
        if events.is_empty() {
            let (epoch, retry) = (self.epoch()?, self.outbox.options.retry);
            self.with(move |table| table.retried(epoch, &tried, &[], retry)).await?;
            return Ok(None);
        }
        Ok(Some(self.give(tried.place(), events, Origin::Parked(tried))))
    }

    /// The last batch the sink has, if it was a retry that is not acked yet.
    async fn find_parked_again(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let Some(cursor) = self.reached.clone() else { return Ok(None) };
        let Some(ns) = RetryBatch::named(&cursor) else { return Ok(None) };
        let (tried, events) = self.with(move |table| table.again(&ns)).await?;
        if events.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.give(cursor, events, Origin::Parked(tried))))
    }

    fn epoch(&self) -> Result<i64, OutboxReaderError> {
        self.leased.as_ref().map(|leased| leased.epoch).ok_or(OutboxReaderError::Fenced)
    }

    fn give(&mut self, cursor: String, events: Vec<Pending>, origin: Origin) -> Batch {
        let lineage = self.leased.as_ref().map_or("", |leased| leased.lineage.as_str());
        let position = Position { lineage: OutboxLineage::read(lineage), place: cursor };
        let batch = Batch { position, events, is_retry: matches!(origin, Origin::Parked(_)) };
        self.in_flight = Some((batch.clone(), origin));
        batch
    }
}

impl OutboxReader for SqliteOutboxReader {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        if !self.ready().await? {
            return Ok(None);
        }
        if let Some((batch, _)) = self.in_flight.as_ref().filter(|_| self.table.is_some()) {
            return Ok(Some(batch.clone()));
        }
        if let Some(batch) = self.find_parked_again().await? {
            return Ok(Some(batch));
        }
        // The recorded chunk comes first if the sink has it last.
        let recorded = self
            .leased
            .as_ref()
            .and_then(|leased| leased.recorded.map(|until| cursor_text(leased.after, until)));
        self.reached = self.reached.take().filter(|reached| Some(reached) == recorded.as_ref());
        if self.reached.is_none()
            && Instant::now() >= self.due_at
            && let Some(batch) = self.find_due().await?
        {
            return Ok(Some(batch));
        }
        let Some(leased) = self.leased.clone() else { return Ok(None) };
        let bounds = self.outbox.options.bounds;
        let Some((until, seqs, events)) = self.with(move |table| table.chunk(&leased, bounds)).await? else {
            return Ok(None);
        };
        let Some(leased) = &mut self.leased else { return Err(OutboxReaderError::Fenced) };
        leased.recorded = Some(until);
        let cursor = cursor_text(leased.after, until);
        Ok(Some(self.give(cursor, events, Origin::Chunk { seqs, until })))
    }

    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        self.exclusive = true;
        self.still_ours();
        self.take_or_renew().await
    }

    async fn resume(&mut self, reached: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        let found = self.leased.as_ref().map(|leased| OutboxLineage::read(&leased.lineage));
        if let (Some(reached), Some(found)) = (reached, found)
            && !reached.position.lineage.matches(&found)
        {
            return Err(OutboxReaderError::OutboxLineage { stored: reached.position.lineage.clone(), found });
        }
        if let (Some(reached), Some(leased)) = (reached, &self.leased)
            && is_behind(&reached.position.place, leased.recorded.unwrap_or(leased.after))
        {
            // Without the lease it proves nothing: another relay may have moved the sink since.
            let reached = reached.position.place.clone();
            return Err(if self.holds_lease() {
                OutboxReaderError::Behind { reached }
            } else {
                OutboxReaderError::Fenced
            });
        }
        self.reached = reached.map(|reached| reached.position.place.clone());
        if self.in_flight.as_ref().map(|(batch, _)| &batch.position.place) != self.reached.as_ref() {
            self.in_flight = None;
        }
        Ok(())
    }

    async fn ack(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        let (epoch, retry) = (self.epoch()?, self.outbox.options.retry);
        match self.in_flight.take().filter(|_| self.table.is_some()) {
            None => return Err(OutboxReaderError::Fenced),
            Some((_, Origin::Parked(tried))) => {
                self.due_at = Instant::now() + due_after(settled);
                let settled = settled.to_vec();
                self.with(move |table| table.retried(epoch, &tried, &settled, retry)).await?;
            }
            Some((batch, Origin::Chunk { seqs, until })) => {
                let parked = ParkedRows::of(&seqs, &batch.events, settled);
                self.with(move |table| table.advance(epoch, until, &parked, retry)).await?;
                if let Some(leased) = &mut self.leased {
                    (leased.after, leased.recorded) = (until, None);
                }
            }
        }
        self.reached = None;
        Ok(())
    }

    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        self.heartbeat_at = Instant::now();
        let in_flight = self.in_flight.is_some();
        let kept = self.ready().await?;
        if kept && in_flight == self.in_flight.is_some() { Ok(()) } else { Err(OutboxReaderError::Fenced) }
    }

    fn renew_after(&self) -> Duration {
        self.heartbeat_at.saturating_duration_since(Instant::now())
    }

    fn holds_lease(&self) -> bool {
        self.leased.is_some() && self.table.is_some() && Instant::now() < self.lease_safe_until
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        if self.in_flight.is_some() {
            return Ok(Pruned::default());
        }
        self.with(move |table| table.prune(older_than)).await
    }

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        let epoch = self.epoch().ok();
        self.outbox.with(move |table| table.lag(epoch)).await
    }

    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        let epoch = self.epoch().ok();
        if let Some(epoch) = epoch {
            self.with(move |table| table.release(epoch)).await?;
        }
        self.reset();
        Ok(())
    }
}

/// The cursor text of a chunk.
fn cursor_text(after: i64, until: i64) -> String {
    format!("{after}-{until}")
}

/// Whether this cursor ends beyond everything recorded here.
fn is_behind(cursor: &str, recorded: i64) -> bool {
    let until = cursor.split_once('-').and_then(|(_, until)| until.parse::<i64>().ok());
    until.is_some_and(|until| until > recorded)
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
