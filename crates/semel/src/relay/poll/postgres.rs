//! Polling in PostgreSQL: the difference of two snapshots, in the order of a sequence.
//!
//! A cursor that stores the last number loses a transaction that drew a lower number and commits later. A cursor that
//! waits until no older transaction is open stalls behind every long one. So a cursor here stores a *snapshot*: which
//! transactions had ended when it was taken. What a newer snapshot sees and the older one does not is new, whatever its
//! number and whatever is still open; each event is in exactly one such window.
//!
//! **Order.** Two transactions that hand over a lock append to a key one after the other: the second draws its numbers
//! after the first has committed. So the first is in an earlier window, or in the same window with lower numbers.
//! Transaction ids do not give the order: the second may have begun long before the first.
//!
//! **A standby is refused**: snapshots taken there have an empty list of open transactions.
//!
//! **Restart.** A window is read in chunks, and each chunk is recorded in the cursor's row before it is sent. That
//! commit also flushes the events of the chunk to disk: an event is never published and then lost with the server, not
//! even one appended with `synchronous_commit = off`.
//!
//! **Cost.** An empty poll is one read and no write. A batch costs two updates of the cursor. The heartbeat renews one
//! lease row every few seconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::types::ToSql;
use uuid::Uuid;

use self::leased_session::LeasedSession;
use self::options::Outbox;
use self::partition_group::ScanPlan;
use self::retry::Retry;
use super::parking::{ParkedRows, RetryBatch};
use super::{DUE_EVERY, LANES, due_after};
use crate::relay::outbox_reader::{
    Batch, Lag, OutboxReader, OutboxReaderError, Pending, Position, Pruned, Settled, SinkCheckpoint,
};
use crate::store::{ErrorKind, Fate, StoreError};

mod admin;
pub(in crate::relay) mod leased_session;
pub(in crate::relay) mod options;
pub(in crate::relay) mod partition_group;
mod prefetch;
mod prune;
pub(in crate::relay) mod read;
pub(in crate::relay) mod retry;
pub(in crate::relay) mod snapshot;
mod statement;

pub use options::{PostgresOutbox, PostgresOutboxOptions, PostgresTables};

/// Reads one relay's share of the outbox: the partitions (column `lane`) it leases.
pub struct PostgresOutboxReader {
    outbox: Arc<Outbox>,
    me: Uuid,
    leased: Option<LeasedSession>,
    in_flight: Option<(Batch, Origin)>,
    /// Groups take turns.
    next_group: usize,
    due_at: Instant,
    /// A change got no answer: the stored state has to be read again.
    in_doubt: bool,
    /// All partitions or none, and none before `acquire_exclusive`.
    exclusive: bool,
    /// Cursor of the last batch the sink has. It comes before any other until it is acked.
    reached: Option<String>,
}

/// What reading a group found.
enum Found {
    Batch(Batch),
    Nothing,
    /// The group has completed its window.
    Arrived,
}

/// Where a batch came from.
enum Origin {
    /// The window of the group that owns this partition, up to `until`.
    Window {
        lane: i16,
        seqs: Vec<i64>,
        until: i64,
    },
    Parked(Box<Retry>),
}

impl PostgresOutboxReader {
    fn new(outbox: Arc<Outbox>) -> Self {
        Self {
            outbox,
            me: Uuid::now_v7(),
            leased: None,
            in_flight: None,
            next_group: 0,
            due_at: Instant::now(),
            in_doubt: false,
            exclusive: false,
            reached: None,
        }
    }

    /// Drops the connection with everything in progress on it, and all state in doubt.
    fn reset(&mut self) {
        self.leased = None;
        self.in_flight = None;
        self.in_doubt = false;
    }

