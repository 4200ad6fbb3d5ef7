//! Change data capture (CDC): reads events from PostgreSQL's write-ahead log by logical replication, in commit order.
//!
//! ```text
//!  commit ─▶ log ─▶ slot ─▶ batches ─▶ sink ─▶ ack ─▶ checkpoint ─▶ the server may discard the log
//! ```
//!
//! - **Position.** An event's position is the LSN of its commit and its number in the transaction: a commit alone does
//!   not identify an event. With the lineage (tables, cluster, timeline) it is the batch's
//!   [position](super::outbox_reader::Position).
//! - **Crash.** The stream restarts at our last ack and sends everything from there again: the same events with the
//!   same ids in the same order. Events that a checkpoint recorded as published are skipped, and so are those
//!   that an exactly-once sink has according to the position it stores.
//! - **Memory.** Batches are bounded, and what does not fit stays in the server: a transaction of any size is read
//!   batch by batch. Meanwhile keepalives go to the server.
//! - **One at a time.** All partitions (column `lane`) are taken together, by lease and under an epoch. So a relay that
//!   polls and one that reads the log exclude each other, and each continues where the other was.
//! - **The slot is lost** (dropped, invalidated, recreated by somebody, or dropped by us): what it no longer has is
//!   published from the table. A snapshot taken when the new slot exists says what that is; the stream then skips what
//!   it sees. No event is lost; what was published since the last recorded snapshot is repeated.
//! - **Another server**, or the same one restored or promoted: the lineage differs, and the relay stops.
//!
//! | module | what it decides |
//! |---|---|
//! | `leader` | the active relay: leader by lease, connected to the slot; where it begins, and when it drops the slot |
//! | `checkpoint` | when and how the leader records how far it is |
//! | `table_count` | whether the stream delivered all that the table has |
//! | `next_batch` | the next batch: due parked events, then the table scan, then the stream |
//! | `stream`, `decoder` | reading the slot's stream in batches; decoding messages into events |
//! | `pgoutput` | the bytes of the plug-in `pgoutput`. Pure; never panics on malformed input |
//! | `replication_connection`, `connect` | the replication connection: frames; connecting and authenticating |
//! | `slot`, `setup`, `check` | state of the slot; creating slot and publication; whether the server is set up |
//! | `position`, `lsn` | positions in the log |
//! | `table` | which table's rows are events, Debezium's too |
//! | `parking` | events to park |
//! | `lag`, `options`, `error` | how much is left; options; errors and what to do about them |

use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use self::connect::System;
use self::leader::{Leader, Stage};
use self::lsn::Lsn;
use self::options::Cdc;
use self::parking::{ParkedRows, held_by};
use self::position::{CdcPosition, Cursor, StreamPosition};
use self::slot::SlotState;
use super::outbox_reader::{
    Batch, Lag, LeftOut, OutboxLineage, OutboxReader, OutboxReaderError, Pruned, Settled, SinkCheckpoint,
    written_by_another_kind,
};
use super::parking::{Retry, due_after};

mod check;
mod checkpoint;
mod connect;
mod decoder;
mod error;
mod lag;
mod leader;
mod lsn;
mod next_batch;
mod options;
mod parking;
mod pgoutput;
mod position;
mod replication_connection;
mod setup;
mod slot;
mod stream;
mod table;
mod table_count;

pub use check::{Finding, Severity};
#[cfg(feature = "fault-injection")]
#[doc(hidden)]
pub use options::Plant as PlantedBug;
pub use options::{CdcOutbox, CdcOutboxOptions};
pub use table::RoutedTable;

/// Reads the log for one relay: as the leader, or on standby.
pub struct CdcOutboxReader {
    cdc: Arc<Cdc>,
    me: Uuid,
    active: Option<Leader>,
    in_flight: Option<(Batch, Origin)>,
    /// The checkpoint of an exactly-once sink, and the events it left out.
    reached: Option<(OutboxLineage, CdcPosition, Vec<LeftOut>)>,
    /// The progress that survives a reconnection. A checkpoint that is just being written does not count: it may fail.
    carried: Option<Done>,
    /// No attempt to become the leader before this.
    again_at: Instant,
    due_at: Instant,
    /// The slot is lost and has to be replaced.
    replace: bool,
    /// The sink keeps one position: a new leader asks the sink first.
    exclusive: bool,
    /// `acquire_exclusive` is running.
    taking: bool,
    in_doubt: bool,
}

