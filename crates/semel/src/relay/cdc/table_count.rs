//! Counts the events in the table against those that the stream delivered. A publication that was changed, and changed
//! back, leaves no other trace.

use tokio_postgres::types::Type;

use super::leader::{Leader, Stage};
use super::options::Cdc;
use super::setup;
use crate::relay::outbox_reader::OutboxReaderError;
use crate::relay::postgres::leased_session::get;
use crate::relay::postgres::snapshot::Snapshot;
use crate::store::postgres::statement::Sql;
use crate::store::{ErrorKind, Fate, StoreError};

/// A window with more events than this is not counted again in the table.
const COUNTED_MAX: u64 = 1_000_000;
/// Counts events of transactions that the second snapshot sees and the first does not, up to a bound. One that was open
/// when the first was taken is on its list; one that began later has a higher id.
static COUNT: Sql = Sql {
    text: "SELECT count(*) FROM (
               (SELECT FROM semel_outbox o
                WHERE o.xid >= pg_snapshot_xmax($1::text::pg_snapshot)
                    AND o.xid < pg_snapshot_xmax($2::text::pg_snapshot)
                    AND pg_visible_in_snapshot(o.xid, $2::text::pg_snapshot) LIMIT $3::bigint)
               UNION ALL
               (SELECT FROM semel_outbox o
                WHERE o.xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot)))
                    AND pg_visible_in_snapshot(o.xid, $2::text::pg_snapshot) LIMIT $3::bigint)
           ) AS found",
    types: &[Type::TEXT, Type::TEXT, Type::INT8],
};

/// Resets the checkpoint: the slot is ahead of it then, and the next start reads the table. See
/// [`decide`](super::slot::decide).
static DISTRUST: Sql = Sql {
    text: "UPDATE semel_outbox_slot SET acked = '0/0', commit_lsn = '0/0', place = 0, walk = NULL
           WHERE name = $1::text",
    types: &[Type::TEXT],
};

/// From where on the stream has what the table has.
pub(super) struct TableCount {
    /// Transactions from this id on began after the stream did.
    streamed_from: u64,
    /// The cursor's `low` sees all transactions that began earlier, or all that the slot does not have: from then on
    /// the stream has what the table has.
    compares: bool,
}

impl Default for TableCount {
    fn default() -> Self {
        Self { streamed_from: u64::MAX, compares: false }
    }
}

impl TableCount {
    /// The table scan is done: the slot has everything that its snapshot does not see.
    pub(super) fn table_is_published(&mut self) {
        self.compares = true;
    }

    /// The stream is read again from the last ack. What it had delivered before that was counted by the stream that
    /// ended, and is not delivered again: counting restarts.
    pub(super) fn stream_restarts(&mut self) {
        *self = Self::default();
    }

    /// The stream starts; this transaction id is new.
    pub(super) fn stream_starts(&mut self, xid: u64) {
        self.streamed_from = xid;
    }
}

impl Leader {
    /// Checks that the publication leaves no event out. If it does, it is unknown since when. So once it is correct
    /// again, the relay publishes from the table all events that are not recorded as published.
    pub(super) async fn check_publication(&mut self, cdc: &Cdc) -> Result<(), OutboxReaderError> {
        let checked = setup::publication(&self.leased, &self.names, &self.table, cdc.stream.create).await;
        if checked.as_ref().is_err_and(|error| !error.may_retry()) {
            self.distrust().await?;
        }
        checked
    }

    /// Makes the next start begin with the table. Not for a routed table (Debezium's): its rows may be deleted already.
    async fn distrust(&mut self) -> Result<(), OutboxReaderError> {
        if self.table.routed.is_none() {
            self.leased.query(&DISTRUST, &[&self.names.slot]).await?;
        }
        Ok(())
    }

    /// Before the cursor advances: the table must not have more events than the stream delivered. A publication that
    /// was changed and changed back leaves no other trace.
    pub(super) async fn compare(&mut self, cdc: &Cdc, seen: &Snapshot) -> Result<(), OutboxReaderError> {
        let low = self.group()?.low.clone();
        let Stage::Stream(stream) = &mut self.stage else { return Ok(()) };
        let Some(received) = stream.count_seen(seen) else {
            // The count is lost. It begins again with the next transaction id, as after a start.
            let xid = self.new_xid().await?;
            self.count = TableCount { streamed_from: xid, compares: false };
            return Ok(());
        };
        if !self.count.compares {
            // An earlier leader handled what came before the stream began. Counting begins here.
            self.check_publication(cdc).await?;
            self.count.compares = seen.has_all_before(self.count.streamed_from);
            return Ok(());
        }
        if received > COUNTED_MAX {
            return Ok(());
        }
        let most = i64::try_from(received).unwrap_or(i64::MAX).saturating_add(1);
        let rows = self.leased.query(&COUNT, &[&low.text(), &seen.text(), &most]).await?;
        let there: i64 = rows.first().map_or(Ok(0), |row| get(row, 0))?;
        if there.max(0).unsigned_abs() <= received {
            return Ok(());
        }
        self.distrust().await?;
        let message = format!(
            "events in {}.{} are missing from the slot {}: the publication {} left them out for a while; they are now \
             published from the table, after later events of their keys; find out who changed the publication",
            self.table.schema, self.table.name, self.names.slot, self.names.publication
        );
        Err(StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message).into())
    }
}
