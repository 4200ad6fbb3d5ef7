//! Polling in SQLite: one writer at a time, so numbers become visible in their order, and AUTOINCREMENT gives none away
//! twice. The cursor is a number; one relay at a time has the lease, and others wait for it to end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use self::table::{Table, Turn};
use super::parking::{ParkedRows, RetryBatch};
use super::{Bounds, DUE_EVERY, due_after};
use crate::relay::outbox_reader::{
    Batch, Lag, OutboxLineage, OutboxReader, OutboxReaderError, Pending, Position, Pruned, Rebase, Settled,
    SinkCheckpoint,
};
use crate::store::{ErrorKind, Fate, StoreError};

mod admin;
mod list;
mod table;

/// An outbox in the caller's own SQLite file. Cheap to clone. The tables are made with
/// [`outbox::schema`](crate::outbox::schema).
#[derive(Clone, Debug)]
pub struct SqliteOutbox {
    path: Arc<PathBuf>,
    bounds: Bounds,
    lease: Duration,
    retry: Duration,
}

impl SqliteOutbox {
    /// The outbox in this file, which has to be there.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: Arc::new(path.as_ref().to_owned()),
            bounds: Bounds::default(),
            lease: Duration::from_secs(10),
            retry: Duration::from_secs(1),
        }
    }

    /// Most events of a batch, and most bytes of their payloads: 4,000 and 4 MiB unless told otherwise.
    pub fn batch_max(mut self, events: usize, bytes: usize) -> Self {
        self.bounds = Bounds { events_max: events.clamp(1, 100_000), bytes_max: bytes.max(1) };
        self
    }

    /// How long after a relay's death another takes over: 10 s unless told otherwise.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(Duration::from_millis(100), Duration::from_secs(600));
        self
    }

    /// When a key that was parked because the sink failed is tried again, at first: 1 s unless told otherwise, then
    /// twice as late each time, up to a minute.
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.retry = pause.clamp(Duration::from_millis(1), Duration::from_secs(3_600));
        self
    }

    /// A source for one relay.
    pub fn source(&self) -> SqliteOutboxReader {
        SqliteOutboxReader {
            outbox: self.clone(),
            me: Uuid::now_v7().to_string(),
            table: None,
            turn: None,
            outstanding: None,
            beat_at: Instant::now(),
            ours_until: Instant::now(),
            due_at: Instant::now(),
            whole: false,
            reached: None,
        }
    }

    /// Does something with a table of its own, off the runtime's threads.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Table) -> Result<T, OutboxReaderError> + Send + 'static,
    ) -> Result<T, OutboxReaderError> {
        let path = self.path.clone();
        blocking(move || work(&Table::open(&path)?)).await
    }

    /// Takes the file for the right one from here on.
    pub async fn rebase(&self, rebase: Rebase) -> Result<(), OutboxReaderError> {
        let path = self.path.clone();
        blocking(move || Table::rebase(&path, rebase)).await
    }
}

/// A relay's turn at the outbox.
pub struct SqliteOutboxReader {
    outbox: SqliteOutbox,
    me: String,
    /// Away while something is done with it. Whoever cancels that finds none, and opens another.
    table: Option<Table>,
    turn: Option<Turn>,
    outstanding: Option<(Batch, Origin)>,
    beat_at: Instant,
    ours_until: Instant,
    due_at: Instant,
    /// The lease is only taken when it is asked for.
    whole: bool,
    /// The batch that a sink has had last. It comes before any other as long as it is not done.
    reached: Option<String>,
}

enum Origin {
    Chunk { seqs: Vec<i64>, until: i64 },
    Parked(RetryBatch),
}

