//! Reads one relay's share of a polled outbox: the same steps in every database.
//!
//! ```text
//!  connect ─▶ lease ─▶ batch in flight? the sink's last batch? due parked events? next chunk ─▶ ack ─▶ …
//! ```
//!
//! If a step fails or is cancelled half way, the connection is dropped, and the stored state is read on a new one.

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::outbox::{PollDatabase, PolledOutbox};
use crate::relay::lease::RelayLease;
use crate::relay::outbox_reader::{
    Batch, BatchCursor, Lag, OutboxReader, OutboxReaderError, Pending, Position, Pruned, Settled,
    SinkCheckpoint, written_by_another_kind,
};
use crate::relay::parking::{DUE_EVERY, ParkedCursor, Retry, due_after};

/// A connection to an outbox, with what this relay has leased of it.
///
/// An error or a cancelled call leaves it in doubt: it is dropped, and another one reads the stored state.
pub trait Leased: Send + Sized + 'static {
    /// Identifies a chunk's rows until it is acked.
    type Chunk: Send + Sync;

    /// The end of a chunk.
    type Cursor: fmt::Display + FromStr + Clone + Send + Sync;

    /// Whether only a relay with a lease prunes.
    const NEEDS_LEASE_TO_PRUNE: bool = true;

    /// The lease.
    fn lease(&self) -> &RelayLease;

    /// The lease.
    fn lease_mut(&mut self) -> &mut RelayLease;

    /// Whether anything can still be sent.
    fn is_open(&self) -> bool;

    /// Whether it owns any partition.
    fn owns_any(&self) -> bool;

    /// Whether this cursor is beyond everything recorded here.
    fn is_behind(&self, cursor: &Self::Cursor) -> bool;

    /// Renews the lease.
    fn heartbeat(&mut self) -> impl Future<Output = Result<(), OutboxReaderError>> + Send;

    /// Releases partitions that are other relays' share now, and takes ours. Not while a batch is in flight.
    fn rebalance(&mut self) -> impl Future<Output = Result<(), OutboxReaderError>> + Send;

    /// Takes all partitions or none.
    fn acquire_exclusive(&mut self) -> impl Future<Output = Result<bool, OutboxReaderError>> + Send;

    /// The recorded chunk, or the next one, recorded first. With a cursor, only the recorded chunk that has it.
    fn chunk(
        &mut self,
        cursor: Option<&Self::Cursor>,
    ) -> impl Future<Output = Result<Option<ChunkRead<Self>>, OutboxReaderError>> + Send;

    /// Acks a chunk, and parks what is not confirmed, in one commit under the epochs.
    fn advance(
        &mut self,
        chunk: &Self::Chunk,
        events: &[Pending],
        settled: &[Settled],
    ) -> impl Future<Output = Result<(), OutboxReaderError>> + Send;

    /// Parked events that are due, and due keys without parked events.
    fn due(
        &mut self,
    ) -> impl Future<Output = Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError>> + Send;

    /// These parked events, if they are still parked.
    fn still_parked(
        &mut self,
        ns: &[i64],
    ) -> impl Future<Output = Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError>> + Send;

    /// Stores the results of a retry, in one commit under the epochs.
    fn retried(
        &mut self,
        retry: &Retry,
        settled: &[Settled],
    ) -> impl Future<Output = Result<(), OutboxReaderError>> + Send;

    /// Deletes published events in bounded batches.
    fn prune(
        &mut self,
        older_than: Duration,
    ) -> impl Future<Output = Result<Pruned, OutboxReaderError>> + Send;

    /// Measures the lag.
    fn lag(&mut self) -> impl Future<Output = Result<Lag, OutboxReaderError>> + Send;

    /// Releases everything, and disconnects.
    fn release(self) -> impl Future<Output = Result<(), OutboxReaderError>> + Send;
}

/// A recorded chunk.
pub struct ChunkRead<L: Leased> {
    pub(super) cursor: L::Cursor,
    pub(super) events: Vec<Pending>,
    pub(super) chunk: L::Chunk,
}

/// The cursor of a batch, as it was parsed.
#[derive(Clone)]
enum PollCursor<C> {
    Chunk(C),
    Parked(ParkedCursor),
}

impl<C: FromStr> PollCursor<C> {
    fn parse(cursor: &BatchCursor) -> Option<Self> {
        cursor.parse().map(Self::Parked).or_else(|| cursor.parse().map(Self::Chunk))
    }
}

/// Reads one relay's share of the outbox: the partitions it leases.
pub struct PollReader<D: PollDatabase> {
    database: D,
    me: String,
    leased: Option<D::Leased>,
    in_flight: Option<(Batch, Origin<<D::Leased as Leased>::Chunk>)>,
    due_at: Instant,
    /// A change got no answer: the stored state has to be read again.
    in_doubt: bool,
    /// All partitions or none, and none before `acquire_exclusive`.
    exclusive: bool,
    /// Cursor of the last batch the sink has. It comes before any other until it is acked.
    reached: Option<PollCursor<<D::Leased as Leased>::Cursor>>,
}

