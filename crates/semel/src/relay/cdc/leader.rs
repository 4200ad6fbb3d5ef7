//! The leader: the active relay. It holds all partitions (column `lane`) by lease, and the slot by its connection.

use std::time::{Duration, Instant};

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::connect::{System, connect};
use super::error::CdcError;
use super::lsn::Lsn;
use super::options::{Cdc, Names, Plant, lost, misconfigured};
use super::parking::ParkedRows;
use super::position::StreamPosition;
use super::replication_connection::ReplicationConnection;
use super::setup::{self, SlotCreation, SlotUsers};
use super::slot::{Decision, SlotCheckpoint, SlotState, decide};
use super::stream::Stream;
use super::table::Table;
use super::table_count::TableCount;
use crate::relay::outbox_reader::{OutboxLineage, OutboxReaderError};
use crate::relay::postgres::leased_session::{LeasedSession, get, partition_row};
use crate::relay::postgres::partition_group::{self, PartitionGroup, ScanPlan, Window};
use crate::relay::postgres::snapshot::Snapshot;
use crate::relay::postgres::unreadable;
use crate::store::StoreError;
use crate::store::postgres::statement::Sql;

/// How often to check how much log the slot retains, and whether the publication is complete.
const WATCH_EVERY: Duration = Duration::from_secs(10);

static TAKE: Sql = Sql { text: include_str!("sql/take.sql"), types: &[Type::TEXT, Type::INT8, Type::TEXT] };

static NEW_XID: Sql = Sql { text: "SELECT pg_current_xact_id()::text", types: &[] };

/// Where events come from at the moment.
pub(super) enum Stage {
    /// The slot is being created, which waits for every open transaction.
    Creating(SlotCreation),
    /// The slot exists. Events from before its start are only in the table.
    Adopting,
    /// Scanning the table.
    Table,
    /// The table has nothing more that the stream does not have.
    Starting,
    Stream(Box<Stream>),
    /// The leader dropped the slot.
    SlotDropped,
}

/// The result of starting.
pub(super) enum Started {
    Yes,
    /// Another connection still uses the slot.
    NotYet,
    /// The slot is lost and has to be replaced.
    Lost(CdcError),
}

pub(super) struct Leader {
    pub(super) leased: LeasedSession,
    pub(super) names: Names,
    pub(super) system: System,
    pub(super) stage: Stage,
    pub(super) table: Table,
    connection: Option<ReplicationConnection>,
    /// The end of the log, as last reported by the server.
    pub(super) written: Lsn,
    /// In a checkpoint, so the server may get the ack.
    pub(super) acked: Lsn,
    pub(super) recorded: StreamPosition,
    /// Done in the stream: all commits up to here, and events up to `position`.
    pub(super) complete: Lsn,
    pub(super) position: StreamPosition,
    /// The next `low`: every transaction the snapshot sees committed before this LSN.
    pub(super) next_low: Option<(Snapshot, Lsn)>,
    /// The start of the slot, and a transaction id above those of all that committed before it.
    barrier: Option<(Lsn, u64)>,
    pub(super) count: TableCount,
    /// This leader dropped the slot because it retained too much log.
    slot_dropped: bool,
    pub(super) parked: bool,
    pub(super) checkpointed_at: Instant,
    watch_at: Instant,
    warn_at: Instant,
    sender_timeout: Duration,
}