/// Where a batch came from.
enum Origin {
    Stream { complete: Lsn, position: StreamPosition, made_at: Vec<Option<String>> },
    Table { seq: i64 },
    Parked(Box<Retry>),
}

/// The progress of one replication connection.
struct Done {
    system: System,
    position: StreamPosition,
    /// The position in the last checkpoint.
    recorded: StreamPosition,
}

/// What [`Done`] means for the next connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carried {
    On(StreamPosition),
    /// There is no such progress, or it is another server's.
    Nothing,
    /// The log ends before that position: the server was set back.
    SetBack(Lsn),
    /// The log reaches that position, but the server has an older checkpoint: this may be another log.
    Forgotten,
}

/// A server whose disk was set back keeps its identity and timeline, and reuses the same LSNs for other commits:
/// continuing after the old position would skip them.
fn carried(done: Option<&Done>, system: &System, recorded: StreamPosition, written: Lsn) -> Carried {
    match done {
        Some(done) if done.system == *system => {
            if done.position.commit > written {
                Carried::SetBack(done.position.commit)
            } else if done.recorded > recorded {
                Carried::Forgotten
            } else {
                Carried::On(done.position)
            }
        }
        _ => Carried::Nothing,
    }
}

impl CdcOutboxReader {
    fn new(cdc: Arc<Cdc>) -> Self {
        let now = Instant::now();
        Self {
            cdc,
            me: Uuid::now_v7(),
            active: None,
            in_flight: None,
            reached: None,
            carried: None,
            again_at: now,
            due_at: now,
            replace: false,
            exclusive: false,
            taking: false,
            in_doubt: false,
        }
    }

    /// Drops the connections with everything in progress on them, and all state in doubt.
    fn reset(&mut self) {
        self.active = None;
        self.in_flight = None;
        self.in_doubt = false;
    }

