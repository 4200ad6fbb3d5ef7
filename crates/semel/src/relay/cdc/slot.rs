//! State of the replication slot, and how to continue from it.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::lsn::Lsn;
use super::position::StreamPosition;
use crate::relay::outbox_reader::{OutboxLineage, OutboxReaderError};
use crate::relay::postgres::leased_session::{LeasedSession, get};
use crate::relay::postgres::unreadable;
use crate::store::StoreError;
use crate::store::postgres::statement::Sql;

/// The slot as the server reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    pub(super) plugin: String,
    pub(super) here: bool,
    pub(super) used_by: Option<i32>,
    pub(super) lost: bool,
    pub(super) confirmed: Lsn,
}

/// What the last checkpoint recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SlotCheckpoint {
    pub(super) lineage: OutboxLineage,
    /// Everything up to here is done, and the server may have the ack.
    pub(super) acked: Lsn,
    /// Events up to here are done, too.
    pub(super) position: StreamPosition,
    /// The snapshot at which a table scan ends.
    pub(super) walk: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct SlotState {
    pub(super) slot: Option<Slot>,
    pub(super) recorded: Option<SlotCheckpoint>,
    pub(super) held_bytes: Option<u64>,
    pub(super) wal_status: String,
    /// The current snapshot.
    pub(super) now: String,
    /// How long the server waits for a message of ours.
    pub(super) sender_timeout: Duration,
    pub(super) parked: bool,
    pub(super) written: Lsn,
}

/// How to continue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    /// With the stream, from the checkpoint.
    Stream,
    /// With the table scan, from the checkpoint.
    ResumeScan,
    /// The slot begins after the checkpoint: with a new table scan, then with the stream.
    Adopt,
    /// Like `Adopt`, but the slot has to be created.
    Create,
    /// Like `Create`, but the old slot has to be dropped first.
    Replace,
}

/// A slot ahead of our last ack was created or advanced by somebody else: what it skipped was never delivered.
pub(super) fn decide(slot: Option<&Slot>, recorded: Option<&SlotCheckpoint>) -> Decision {
    match (slot, recorded) {
        (None, _) => Decision::Create,
        (Some(slot), _) if slot.lost => Decision::Replace,
        (Some(_), None) => Decision::Adopt,
        (Some(slot), Some(recorded)) if slot.confirmed > recorded.acked => Decision::Adopt,
        (Some(_), Some(recorded)) if recorded.walk.is_some() => Decision::ResumeScan,
        (Some(_), Some(_)) => Decision::Stream,
    }
}

static ASK: Sql = Sql { text: include_str!("sql/slot.sql"), types: &[Type::TEXT] };

impl SlotState {
    pub(super) async fn query(leased: &LeasedSession, name: &str) -> Result<Self, OutboxReaderError> {
        let rows = leased.query(&ASK, &[&name]).await?;
        let row = rows.first().ok_or_else(|| unreadable("the query for the slot returned no row"))?;
        Ok(Self::read(row)?)
    }

    fn read(row: &Row) -> Result<Self, StoreError> {
        let lsn = |at: usize| -> Result<Option<Lsn>, StoreError> {
            let text: Option<String> = get(row, at)?;
            text.map(|text| Lsn::read(&text).ok_or_else(|| unreadable(&format!("{text:?} is not an LSN"))))
                .transpose()
        };
        let wal_status: String = get(row, 4)?;
        let slot = if get::<bool>(row, 0)? {
            let (restart, confirmed) = (lsn(5)?, lsn(6)?);
            Some(Slot {
                plugin: get::<Option<String>>(row, 1)?.unwrap_or_default(),
                here: get::<Option<bool>>(row, 2)?.unwrap_or(false),
                used_by: get(row, 3)?,
                // Without a start position it is useless, whatever the reason.
                lost: wal_status == "lost" || restart.is_none() || confirmed.is_none(),
                confirmed: confirmed.unwrap_or_default(),
            })
        } else {
            None
        };
        let lineage: Option<String> = get(row, 8)?;
        let recorded = match (lineage, lsn(9)?, lsn(10)?, get::<Option<i64>>(row, 11)?) {
            (Some(lineage), Some(acked), Some(commit), Some(index)) => Some(SlotCheckpoint {
                lineage: OutboxLineage::read(&lineage),
                acked,
                position: StreamPosition { commit, index: index.max(0).unsigned_abs() },
                walk: get(row, 12)?,
            }),
            _ => None,
        };
        let timeout_ms: Option<i64> = get(row, 14)?;
        Ok(Self {
            slot,
            recorded,
            held_bytes: get::<Option<i64>>(row, 7)?.map(|bytes| bytes.max(0).unsigned_abs()),
            wal_status,
            now: get(row, 13)?,
            sender_timeout: match timeout_ms {
                Some(ms @ 1..) => Duration::from_millis(ms.unsigned_abs()),
                _ => Duration::from_secs(60),
            },
            parked: get(row, 15)?,
            written: lsn(16)?.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_is_a_table() {
        let slot = |confirmed, lost| Slot {
            plugin: "pgoutput".into(),
            here: true,
            used_by: None,
            lost,
            confirmed: Lsn(confirmed),
        };
        let recorded = |acked, walk: Option<&str>| SlotCheckpoint {
            lineage: OutboxLineage::read("a/1.1"),
            acked: Lsn(acked),
            position: StreamPosition::default(),
            walk: walk.map(str::to_owned),
        };
        let cases = [
            (None, None, Decision::Create),
            (None, Some(recorded(5, None)), Decision::Create),
            (Some(slot(5, true)), Some(recorded(5, None)), Decision::Replace),
            (Some(slot(5, false)), None, Decision::Adopt),
            // Recreated by somebody else.
            (Some(slot(6, false)), Some(recorded(5, None)), Decision::Adopt),
            (Some(slot(6, false)), Some(recorded(5, Some("3:3:"))), Decision::Adopt),
            (Some(slot(5, false)), Some(recorded(5, Some("3:3:"))), Decision::ResumeScan),
            (Some(slot(4, false)), Some(recorded(5, None)), Decision::Stream),
            (Some(slot(5, false)), Some(recorded(5, None)), Decision::Stream),
        ];
        for (slot, recorded, decision) in cases {
            assert_eq!(decide(slot.as_ref(), recorded.as_ref()), decision, "{slot:?} {recorded:?}");
        }
    }
}