impl Leader {
    /// Becomes the leader: takes all partitions, and connects. `None`: another relay is.
    pub(super) async fn open(cdc: &Cdc, me: Uuid, replace: bool) -> Result<Option<Self>, OutboxReaderError> {
        let outbox = &cdc.outbox;
        let mut leased = LeasedSession::open(outbox, &me.to_string()).await?;
        let names = cdc.stream.names(leased.lease.lineage.store());
        let asked = Instant::now();
        let lease_ms = outbox.options.lease_ms();
        let values: [&(dyn ToSql + Sync); 3] =
            [&leased.lease.me, &lease_ms, &leased.lease.lineage.to_string()];
        let rows = leased.query(&TAKE, &values).await?;
        if rows.is_empty() {
            leased.close().await;
            return Ok(None);
        }
        leased.lease.renewed(asked, outbox.options.lease);
        let mut groups = Vec::new();
        for row in &rows {
            partition_group::join(&mut groups, partition_row(row)?);
        }
        let (group, at_one_cursor) = merge_all(groups)?;
        leased.groups = vec![group];

        let mut connection = connect(&outbox.connections).await?;
        let system = System::identify(&mut connection, outbox.connections.options.connect_timeout()).await?;
        system.is_of(&leased).await?;
        let state = SlotState::query(&leased, &names.slot).await?;
        let table = setup::table(&leased, cdc.stream.table.as_ref()).await?;
        leased.lease.heartbeat_at = asked + (outbox.options.lease / 3).min(state.sender_timeout / 3);
        let now = Instant::now();
        let mut active = Self {
            leased,
            names,
            system,
            stage: Stage::Starting,
            table,
            connection: Some(connection),
            written: state.written,
            acked: Lsn::default(),
            recorded: StreamPosition::default(),
            complete: Lsn::default(),
            position: StreamPosition::default(),
            next_low: None,
            barrier: None,
            count: TableCount::default(),
            slot_dropped: false,
            parked: state.parked,
            checkpointed_at: now,
            watch_at: now,
            warn_at: now,
            sender_timeout: state.sender_timeout,
        };
        active.begin(cdc, &state, at_one_cursor, replace).await?;
        tracing::info!(
            slot = active.names.slot,
            "this relay is now the leader and reads the outbox from the log"
        );
        Ok(Some(active))
    }

    /// The lineage used in positions. A reader that polls uses the same.
    pub(super) fn lineage(&self) -> OutboxLineage {
        OutboxLineage::new(self.leased.lease.lineage.store().to_owned(), Some(self.system.id.clone()))
    }

    /// The lineage of the log. A promotion begins another.
    pub(super) fn log(&self) -> OutboxLineage {
        self.log_of(&self.system.timeline)
    }

    pub(super) fn log_of(&self, timeline: &str) -> OutboxLineage {
        let system = format!("{}.{timeline}", self.system.id);
        OutboxLineage::new(self.leased.lease.lineage.store().to_owned(), Some(system))
    }

    /// Decides where to continue: with the stream, the table, or a new slot.
    async fn begin(
        &mut self,
        cdc: &Cdc,
        state: &SlotState,
        at_one_cursor: bool,
        replace: bool,
    ) -> Result<(), OutboxReaderError> {
        let mut recorded = state.recorded.as_ref();
        let found = self.log();
        if let Some(SlotCheckpoint { lineage, .. }) = recorded
            && !lineage.matches(&found)
        {
            if !(cdc.stream.follow_promotions && is_promoted(lineage, &found)) {
                return Err(OutboxReaderError::OutboxLineage { stored: lineage.clone(), found });
            }
            tracing::warn!(
                %lineage,
                %found,
                "a standby was promoted to primary; continuing from the table, so some events are sent again"
            );
            recorded = None;
        }
        let slot = state.slot.as_ref();
        if let Some(slot) = slot
            && (slot.plugin != "pgoutput" || !slot.here)
        {
            let name = &self.names.slot;
            return Err(misconfigured(format!(
                "the slot {name} does not use pgoutput, or belongs to another database; choose another slot name"
            )));
        }
        let mut decision = decide(slot, recorded);
        if replace && slot.is_some() {
            decision = Decision::Replace;
        }
        if decision != Decision::Stream && decision != Decision::ResumeScan && self.table.routed.is_some() {
            self.refuse_if_lost(state)?;
        }
        self.check_publication(cdc).await?;
        self.stage = match decision {
            Decision::Stream => {
                self.group_mut()?.window = None;
                Stage::Starting
            }
            Decision::ResumeScan if at_one_cursor && self.scans_recorded_window(recorded) => {
                if let Some(window) = &mut self.group_mut()?.window {
                    window.recorded = None;
                }
                Stage::Table
            }
            Decision::ResumeScan | Decision::Adopt => Stage::Adopting,
            Decision::Create | Decision::Replace => {
                if !cdc.stream.create {
                    let name = &self.names.slot;
                    return Err(misconfigured(format!(
                        "the slot {name} does not exist or is lost, and creating it is disabled; create it with: \
                         SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"
                    )));
                }
                if decision == Decision::Replace {
                    tracing::warn!(
                        slot = self.names.slot,
                        "the replication slot is lost; recreating it and continuing from the table"
                    );
                    setup::drop_slot(&self.leased, &self.names.slot).await?;
                }
                Stage::Creating(setup::create_slot(&cdc.outbox, &self.names.slot).await?)
            }
        };
        if let (Some(recorded), true) = (recorded, matches!(self.stage, Stage::Starting | Stage::Table)) {
            (self.acked, self.complete) = (recorded.acked, recorded.acked);
            (self.recorded, self.position) = (recorded.position, recorded.position);
        }
        Ok(())
    }