    /// Runs something that must not stay half done. If it fails or is cancelled, the stored state is read again.
    async fn or_reset<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, OutboxReaderError>,
    ) -> Result<T, OutboxReaderError> {
        if self.in_doubt {
            self.reset();
        }
        self.in_doubt = true;
        let result = work(self).await;
        if result.is_err() {
            self.reset();
        }
        self.in_doubt = false;
        result
    }

    /// Connects. Reconnects if the lease has expired: another relay may own the partitions by now.
    async fn ensure_connected(&mut self) -> Result<(), OutboxReaderError> {
        if self.leased.as_ref().is_some_and(|leased| !leased.session.is_open()) {
            self.reset();
        }
        if self
            .leased
            .as_ref()
            .is_some_and(|leased| !leased.groups.is_empty() && Instant::now() >= leased.lease_safe_until)
        {
            self.reset();
        }
        if self.leased.is_none() {
            self.leased = Some(LeasedSession::open(&self.outbox, self.me).await?);
        }
        Ok(())
    }

    /// Connects, renews the lease, and takes our share of the partitions between batches.
    async fn ready(&mut self) -> Result<(), OutboxReaderError> {
        self.ensure_connected().await?;
        let (outbox, idle) = (self.outbox.clone(), self.in_flight.is_none());
        let Some(leased) = &mut self.leased else { return Ok(()) };
        if self.exclusive && leased.groups.is_empty() {
            return Err(OutboxReaderError::Fenced);
        }
        leased.heartbeat_if_due(&outbox).await?;
        if idle && !self.exclusive && leased.rebalance_due {
            leased.rebalance(&outbox).await?;
        }
        Ok(())
    }

    /// The next batch: the one in flight, the last one the sink has, due parked events, then the next chunk.
    async fn find(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.ready().await?;
        if let Some((batch, _)) = &self.in_flight {
            return Ok(Some(batch.clone()));
        }
        if let Some(batch) = self.find_reached().await? {
            return Ok(Some(batch));
        }
        if Instant::now() >= self.due_at
            && let Some(batch) = self.find_due().await?
        {
            return Ok(Some(batch));
        }
        // A group that reaches another's snapshot merges with it, and reading continues. Bounded: other relays' events
        // must not keep this call busy forever.
        for _ in 0..4 * LANES {
            let Some(leased) = &mut self.leased else { return Ok(None) };
            partition_group::merge(&mut leased.groups);
            let groups = leased.groups.len();
            let mut arrived = false;
            for step in 0..groups {
                let at = (self.next_group + step) % groups;
                match self.find_in(at).await? {
                    Found::Batch(batch) => {
                        self.next_group = at + 1;
                        return Ok(Some(batch));
                    }
                    Found::Nothing => {}
                    Found::Arrived => {
                        arrived = true;
                        break;
                    }
                }
            }
            if !arrived {
                break;
            }
        }
        Ok(None)
    }

    /// The last batch the sink has, if it is not acked yet.
    async fn find_reached(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let (Some(cursor), Some(leased)) = (self.reached.clone(), &self.leased) else { return Ok(None) };
        let found = if let Some(ns) = RetryBatch::named(&cursor) {
            let outbox = self.outbox.clone();
            let again = leased.again(&outbox, &ns).await?;
            again.map(|(retry, events)| self.give(cursor, events, Origin::Parked(Box::new(retry))))
        } else {
            match leased.groups.iter().position(|group| group.cursor().as_ref() == Some(&cursor)) {
                None => None,
                Some(at) => match self.find_in(at).await? {
                    Found::Batch(batch) => Some(batch),
                    Found::Nothing | Found::Arrived => None,
                },
            }
        };
        if found.is_none() {
            self.reached = None;
        }
        Ok(found)
    }

    async fn find_due(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let outbox = self.outbox.clone();
        let Some(leased) = &mut self.leased else { return Ok(None) };
        let Some((retry, events)) = leased.due(&outbox).await? else {
            self.due_at = Instant::now() + DUE_EVERY;
            return Ok(None);
        };
        if events.is_empty() {
            leased.prefetch = None;
            leased.retried(&outbox, &retry, &[]).await?;
            return Ok(None);
        }
        if self.exclusive {
            leased.flush_acks(&outbox).await?;
        }
        let cursor = retry.tried.place();
        Ok(Some(self.give(cursor, events, Origin::Parked(Box::new(retry)))))
    }

    /// The next chunk of a group. It is recorded before it is returned.
    async fn find_in(&mut self, at: usize) -> Result<Found, OutboxReaderError> {
        let outbox = self.outbox.clone();
        let Some(leased) = &mut self.leased else { return Ok(Found::Nothing) };
        let mut opened = false;
        loop {
            let Some(group) = leased.groups.get(at) else { return Ok(Found::Nothing) };
            match &group.window {
                None if opened || partition_group::is_awaited(&leased.groups, at) => {
                    return Ok(Found::Nothing);
                }
                None => {
                    opened = true;
                    if !leased.open_window(&outbox, at).await? {
                        return Ok(Found::Nothing);
                    }
                }
                Some(window) if window.plan == ScanPlan::Unknown => leased.choose_plan(&outbox, at).await?,
                Some(window) => {
                    let (low, high, after) = (group.low.clone(), window.high.clone(), window.after);
                    let chunk = leased.chunk(&outbox, at).await?;
                    let Some(group) = leased.groups.get(at) else { return Ok(Found::Nothing) };
                    let Some(window) = &group.window else { return Ok(Found::Nothing) };
                    let (Some(until), Some(lane)) =
                        (chunk.seqs.last().copied(), group.lanes.first().copied())
                    else {
                        let Some(group) = leased.groups.get_mut(at) else { return Ok(Found::Nothing) };
                        // The recorded events may belong to partitions that others own now. There is more after them.
                        if let Some(window) = &mut group.window
                            && let Some(until) = window.recorded.take()
                        {
                            window.after = until;
                            continue;
                        }
                        group.low = high;
                        group.window = None;
                        if leased.groups.len() > 1 {
                            return Ok(Found::Arrived);
                        }
                        continue;
                    };
                    let until = window.recorded.unwrap_or(until);
                    let mut moved = Vec::new();
                    let recorded = window.recorded.is_some();
                    if !recorded {
                        let values: [&(dyn ToSql + Sync); 5] =
                            [&low.text(), &high.text(), &after, &until, &group.tids];
                        moved = leased.fenced(&outbox.statements.note, group, &values).await?;
                    }
                    leased.moved(at, &moved)?;
                    if let Some(window) = leased.groups.get_mut(at).and_then(|group| group.window.as_mut()) {
                        window.recorded = Some(until);
                    }
                    let cursor = leased.groups.get(at).and_then(|group| group.cursor()).unwrap_or_default();
                    if recorded && self.exclusive {
                        leased.flush_acks(&outbox).await?;
                    }
                    leased.start_prefetch(&outbox);
                    let origin = Origin::Window { lane, seqs: chunk.seqs, until };
                    return Ok(Found::Batch(self.give(cursor, chunk.events, origin)));
                }
            }
        }
    }

    fn give(&mut self, cursor: String, events: Vec<Pending>, origin: Origin) -> Batch {
        let lineage = self.leased.as_ref().map(|leased| leased.lineage.clone());
        let position = Position {
            lineage: lineage.unwrap_or_else(|| crate::relay::OutboxLineage::read("")),
            place: cursor,
        };
        let batch = Batch { position, events, is_retry: matches!(origin, Origin::Parked(_)) };
        self.in_flight = Some((batch.clone(), origin));
        batch
    }

    async fn settle(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        let outbox = self.outbox.clone();
        let (Some((batch, origin)), Some(leased)) = (&self.in_flight, &mut self.leased) else {
            // The connection broke meanwhile: the batch is delivered again.
            return Err(OutboxReaderError::Fenced);
        };
        match origin {
            Origin::Parked(retry) => {
                leased.prefetch = None;
                leased.retried(&outbox, retry, settled).await?;
                self.due_at = Instant::now() + due_after(settled);
            }
            Origin::Window { lane, seqs, until } => {
                let at = leased.groups.iter().position(|group| group.lanes.contains(lane));
                let at = at.ok_or(OutboxReaderError::Fenced)?;
                let group = leased.groups.get(at).ok_or(OutboxReaderError::Fenced)?;
                let parked = ParkedRows::of(seqs, &batch.events, settled);
                let moved = if parked.seqs.is_empty() {
                    leased.fenced(&outbox.statements.advance, group, &[until, &group.tids]).await?
                } else {
                    // The next chunk was prefetched before these keys were parked.
                    leased.prefetch = None;
                    let retry_ms = outbox.options.retry_ms();
                    let ParkedRows { seqs, keys, errors, for_good } = &parked;
                    let values: [&(dyn ToSql + Sync); 6] = [until, seqs, errors, keys, for_good, &retry_ms];
                    leased.fenced(&outbox.statements.park, group, &values).await?
                };
                leased.moved(at, &moved)?;
                if let Some(window) = leased.groups.get_mut(at).and_then(|group| group.window.as_mut()) {
                    (window.after, window.recorded) = (*until, None);
                }
            }
        }
        (self.in_flight, self.reached) = (None, None);
        Ok(())
    }
}