impl SqliteOutboxReader {
    /// Does something with the table. After a failure everything is read again.
    async fn with<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Table) -> Result<T, OutboxReaderError> + Send + 'static,
    ) -> Result<T, OutboxReaderError> {
        let path = self.outbox.path.clone();
        let table = match self.table.take() {
            Some(table) => table,
            None => {
                // Cancelled half way: what was written is not known.
                self.forget();
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
                self.forget();
                Err(error)
            }
        }
    }

    fn forget(&mut self) {
        self.table = None;
        self.turn = None;
        self.outstanding = None;
    }

    /// Has the lease, or not.
    async fn ready(&mut self) -> Result<bool, OutboxReaderError> {
        self.still_ours();
        if self.whole && self.turn.is_none() {
            return Err(OutboxReaderError::Fenced);
        }
        self.take_or_renew().await
    }

    fn still_ours(&mut self) {
        if self.turn.is_some() && Instant::now() >= self.ours_until {
            self.forget();
        }
    }

    async fn take_or_renew(&mut self) -> Result<bool, OutboxReaderError> {
        let now = Instant::now();
        if now < self.beat_at && (self.turn.is_none() || self.table.is_some()) {
            return Ok(self.turn.is_some());
        }
        let (me, lease) = (self.me.clone(), self.outbox.lease);
        let epoch = self.turn.as_ref().map(|turn| turn.epoch);
        self.beat_at = now + lease / 3;
        let turn = self.with(move |table| table.take_or_renew(&me, epoch, lease)).await?;
        if turn.is_some() {
            self.ours_until = now + lease * 7 / 8;
        }
        // A renewed one is where it was.
        if self.turn.is_none() || turn.is_none() {
            self.turn = turn;
            self.outstanding = None;
        }
        Ok(self.turn.is_some())
    }

    async fn find_due(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let bytes_max = self.outbox.bounds.bytes_max;
        let (tried, events) = self.with(move |table| table.due(bytes_max)).await?;
        if tried.ns.is_empty() && tried.empty.is_empty() {
            self.due_at = Instant::now() + DUE_EVERY;
            return Ok(None);
        }
        if events.is_empty() {
            let (epoch, retry) = (self.epoch()?, self.outbox.retry);
            self.with(move |table| table.retried(epoch, &tried, &[], retry)).await?;
            return Ok(None);
        }
        Ok(Some(self.give(tried.place(), events, Origin::Parked(tried))))
    }

    /// What the sink has had last, if that is not done and was parked.
    async fn find_parked_again(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let Some(place) = self.reached.clone() else { return Ok(None) };
        let Some(ns) = RetryBatch::named(&place) else { return Ok(None) };
        let (tried, events) = self.with(move |table| table.again(&ns)).await?;
        if events.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.give(place, events, Origin::Parked(tried))))
    }

    fn epoch(&self) -> Result<i64, OutboxReaderError> {
        self.turn.as_ref().map(|turn| turn.epoch).ok_or(OutboxReaderError::Fenced)
    }

    fn give(&mut self, place: String, events: Vec<Pending>, origin: Origin) -> Batch {
        let lineage = self.turn.as_ref().map_or("", |turn| turn.lineage.as_str());
        let position = Position { lineage: OutboxLineage::read(lineage), place };
        let batch = Batch { position, events, is_retry: matches!(origin, Origin::Parked(_)) };
        self.outstanding = Some((batch.clone(), origin));
        batch
    }
}