    /// Whether the cursor's window is the one recorded in the checkpoint.
    fn scans_recorded_window(&self, recorded: Option<&SlotCheckpoint>) -> bool {
        let window = self.leased.groups.first().and_then(|group| group.window.as_ref());
        let walk = recorded.and_then(|recorded| recorded.walk.as_deref());
        window.is_some_and(|window| Some(window.high.text()) == walk)
    }

    /// Rows of a routed table may be deleted already: there is nothing to continue from.
    fn refuse_if_lost(&self, state: &SlotState) -> Result<(), OutboxReaderError> {
        if state.recorded.is_none() {
            return Ok(());
        }
        Err(lost(format!(
            "the slot {} was dropped, invalidated or advanced by somebody else; events committed since may still be in \
             {}.{} or may be lost: check the table, then continue from now with `semel outbox rebase`",
            self.names.slot, self.table.schema, self.table.name
        )))
    }

    pub(super) fn group(&self) -> Result<&PartitionGroup, OutboxReaderError> {
        self.leased.groups.first().ok_or(OutboxReaderError::Fenced)
    }

    pub(super) fn group_mut(&mut self) -> Result<&mut PartitionGroup, OutboxReaderError> {
        self.leased.groups.first_mut().ok_or(OutboxReaderError::Fenced)
    }

    /// Begins with the table: with the unpublished events that were committed before now.
    pub(super) async fn adopt(&mut self, cdc: &Cdc) -> Result<Started, OutboxReaderError> {
        let state = SlotState::query(&self.leased, &self.names.slot).await?;
        let slot = match state.slot {
            Some(slot) if !slot.lost => slot,
            // Another connection is creating it: its start is not known yet.
            Some(slot) if slot.used_by.is_some() => return Ok(Started::NotYet),
            _ => {
                let message = format!("the slot {} was dropped again", self.names.slot);
                return Ok(Started::Lost(CdcError::Server { state: "42704".into(), message }));
            }
        };
        if self.table.routed.is_some() {
            (self.acked, self.complete, self.position) =
                (slot.confirmed, slot.confirmed, StreamPosition::default());
            self.checkpoint(cdc, &ParkedRows::default()).await?;
            self.stage = Stage::Starting;
            return Ok(Started::Yes);
        }
        let Some(high) = self.snapshot_past_barrier(cdc, slot.confirmed, snapshot(&state.now)?).await? else {
            return Ok(Started::NotYet);
        };
        self.barrier = None;
        (self.acked, self.complete, self.position) =
            (slot.confirmed, slot.confirmed, StreamPosition::default());
        self.group_mut()?.window = Some(Window { high, after: 0, recorded: None, plan: ScanPlan::Unknown });
        self.checkpoint(cdc, &ParkedRows::default()).await?;
        tracing::info!(
            slot = self.names.slot,
            "the slot does not reach back to all unpublished events; publishing the older ones from the table first"
        );
        self.stage = Stage::Table;
        Ok(Started::Yes)
    }

