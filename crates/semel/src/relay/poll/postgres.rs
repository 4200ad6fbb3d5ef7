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

use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::reader::{ChunkRead, Leased, PollReader};
use crate::relay::lease::{PARTITIONS, RelayLease};
use crate::relay::outbox_reader::{Lag, OutboxReaderError, Pending, Pruned, Settled};
use crate::relay::parking::{ParkedRows, Retry};
use crate::relay::postgres::leased_session::LeasedSession;
use crate::relay::postgres::partition_group::{self, GroupCursor, PartitionGroup, ScanPlan};

mod admin;
mod options;

pub use options::{PostgresOutbox, PostgresOutboxOptions, PostgresTables};

/// Reads one relay's share of an outbox in PostgreSQL: the partitions (column `lane`) it leases.
pub type PostgresOutboxReader = PollReader<PostgresTables>;

/// A part of the window of the group that owns this partition, up to `until`.
pub struct WindowChunk {
    partition: i16,
    seqs: Vec<i64>,
    until: i64,
}

/// What reading a group found.
enum Found {
    Chunk(Box<ChunkRead<LeasedSession>>),
    Nothing,
    /// The group has completed its window.
    Arrived,
}

impl LeasedSession {
    /// The next chunk of any group.
    async fn next_chunk(&mut self) -> Result<Option<ChunkRead<Self>>, OutboxReaderError> {
        // A group that reaches another's snapshot merges with it, and reading continues. Bounded: other relays' events
        // must not keep this call busy forever.
        for _ in 0..4 * PARTITIONS {
            partition_group::merge(&mut self.groups);
            let groups = self.groups.len();
            let mut arrived = false;
            for step in 0..groups {
                let at = (self.next_group + step) % groups;
                match self.find_in(at).await? {
                    Found::Chunk(chunk) => {
                        self.next_group = at + 1;
                        return Ok(Some(*chunk));
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

    /// The next chunk of a group. It is recorded before it is returned.
    async fn find_in(&mut self, at: usize) -> Result<Found, OutboxReaderError> {
        let mut opened = false;
        loop {
            let Some(group) = self.groups.get(at) else { return Ok(Found::Nothing) };
            match &group.window {
                None if opened || partition_group::is_awaited(&self.groups, at) => {
                    return Ok(Found::Nothing);
                }
                None => {
                    opened = true;
                    if !self.open_window(at).await? {
                        return Ok(Found::Nothing);
                    }
                }
                Some(window) if window.plan == ScanPlan::Unknown => self.choose_plan(at).await?,
                Some(window) => {
                    let (low, high, after) = (group.low.clone(), window.high.clone(), window.after);
                    let chunk = self.chunk_of(at).await?;
                    let Some(group) = self.groups.get(at) else { return Ok(Found::Nothing) };
                    let Some(window) = &group.window else { return Ok(Found::Nothing) };
                    let (Some(until), Some(partition)) =
                        (chunk.seqs.last().copied(), group.partitions.first().copied())
                    else {
                        let Some(group) = self.groups.get_mut(at) else { return Ok(Found::Nothing) };
                        // The recorded events may belong to partitions that others own now. There is more after them.
                        if let Some(window) = &mut group.window
                            && let Some(until) = window.recorded.take()
                        {
                            window.after = until;
                            continue;
                        }
                        group.low = high;
                        group.window = None;
                        if self.groups.len() > 1 {
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
                        moved =
                            self.fenced(&self.outbox.statements.record_chunk, group.fence(), &values).await?;
                    }
                    self.moved(at, &moved)?;
                    if let Some(window) = self.groups.get_mut(at).and_then(|group| group.window.as_mut()) {
                        window.recorded = Some(until);
                    }
                    let cursor = self.groups.get(at).and_then(PartitionGroup::cursor);
                    let cursor = cursor.ok_or(OutboxReaderError::Fenced)?;
                    if recorded && self.exclusive {
                        self.flush_acks().await?;
                    }
                    self.start_prefetch();
                    let (events, chunk) = (chunk.events, WindowChunk { partition, seqs: chunk.seqs, until });
                    return Ok(Found::Chunk(Box::new(ChunkRead { cursor, events, chunk })));
                }
            }
        }
    }
}

impl Leased for LeasedSession {
    type Chunk = WindowChunk;
    type Cursor = GroupCursor;

    fn lease(&self) -> &RelayLease {
        &self.lease
    }

    fn lease_mut(&mut self) -> &mut RelayLease {
        &mut self.lease
    }

    fn is_open(&self) -> bool {
        self.session.is_open()
    }

    fn owns_any(&self) -> bool {
        !self.groups.is_empty()
    }

    fn is_behind(&self, cursor: &GroupCursor) -> bool {
        partition_group::is_behind(&self.groups, cursor)
    }

    async fn heartbeat(&mut self) -> Result<(), OutboxReaderError> {
        self.heartbeat().await
    }

    async fn rebalance(&mut self) -> Result<(), OutboxReaderError> {
        self.rebalance().await
    }

    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        self.acquire_exclusive().await
    }

    async fn chunk(
        &mut self,
        cursor: Option<&GroupCursor>,
    ) -> Result<Option<ChunkRead<Self>>, OutboxReaderError> {
        let Some(cursor) = cursor else { return self.next_chunk().await };
        let of = |group: &PartitionGroup| group.cursor().as_ref() == Some(cursor);
        let Some(at) = self.groups.iter().position(of) else { return Ok(None) };
        match self.find_in(at).await? {
            Found::Chunk(chunk) => Ok(Some(*chunk)),
            Found::Nothing | Found::Arrived => Ok(None),
        }
    }

    async fn advance(
        &mut self,
        WindowChunk { partition, seqs, until }: &WindowChunk,
        events: &[Pending],
        settled: &[Settled],
    ) -> Result<(), OutboxReaderError> {
        let at = self.groups.iter().position(|group| group.partitions.contains(partition));
        let at = at.ok_or(OutboxReaderError::Fenced)?;
        let parked = ParkedRows::of(seqs, events, settled);
        if !parked.seqs.is_empty() {
            // The next chunk was prefetched before these keys were parked.
            self.prefetch = None;
        }
        let group = self.groups.get(at).ok_or(OutboxReaderError::Fenced)?;
        let statements = &self.outbox.statements;
        let moved = if parked.seqs.is_empty() {
            self.fenced(&statements.advance, group.fence(), &[until, &group.tids]).await?
        } else {
            let retry_ms = self.outbox.options.retry_ms();
            let ParkedRows { seqs, keys, errors, for_good } = &parked;
            let values: [&(dyn ToSql + Sync); 6] = [until, seqs, errors, keys, for_good, &retry_ms];
            self.fenced(&statements.park, group.fence(), &values).await?
        };
        self.moved(at, &moved)?;
        if let Some(window) = self.groups.get_mut(at).and_then(|group| group.window.as_mut()) {
            (window.after, window.recorded) = (*until, None);
        }
        Ok(())
    }

    async fn due(&mut self) -> Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError> {
        let due = LeasedSession::due(self).await?;
        if self.exclusive && due.as_ref().is_some_and(|(_, events)| !events.is_empty()) {
            self.flush_acks().await?;
        }
        Ok(due)
    }

    async fn still_parked(&mut self, ns: &[i64]) -> Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError> {
        LeasedSession::still_parked(self, ns).await
    }

    async fn retried(&mut self, retry: &Retry, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        // The next chunk was prefetched before these keys changed.
        self.prefetch = None;
        LeasedSession::retried(self, retry, settled).await
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        self.prune(older_than).await
    }

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        LeasedSession::lag(self).await
    }

    async fn release(self) -> Result<(), OutboxReaderError> {
        Ok(self.release().await?)
    }
}