impl OutboxReader for PostgresOutboxReader {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.or_reset(async |this| this.find().await).await
    }

    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        self.exclusive = true;
        self.or_reset(async |this| {
            this.ensure_connected().await?;
            let outbox = this.outbox.clone();
            let Some(leased) = &mut this.leased else { return Ok(false) };
            let taken = leased.acquire_exclusive(&outbox).await?;
            if !taken {
                this.in_flight = None;
            }
            Ok(taken)
        })
        .await
    }

    async fn resume(&mut self, reached: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        if let (Some(reached), Some(leased)) = (reached, &self.leased)
            && !reached.position.lineage.matches(&leased.lineage)
        {
            let (stored, found) = (reached.position.lineage.clone(), leased.lineage.clone());
            return Err(OutboxReaderError::OutboxLineage { stored, found });
        }
        if let (Some(reached), Some(leased)) = (reached, &self.leased)
            && partition_group::is_behind(&leased.groups, &reached.position.place)
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
        self.or_reset(async |this| this.settle(settled).await).await
    }

    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        let outbox = self.outbox.clone();
        let Some(leased) = &mut self.leased else { return Err(OutboxReaderError::Fenced) };
        // If it fails, it is retried soon, not at once.
        leased.heartbeat_at = Instant::now() + outbox.options.lease / 10;
        leased.heartbeat(&outbox).await
    }

    fn renew_after(&self) -> Duration {
        let due = |leased: &LeasedSession| leased.heartbeat_at.saturating_duration_since(Instant::now());
        self.leased.as_ref().map_or(self.outbox.options.lease / 3, due)
    }

    fn holds_lease(&self) -> bool {
        !self.in_doubt && self.leased.as_ref().is_some_and(|leased| Instant::now() < leased.lease_safe_until)
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        if self.in_flight.is_some() {
            return Ok(Pruned::default());
        }
        self.or_reset(async |this| {
            this.ready().await?;
            let outbox = this.outbox.clone();
            match &mut this.leased {
                Some(leased) => leased.prune(&outbox, older_than).await,
                None => Ok(Pruned::default()),
            }
        })
        .await
    }

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        self.or_reset(async |this| {
            let had = this.in_flight.is_some();
            this.ready().await?;
            // Under a new lease, but another relay may own the batch by now.
            if had && this.in_flight.is_none() {
                return Err(OutboxReaderError::Fenced);
            }
            let outbox = this.outbox.clone();
            match &this.leased {
                Some(leased) => leased.lag(&outbox).await,
                None => Ok(Lag::default()),
            }
        })
        .await
    }

    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        self.in_flight = None;
        let outbox = self.outbox.clone();
        match self.leased.take() {
            Some(leased) if leased.session.is_open() => Ok(leased.release(&outbox).await?),
            _ => Ok(()),
        }
    }
}

pub(in crate::relay) fn unreadable(why: &str) -> StoreError {
    let message = format!("cannot read the semel_outbox tables: {why}; inspect them with psql");
    StoreError::new(ErrorKind::Corrupt, Fate::NotApplied, message)
}