    /// A snapshot that sees every transaction committed before the slot begins. `None`: not yet.
    ///
    /// A commit is in the log before other transactions see it: in between it becomes durable, and waits for a
    /// synchronous standby. So a transaction that committed before the slot, and is not in the stream, may still look
    /// open to a snapshot taken after the slot was created. This waits for all transactions that are open at that
    /// moment; later ones commit after the start of the slot.
    async fn snapshot_past_barrier(
        &mut self,
        cdc: &Cdc,
        confirmed: Lsn,
        now: Snapshot,
    ) -> Result<Option<Snapshot>, OutboxReaderError> {
        if cdc.stream.plant.is(Plant::AdoptAtOnce) {
            return Ok(Some(now));
        }
        if let Some((_, barrier)) = self.barrier.filter(|(of, _)| *of == confirmed) {
            return Ok(now.has_all_before(barrier).then_some(now));
        }
        let barrier = self.new_xid().await?;
        tracing::info!(
            slot = self.names.slot,
            barrier,
            "waiting for open transactions to end before reading the table"
        );
        self.barrier = Some((confirmed, barrier));
        Ok(None)
    }

    /// A new transaction id: above those of all that have committed. A snapshot is not enough: beyond the last one that
    /// ended it does not say which are open.
    pub(super) async fn new_xid(&mut self) -> Result<u64, OutboxReaderError> {
        let rows = self.leased.query(&NEW_XID, &[]).await?;
        let row = rows.first().ok_or_else(|| unreadable("no transaction id was returned"))?;
        let xid: String = get(row, 0)?;
        Ok(xid.parse().map_err(|_| unreadable(&format!("{xid:?} is not a transaction id")))?)
    }

    /// The table has nothing more that the stream does not have.
    pub(super) async fn finish_table(&mut self, cdc: &Cdc) -> Result<(), OutboxReaderError> {
        let group = self.group_mut()?;
        if let Some(window) = group.window.take() {
            group.low = window.high;
            self.count.table_is_published();
        }
        self.checkpoint(cdc, &ParkedRows::default()).await?;
        self.stage = if self.slot_dropped { Stage::SlotDropped } else { Stage::Starting };
        Ok(())
    }