    /// Runs something that must not stay half done. If it fails or is cancelled, reading restarts at the checkpoint.
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
            // No pause here: the caller backs off before it tries again.
            self.again_at = Instant::now();
        }
        self.in_doubt = false;
        result
    }

    /// Becomes the leader if it is not. `false`: another relay is, or it is too early to try again.
    async fn ready(&mut self) -> Result<bool, OutboxReaderError> {
        if self
            .active
            .as_ref()
            .is_some_and(|active| !active.leased.session.is_open() || !active.leased.lease.is_safe())
        {
            self.reset();
        }
        if self.active.is_none() {
            if self.exclusive && !self.taking {
                return Err(OutboxReaderError::Fenced);
            }
            if Instant::now() < self.again_at {
                return Ok(false);
            }
            self.again_at = Instant::now() + self.cdc.outbox.options.lease / 10;
            let Some(mut active) = Leader::open(&self.cdc, self.me, self.replace).await? else {
                return Ok(false);
            };
            self.replace = false;
            self.carry(&mut active)?;
            self.active = Some(active);
            self.check_reached()?;
        }
        let Some(active) = &mut self.active else { return Ok(false) };
        if active.leased.lease.heartbeat_due() {
            active.renew_lease(&self.cdc).await?;
        }
        if self.in_flight.is_none() && matches!(active.stage, Stage::SlotDropped) {
            self.reset();
            self.again_at = Instant::now();
            return Ok(false);
        }
        Ok(true)
    }

    /// Skips events that were published before the connection broke but are not in a checkpoint yet, if the same stream
    /// continues.
    fn carry(&mut self, active: &mut Leader) -> Result<(), OutboxReaderError> {
        let streams = matches!(active.stage, Stage::Starting);
        match carried(self.carried.as_ref(), &active.system, active.recorded, active.written) {
            Carried::SetBack(commit) => {
                return Err(options::lost(format!(
                    "events up to {commit} of the log are published, but the log ends at {}: the server was set back \
                     to an older state; find out why, then choose where to continue with `semel outbox rebase`",
                    active.written
                )));
            }
            Carried::On(position) if streams => {
                active.position = active.position.max(position);
                return Ok(());
            }
            Carried::Forgotten if streams => tracing::warn!(
                slot = active.names.slot,
                "the server lost the last checkpoint of the slot; continuing from an older one, so some events are \
                 sent again; check whether the server was set back to an older state"
            ),
            // A new stream: progress in the old one does not apply.
            _ => {}
        }
        self.carried = None;
        Ok(())
    }

    /// Refuses a position of another log, and one that this log has not reached yet: it is an old copy of itself.
    fn check_reached(&self) -> Result<(), OutboxReaderError> {
        let (Some((stored, reached, _)), Some(active)) = (&self.reached, &self.active) else {
            return Ok(());
        };
        let found = active.lineage();
        if !stored.matches(&found) {
            return Err(OutboxReaderError::OutboxLineage { stored: stored.clone(), found });
        }
        let timeline = &active.system.timeline;
        if reached.timeline != *timeline {
            let (stored, found) = (active.log_of(&reached.timeline), active.log_of(timeline));
            return Err(OutboxReaderError::OutboxLineage { stored, found });
        }
        match &reached.at {
            Cursor::Stream(position) if position.commit > active.written => Err(options::lost(format!(
                "the sink has events up to {} of the log, but the log ends at {}: the server was set back to an older \
                 state; find out why, then choose where to continue with `semel outbox rebase`, and at the sink",
                position.commit, active.written
            ))),
            _ => Ok(()),
        }
    }

    /// Unparks events that the sink already has according to its position.
    async fn settle_reached(&mut self) -> Result<(), OutboxReaderError> {
        let (Some(active), Some((_, reached, left_out))) = (&self.active, &mut self.reached) else {
            return Ok(());
        };
        if !reached.parked.is_empty() {
            active.leased.published(&reached.parked, left_out).await?;
            reached.parked.clear();
            // They were left out of a retry batch: the stream is already past them.
            left_out.clear();
        }
        Ok(())
    }

    async fn settle(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        let cdc = self.cdc.clone();
        let (Some((batch, origin)), Some(active)) = (&self.in_flight, &mut self.active) else {
            // The connection broke meanwhile: the batch is delivered again.
            return Err(OutboxReaderError::Fenced);
        };
        if !active.leased.lease.is_safe() {
            return Err(OutboxReaderError::Fenced);
        }
        match origin {
            Origin::Parked(retry) => {
                active.leased.retried(retry, settled).await?;
                active.parked = lag::any_parked(&active.leased).await?;
                self.due_at = Instant::now() + due_after(settled);
            }
            Origin::Stream { complete, position, made_at } => {
                let parked = ParkedRows::of(&batch.events, made_at, settled);
                (active.complete, active.position) =
                    (active.complete.max(*complete), active.position.max(*position));
                if !parked.is_empty() {
                    active.checkpoint(&cdc, &parked).await?;
                }
                let done = |active: &Leader| Done {
                    system: active.system.clone(),
                    position: active.position,
                    recorded: active.recorded,
                };
                self.carried = Some(done(active));
                active.checkpoint_if_due(&cdc).await?;
                self.carried = Some(done(active));
            }
            Origin::Table { seq } => {
                let parked = ParkedRows::of(&batch.events, &[], settled);
                if let Some(window) = &mut active.group_mut()?.window {
                    (window.after, window.recorded) = (*seq, None);
                }
                active.checkpoint(&cdc, &parked).await?;
            }
        }
        self.in_flight = None;
        Ok(())
    }
}