/// Where a batch came from.
enum Origin<C> {
    Chunk(C),
    Parked(Retry),
}

impl<D: PollDatabase> PolledOutbox<D> {
    /// A reader for one relay. Several share the partitions, or wait for the one that has the lease.
    pub fn source(&self) -> PollReader<D> {
        PollReader {
            database: self.database.clone(),
            me: Uuid::now_v7().to_string(),
            leased: None,
            in_flight: None,
            due_at: Instant::now(),
            in_doubt: false,
            exclusive: false,
            reached: None,
        }
    }
}

impl<D: PollDatabase> PollReader<D> {
    /// Drops the connection with everything in progress on it, and all state in doubt.
    fn reset(&mut self) {
        self.leased = None;
        self.in_flight = None;
    }

    /// Begins something that must not stay half done. If it is cancelled, the stored state is read again.
    fn begin(&mut self) {
        if self.in_doubt {
            self.reset();
        }
        self.in_doubt = true;
    }

    /// Ends it. If it failed, the stored state is read again.
    fn end<T>(&mut self, result: Result<T, OutboxReaderError>) -> Result<T, OutboxReaderError> {
        if result.is_err() {
            self.reset();
        }
        self.in_doubt = false;
        result
    }

    /// Connects. Reconnects if the lease has expired: another relay may own the partitions by now.
    async fn connected(&mut self) -> Result<&mut D::Leased, OutboxReaderError> {
        let stale =
            |leased: &D::Leased| !leased.is_open() || (leased.owns_any() && !leased.lease().is_safe());
        if self.leased.as_ref().is_some_and(stale) {
            self.reset();
        }
        if self.leased.is_none() {
            // Boxed: connecting is rare, and its future is large.
            self.leased = Some(Box::pin(self.database.lease(&self.me)).await?);
        }
        self.leased.as_mut().ok_or(OutboxReaderError::Fenced)
    }

    /// Connects, renews the lease, and takes our share of the partitions between batches. Whether we own any.
    async fn ready(&mut self) -> Result<bool, OutboxReaderError> {
        if !self.connected().await?.owns_any() {
            // Lost with the lease: another relay may own the batch by now.
            self.in_flight = None;
            if self.exclusive {
                return Err(OutboxReaderError::Fenced);
            }
        }
        let Some(leased) = &mut self.leased else { return Ok(false) };
        if leased.lease().heartbeat_due() {
            leased.heartbeat().await?;
        }
        if self.in_flight.is_none() && !self.exclusive && leased.lease().rebalance_due {
            leased.rebalance().await?;
        }
        Ok(leased.owns_any())
    }

    /// The next batch: the one in flight, the last one the sink has, due parked events, then the next chunk.
    async fn find(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        if !self.ready().await? {
            return Ok(None);
        }
        if let Some((batch, _)) = &self.in_flight {
            return Ok(Some(batch.clone()));
        }
        if let Some(cursor) = self.reached.clone() {
            if let Some(batch) = self.find_reached(cursor).await? {
                return Ok(Some(batch));
            }
            self.reached = None;
        }
        if Instant::now() >= self.due_at
            && let Some(batch) = self.find_due().await?
        {
            return Ok(Some(batch));
        }
        self.find_chunk(None).await
    }

    /// The last batch the sink has, if it is not acked yet.
    async fn find_reached(
        &mut self,
        cursor: PollCursor<<D::Leased as Leased>::Cursor>,
    ) -> Result<Option<Batch>, OutboxReaderError> {
        let cursor = match cursor {
            PollCursor::Chunk(cursor) => return self.find_chunk(Some(&cursor)).await,
            PollCursor::Parked(cursor) => cursor,
        };
        let Some(leased) = &mut self.leased else { return Ok(None) };
        let parked = leased.still_parked(&cursor.0).await?;
        Ok(parked.map(|(retry, events)| self.give(&cursor, events, Origin::Parked(retry))))
    }

    async fn find_due(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let Some(leased) = &mut self.leased else { return Ok(None) };
        let Some((retry, events)) = leased.due().await? else {
            self.due_at = Instant::now() + DUE_EVERY;
            return Ok(None);
        };
        if events.is_empty() {
            leased.retried(&retry, &[]).await?;
            return Ok(None);
        }
        Ok(Some(self.give(&retry.tried.cursor(), events, Origin::Parked(retry))))
    }

    async fn find_chunk(
        &mut self,
        cursor: Option<&<D::Leased as Leased>::Cursor>,
    ) -> Result<Option<Batch>, OutboxReaderError> {
        let Some(leased) = &mut self.leased else { return Ok(None) };
        let read = leased.chunk(cursor).await?;
        Ok(read.map(|ChunkRead { cursor, events, chunk }| self.give(&cursor, events, Origin::Chunk(chunk))))
    }