    /// Starts the stream.
    pub(super) async fn start(&mut self, cdc: &Cdc) -> Result<Started, OutboxReaderError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let mut connection = connect(&cdc.outbox.connections).await?;
                let timeout = cdc.outbox.connections.options.connect_timeout();
                self.system.must_be(&System::identify(&mut connection, timeout).await?.id)?;
                connection
            }
        };
        let command = setup::start(&self.names);
        match connection.start(&command, cdc.outbox.connections.options.connect_timeout()).await {
            Ok(()) => {
                let mut stream = Stream::new(connection, self.table.clone(), self.complete);
                stream.send_status(self.acked).await?;
                let xid = self.new_xid().await?;
                self.count.stream_starts(xid);
                self.stage = Stage::Stream(Box::new(stream));
                Ok(Started::Yes)
            }
            Err(error) if error.is_slot_in_use() => {
                // We own the partitions, so their last owner released them or was silent for a whole lease: its
                // connection is a leftover.
                setup::free_slot(&self.leased, &self.names.slot, SlotUsers::Readers).await?;
                Ok(Started::NotYet)
            }
            Err(error) if error.is_slot_lost() => Ok(Started::Lost(error)),
            Err(error) => Err(error.into()),
        }
    }

    /// Renews the lease, and sends a keepalive to the server.
    pub(super) async fn renew_lease(&mut self, cdc: &Cdc) -> Result<(), OutboxReaderError> {
        // If it fails, it is retried soon, not at once.
        self.leased.lease.retry_soon(cdc.outbox.options.lease);
        self.leased.heartbeat().await?;
        self.leased.lease.heartbeat_at =
            self.leased.lease.heartbeat_at.min(Instant::now() + self.sender_timeout / 3);
        if let Stage::Stream(stream) = &mut self.stage {
            stream.send_status(self.acked).await?;
        }
        self.watch(cdc).await
    }

    /// Checks how much log the slot retains. Drops it beyond the limit.
    async fn watch(&mut self, cdc: &Cdc) -> Result<(), OutboxReaderError> {
        let stream = &cdc.stream;
        let scanning = matches!(self.stage, Stage::Table);
        if Instant::now() < self.watch_at
            || self.slot_dropped
            || !(scanning || matches!(self.stage, Stage::Stream(_)))
        {
            return Ok(());
        }
        self.watch_at = Instant::now() + WATCH_EVERY.min(cdc.outbox.options.lease);
        self.check_publication(cdc).await?;
        let state = SlotState::query(&self.leased, &self.names.slot).await?;
        let held = state.held_bytes.unwrap_or(0);
        if (held > stream.warn_bytes || state.wal_status == "unreserved") && Instant::now() >= self.warn_at {
            self.warn_at = Instant::now() + Duration::from_secs(60);
            tracing::warn!(
                slot = self.names.slot,
                held_bytes = held,
                wal_status = state.wal_status,
                "the replication slot makes the server retain too much log; check that the sink accepts events"
            );
        }
        if self.table.routed.is_none() && stream.held_bytes_max.is_some_and(|most| held > most) {
            tracing::warn!(
                slot = self.names.slot,
                held_bytes = held,
                "dropping the replication slot because it retains too much log; continuing from the table"
            );
            self.slot_dropped = true;
            // A table scan needs no slot and continues: restarted each time, it might never end.
            if !scanning {
                self.stage = Stage::SlotDropped;
            }
            setup::drop_slot(&self.leased, &self.names.slot).await?;
        }
        Ok(())
    }

    /// Checkpoints, closes the stream and releases the lease.
    pub(super) async fn release(mut self, cdc: &Cdc) -> Result<(), OutboxReaderError> {
        if matches!(self.stage, Stage::Stream(_))
            && (self.position != self.recorded || self.complete > self.acked)
        {
            self.checkpoint(cdc, &ParkedRows::default()).await?;
        }
        if let Stage::Stream(stream) = self.stage {
            stream.close().await;
        }
        Ok(self.leased.release().await?)
    }
}

/// Partitions that polling left at different cursors continue together from the oldest. Whether they were at one.
fn merge_all(groups: Vec<PartitionGroup>) -> Result<(PartitionGroup, bool), OutboxReaderError> {
    let at_one_cursor = groups.len() == 1;
    let mut groups = groups.into_iter();
    let mut all = groups.next().ok_or(OutboxReaderError::Fenced)?;
    for other in groups {
        all.window = None;
        if other.low.age(&all.low).is_lt() {
            all.low = other.low;
        }
        all.partitions.extend(other.partitions);
        all.epochs.extend(other.epochs);
        all.tids.extend(other.tids);
    }
    Ok((all, at_one_cursor))
}

/// Whether only the timeline differs.
fn is_promoted(stored: &OutboxLineage, found: &OutboxLineage) -> bool {
    let (stored, found) = (stored.to_string(), found.to_string());
    let cluster = |text: &str| text.rsplit_once('.').map(|(cluster, _)| cluster.to_owned());
    cluster(&stored).is_some_and(|stored| Some(stored) == cluster(&found))
}

pub(super) fn snapshot(text: &str) -> Result<Snapshot, StoreError> {
    Snapshot::read(text).ok_or_else(|| unreadable(&format!("{text:?} is not a snapshot")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promotion_is_another_timeline_of_the_same_cluster() {
        let read = OutboxLineage::read;
        assert!(is_promoted(&read("a/71.1"), &read("a/71.2")));
        assert!(!is_promoted(&read("a/71.1"), &read("a/72.1")));
        assert!(!is_promoted(&read("a/71.1"), &read("b/71.2")));
    }
}