/// The sink's position in the stream if it is ahead of ours, and whether the sink left events out.
fn sink_position(
    reached: Option<&(OutboxLineage, CdcPosition, Vec<LeftOut>)>,
    done: StreamPosition,
) -> (StreamPosition, bool) {
    match reached {
        Some((_, CdcPosition { at: Cursor::Stream(mark), .. }, left_out)) if *mark > done => {
            (*mark, !left_out.is_empty())
        }
        _ => (StreamPosition::default(), false),
    }
}

impl OutboxReader for CdcOutboxReader {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.or_reset(async |this| this.find().await).await
    }

    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        (self.exclusive, self.taking) = (true, true);
        let taken = self.or_reset(async |this| this.ready().await).await;
        self.taking = false;
        taken
    }

    async fn resume(&mut self, reached: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        let read = reached.and_then(|reached| Some((reached, reached.position.cursor.parse()?)));
        if let (Some(reached), None) = (reached, &read) {
            written_by_another_kind(&reached.position);
        }
        self.reached = read.map(|(reached, position)| {
            (reached.position.lineage.clone(), position, reached.left_out.clone())
        });
        self.or_reset(async |this| {
            let Some(active) = &mut this.active else { return Ok(()) };
            active.written = SlotState::query(&active.leased, &active.names.slot).await?.written;
            // It is in doubt which events of the batch the sink has: the batch is read again.
            if this.in_flight.take().is_some() && matches!(active.stage, Stage::Stream(_)) {
                active.stage = Stage::Starting;
                active.count.stream_restarts();
            }
            this.check_reached()
        })
        .await
    }

    async fn ack(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        self.or_reset(async |this| this.settle(settled).await).await
    }

    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        let cdc = self.cdc.clone();
        match &mut self.active {
            Some(active) => active.renew_lease(&cdc).await,
            None => Err(OutboxReaderError::Fenced),
        }
    }

    fn renew_after(&self) -> Duration {
        let due =
            |active: &Leader| active.leased.lease.heartbeat_at.saturating_duration_since(Instant::now());
        self.active.as_ref().map_or(self.cdc.outbox.options.lease / 3, due)
    }

    fn holds_lease(&self) -> bool {
        !self.in_doubt && self.active.as_ref().is_some_and(|active| active.leased.lease.is_safe())
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        if self.in_flight.is_some() {
            return Ok(Pruned::default());
        }
        self.or_reset(async |this| {
            if !this.ready().await? {
                return Ok(Pruned::default());
            }
            match &mut this.active {
                Some(active) => active.leased.prune(older_than).await,
                None => Ok(Pruned::default()),
            }
        })
        .await
    }

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        self.or_reset(async |this| {
            let ready = this.ready().await?;
            match &mut this.active {
                Some(active) if ready => lag::lag(&active.leased, &active.names.slot).await,
                _ => Ok(Lag::default()),
            }
        })
        .await
    }

    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        self.in_flight = None;
        match self.active.take() {
            Some(active) if !self.in_doubt && active.leased.session.is_open() => {
                active.release(&self.cdc).await
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_not_carried_to_a_server_that_was_set_back() {
        let system = |id: &str| System { id: id.into(), timeline: "1".into() };
        let position = |commit| StreamPosition { commit: Lsn(commit), index: 1 };
        let done = Done { system: system("71"), position: position(100), recorded: position(80) };
        let cases = [
            ("71", 80, 100, Carried::On(position(100))),
            // The checkpoint was recorded after all; only the answer was lost.
            ("71", 100, 120, Carried::On(position(100))),
            ("71", 60, 70, Carried::SetBack(Lsn(100))),
            ("71", 80, 90, Carried::SetBack(Lsn(100))),
            // Set back, and the log has reached the same LSN again.
            ("71", 60, 120, Carried::Forgotten),
            ("72", 60, 70, Carried::Nothing),
        ];
        for (id, recorded, written, expected) in cases {
            let found = carried(Some(&done), &system(id), position(recorded), Lsn(written));
            assert_eq!(found, expected, "{id} {recorded} {written}");
        }
        assert_eq!(carried(None, &system("71"), position(0), Lsn(0)), Carried::Nothing);
    }
}
