//! Reads windows and their chunks, and turns rows into events.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};

use super::leased_session::{LeasedSession, get, read_by_index};
use super::partition_group::{self, PartitionGroup, ScanPlan, Window};
use super::snapshot::Snapshot;
use super::{Outbox, unreadable};
use crate::relay::lease::PARTITIONS;
use crate::relay::outbox_reader::{OutboxReaderError, Pending};
use crate::relay::row::{Columns, OutboxRow};
use crate::store::StoreError;
use crate::store::postgres::connect::Session;

/// A window with at least this many events is scanned by seq. Fewer are sorted for each chunk, which is cheaper.
const FEW_MAX: i64 = 10_000;
/// Rows per statement in the search for the lowest seq of a window.
const FLOOR_ROWS: i64 = 200_000;

/// The events of a chunk, and their seqs.
#[derive(Default)]
pub(in crate::relay) struct Chunk {
    pub(in crate::relay) events: Vec<Pending>,
    pub(in crate::relay) seqs: Vec<i64>,
}

impl LeasedSession {
    /// Polls for events committed since the group's `low`. `false`: there are none, and `low` has advanced.
    pub(in crate::relay) async fn open_window(&mut self, at: usize) -> Result<bool, OutboxReaderError> {
        let target = partition_group::target(&self.groups, at);
        let Some(low) = self.groups.get(at).map(|group| group.low.clone()) else { return Ok(false) };
        let (high, events) = self.count(&low, target.as_ref()).await?;
        let plan = self.plan(&low, &high, events).await?;
        let Some(group) = self.groups.get_mut(at) else { return Ok(false) };
        if events == 0 {
            // Not recorded: a restart from the old `low` finds nothing either.
            group.low = high;
            return Ok(false);
        }
        group.window = Some(Window { high, after: 0, recorded: None, plan });
        Ok(true)
    }

    /// Chooses the scan plan of a window that another relay began.
    pub(in crate::relay) async fn choose_plan(&mut self, at: usize) -> Result<(), OutboxReaderError> {
        let Some(group) = self.groups.get(at).cloned() else { return Ok(()) };
        let Some(window) = group.window else { return Ok(()) };
        let (_, events) = self.count(&group.low, Some(&window.high)).await?;
        let plan = self.plan(&group.low, &window.high, events).await?;
        if let Some(window) = self.groups.get_mut(at).and_then(|group| group.window.as_mut()) {
            window.plan = plan;
        }
        Ok(())
    }

    async fn count(
        &mut self,
        low: &Snapshot,
        high: Option<&Snapshot>,
    ) -> Result<(Snapshot, i64), OutboxReaderError> {
        let values: [&(dyn ToSql + Sync); 3] = [&low.text(), &high.map(Snapshot::text), &FEW_MAX];
        let outbox = Arc::clone(&self.outbox);
        let rows = self.read_by_index_renewing(&outbox.statements.open, &values).await?;
        let row = rows.first().ok_or_else(|| unreadable("the poll returned no row"))?;
        let high: String = get(row, 0)?;
        let high = Snapshot::read(&high).ok_or_else(|| unreadable(&format!("{high:?} is not a snapshot")))?;
        Ok((high, get(row, 1)?))
    }

    async fn plan(
        &mut self,
        low: &Snapshot,
        high: &Snapshot,
        events: i64,
    ) -> Result<ScanPlan, OutboxReaderError> {
        if events < FEW_MAX {
            return Ok(ScanPlan::Few);
        }
        // The lowest seq, so that the scan does not begin with events published long ago. The order of the transactions
        // does not reveal it: a transaction may draw a number and write it much later.
        let (mut floor, outbox) = (i64::MAX, Arc::clone(&self.outbox));
        let (mut xid, mut seq) = (low.xmax().to_string(), -1_i64);
        loop {
            let values: [&(dyn ToSql + Sync); 4] = [&xid, &seq, &high.xmax().to_string(), &FLOOR_ROWS];
            let rows = self.read_by_index_renewing(&outbox.statements.floor, &values).await?;
            let Some(row) = rows.first() else { break };
            floor = floor.min(get(row, 2)?);
            (xid, seq) = (get(row, 0)?, get(row, 1)?);
            self.heartbeat_if_due().await?;
        }
        Ok(ScanPlan::Many { floor: floor.saturating_sub(1) })
    }
}

/// The recorded chunk of a group, or else the next one of its window.
pub(in crate::relay) async fn read(
    session: &Session,
    outbox: &Outbox,
    group: &PartitionGroup,
) -> Result<Chunk, OutboxReaderError> {
    let Some(window) = &group.window else { return Ok(Chunk::default()) };
    let (sql, floor) = match window.plan {
        ScanPlan::Many { floor } => (&outbox.statements.many, floor),
        ScanPlan::Few | ScanPlan::Unknown => (&outbox.statements.few, 0),
    };
    let bounds = outbox.options.bounds;
    // A recorded chunk was within the bounds when it was recorded.
    let (until, events_max, bytes_max) = match window.recorded {
        Some(until) => (until, i64::MAX, i64::MAX),
        None => (i64::MAX, bound(bounds.events_max), bound(bounds.bytes_max)),
    };
    let partitions =
        (group.partitions.len() < usize::from(PARTITIONS.unsigned_abs())).then_some(&group.partitions);
    let values: [&(dyn ToSql + Sync); 8] = [
        &group.low.text(),
        &window.high.text(),
        &window.after,
        &until,
        &events_max,
        &bytes_max,
        &partitions,
        &floor,
    ];
    let rows = read_by_index(session, sql, &values).await?;
    let mut chunk = Chunk { events: Vec::with_capacity(rows.len()), seqs: Vec::with_capacity(rows.len()) };
    for row in &rows {
        chunk.seqs.push(get(row, 0)?);
        chunk.events.push(Columns::read(row, 1)?.pending(get(row, 13)?));
    }
    Ok(chunk)
}

pub(in crate::relay) fn bound(bound: usize) -> i64 {
    i64::try_from(bound).unwrap_or(i64::MAX)
}

impl OutboxRow for Row {
    type Error = StoreError;

    fn text(&self, at: usize) -> Result<Option<&[u8]>, StoreError> {
        Ok(get::<Option<RawText<'_>>>(self, at)?.map(|RawText(bytes)| bytes))
    }

    fn bytes(&self, at: usize) -> Result<Option<Vec<u8>>, StoreError> {
        get(self, at)
    }

    fn int(&self, at: usize) -> Result<i64, StoreError> {
        get(self, at)
    }

    fn unreadable(why: String) -> StoreError {
        unreadable(&why)
    }
}

/// A text as raw bytes: in a database with the encoding SQL_ASCII they need not be UTF-8.
struct RawText<'a>(&'a [u8]);

impl<'a> FromSql<'a> for RawText<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(kind: &Type) -> bool {
        matches!(*kind, Type::TEXT | Type::VARCHAR | Type::BPCHAR)
    }
}