    fn give(
        &mut self,
        cursor: &impl fmt::Display,
        events: Vec<Pending>,
        origin: Origin<<D::Leased as Leased>::Chunk>,
    ) -> Batch {
        let lineage = self.leased.as_ref().map(|leased| leased.lease().lineage.clone());
        let position = Position {
            lineage: lineage.unwrap_or_else(|| crate::relay::OutboxLineage::read("")),
            cursor: BatchCursor::of(cursor),
        };
        let batch = Batch { position, events, is_retry: matches!(origin, Origin::Parked(_)) };
        self.in_flight = Some((batch.clone(), origin));
        batch
    }

    async fn take_all(&mut self) -> Result<bool, OutboxReaderError> {
        let leased = self.connected().await?;
        let (had, taken) = (leased.owns_any(), leased.acquire_exclusive().await?);
        if !had || !taken {
            self.in_flight = None;
        }
        Ok(taken)
    }

    async fn settle(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        let (Some((batch, origin)), Some(leased)) = (&self.in_flight, &mut self.leased) else {
            // The connection broke meanwhile: the batch is delivered again.
            return Err(OutboxReaderError::Fenced);
        };
        match origin {
            Origin::Parked(retry) => {
                leased.retried(retry, settled).await?;
                self.due_at = Instant::now() + due_after(settled);
            }
            Origin::Chunk(chunk) => leased.advance(chunk, &batch.events, settled).await?,
        }
        (self.in_flight, self.reached) = (None, None);
        Ok(())
    }

    /// The connection for work beside the batches.
    async fn beside(&mut self) -> Result<&mut D::Leased, OutboxReaderError> {
        if D::Leased::NEEDS_LEASE_TO_PRUNE {
            self.ready().await?;
        }
        self.connected().await
    }

    async fn prune_published(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        self.beside().await?.prune(older_than).await
    }

    async fn measure_lag(&mut self) -> Result<Lag, OutboxReaderError> {
        let had = self.in_flight.is_some();
        self.beside().await?;
        // Under a new lease, but another relay may own the batch by now.
        if had && self.in_flight.is_none() {
            return Err(OutboxReaderError::Fenced);
        }
        match &mut self.leased {
            Some(leased) => leased.lag().await,
            None => Ok(Lag::default()),
        }
    }
}

impl<D: PollDatabase> OutboxReader for PollReader<D> {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.begin();
        let found = self.find().await;
        self.end(found)
    }

    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        self.exclusive = true;
        self.begin();
        let taken = self.take_all().await;
        self.end(taken)
    }

    async fn resume(&mut self, reached: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        let cursor = reached.and_then(|reached| PollCursor::parse(&reached.position.cursor));
        if let (Some(SinkCheckpoint { position, .. }), Some(leased)) = (reached, &self.leased) {
            let found = &leased.lease().lineage;
            if !position.lineage.matches(found) {
                let (stored, found) = (position.lineage.clone(), found.clone());
                return Err(OutboxReaderError::OutboxLineage { stored, found });
            }
            if let Some(PollCursor::Chunk(chunk)) = &cursor
                && leased.is_behind(chunk)
            {
                // Without the lease it proves nothing: another relay may have moved the sink since.
                let reached = position.cursor.to_string();
                return Err(match self.holds_lease() {
                    true => OutboxReaderError::Behind { reached },
                    false => OutboxReaderError::Fenced,
                });
            }
        }
        if let (Some(reached), None) = (reached, &cursor) {
            written_by_another_kind(&reached.position);
        }
        let at = reached.map(|reached| &reached.position.cursor);
        self.in_flight.take_if(|(batch, _)| Some(&batch.position.cursor) != at);
        self.reached = cursor;
        Ok(())
    }

    async fn ack(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        self.begin();
        let acked = self.settle(settled).await;
        self.end(acked)
    }

    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        let lease = self.database.options().lease;
        let Some(leased) = &mut self.leased else { return Err(OutboxReaderError::Fenced) };
        // If it fails, it is retried soon, not at once.
        leased.lease_mut().retry_soon(lease);
        if !leased.owns_any() {
            // The heartbeat may take it again, and another relay may have acked the batch meanwhile.
            self.in_flight = None;
        }
        leased.heartbeat().await
    }

    fn renew_after(&self) -> Duration {
        let due = |leased: &D::Leased| leased.lease().heartbeat_at.saturating_duration_since(Instant::now());
        self.leased.as_ref().map_or(self.database.options().lease / 3, due)
    }

    fn holds_lease(&self) -> bool {
        !self.in_doubt && self.leased.as_ref().is_some_and(|leased| leased.lease().is_safe())
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        if self.in_flight.is_some() {
            return Ok(Pruned::default());
        }
        self.begin();
        let pruned = self.prune_published(older_than).await;
        self.end(pruned)
    }

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        self.begin();
        let lag = self.measure_lag().await;
        self.end(lag)
    }

    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        self.in_flight = None;
        match self.leased.take() {
            Some(leased) if leased.is_open() => leased.release().await,
            _ => Ok(()),
        }
    }
}