impl OutboxReader for SqliteOutboxReader {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        if !self.ready().await? {
            return Ok(None);
        }
        if let Some((batch, _)) = self.outstanding.as_ref().filter(|_| self.table.is_some()) {
            return Ok(Some(batch.clone()));
        }
        if let Some(batch) = self.find_parked_again().await? {
            return Ok(Some(batch));
        }
        // What is written down is named already, and comes first if the sink has had it last.
        let recorded =
            self.turn.as_ref().and_then(|turn| turn.recorded.map(|until| place(turn.after, until)));
        self.reached = self.reached.take().filter(|reached| Some(reached) == recorded.as_ref());
        if self.reached.is_none()
            && Instant::now() >= self.due_at
            && let Some(batch) = self.find_due().await?
        {
            return Ok(Some(batch));
        }
        let Some(turn) = self.turn.clone() else { return Ok(None) };
        let bounds = self.outbox.bounds;
        let Some((until, seqs, events)) = self.with(move |table| table.chunk(&turn, bounds)).await? else {
            return Ok(None);
        };
        let Some(turn) = &mut self.turn else { return Err(OutboxReaderError::Fenced) };
        turn.recorded = Some(until);
        let place = place(turn.after, until);
        Ok(Some(self.give(place, events, Origin::Chunk { seqs, until })))
    }

    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        self.whole = true;
        self.still_ours();
        self.take_or_renew().await
    }

    async fn resume(&mut self, reached: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        let found = self.turn.as_ref().map(|turn| OutboxLineage::read(&turn.lineage));
        if let (Some(reached), Some(found)) = (reached, found)
            && !reached.position.lineage.matches(&found)
        {
            return Err(OutboxReaderError::OutboxLineage { stored: reached.position.lineage.clone(), found });
        }
        if let (Some(reached), Some(turn)) = (reached, &self.turn)
            && is_behind(&reached.position.place, turn.recorded.unwrap_or(turn.after))
        {
            // Or another has had it since: then it is its position, and not for us to judge.
            let reached = reached.position.place.clone();
            return Err(if self.holds_lease() {
                OutboxReaderError::Behind { reached }
            } else {
                OutboxReaderError::Fenced
            });
        }
        self.reached = reached.map(|reached| reached.position.place.clone());
        if self.outstanding.as_ref().map(|(batch, _)| &batch.position.place) != self.reached.as_ref() {
            self.outstanding = None;
        }
        Ok(())
    }

    async fn ack(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        let (epoch, retry) = (self.epoch()?, self.outbox.retry);
        match self.outstanding.take().filter(|_| self.table.is_some()) {
            None => return Err(OutboxReaderError::Fenced),
            Some((_, Origin::Parked(tried))) => {
                self.due_at = Instant::now() + due_after(settled);
                let settled = settled.to_vec();
                self.with(move |table| table.retried(epoch, &tried, &settled, retry)).await?;
            }
            Some((batch, Origin::Chunk { seqs, until })) => {
                let aside = ParkedRows::of(&seqs, &batch.events, settled);
                self.with(move |table| table.advance(epoch, until, &aside, retry)).await?;
                if let Some(turn) = &mut self.turn {
                    (turn.after, turn.recorded) = (until, None);
                }
            }
        }
        self.reached = None;
        Ok(())
    }

    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        self.beat_at = Instant::now();
        let outstanding = self.outstanding.is_some();
        let kept = self.ready().await?;
        if kept && outstanding == self.outstanding.is_some() {
            Ok(())
        } else {
            Err(OutboxReaderError::Fenced)
        }
    }

    fn renew_after(&self) -> Duration {
        self.beat_at.saturating_duration_since(Instant::now())
    }

    fn holds_lease(&self) -> bool {
        self.turn.is_some() && self.table.is_some() && Instant::now() < self.ours_until
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        if self.outstanding.is_some() {
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
        self.forget();
        Ok(())
    }
}

/// Names a chunk.
fn place(after: i64, until: i64) -> String {
    format!("{after}-{until}")
}

/// Whether a chunk ends beyond all that was ever written down here.
fn is_behind(place: &str, written: i64) -> bool {
    let until = place.split_once('-').and_then(|(_, until)| until.parse::<i64>().ok());
    until.is_some_and(|until| until > written)
}

/// Runs what blocks on a thread that may.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OutboxReaderError> + Send + 'static,
) -> Result<T, OutboxReaderError> {
    let lost = |error| {
        let message = "the thread that works on the outbox's file ended early; start the relay again";
        StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message).with_source(error)
    };
    tokio::task::spawn_blocking(work).await.map_err(lost)?
}
