//! The checkpoint: records how far the leader is, and parks events, in one commit under its epochs. Then acks to the
//! server, which may discard the log up to there.

use std::time::Instant;

use tokio_postgres::types::{ToSql, Type};

use super::leader::{Leader, Stage, snapshot};
use super::lsn::Lsn;
use super::options::Cdc;
use super::parking::ParkedRows;
use crate::relay::outbox_reader::OutboxReaderError;
use crate::relay::postgres::leased_session::get;
use crate::relay::postgres::unreadable;
use crate::store::postgres::statement::Sql;

static CHECKPOINT: Sql = Sql {
    text: include_str!("sql/checkpoint.sql"),
    types: &[
        Type::INT2_ARRAY,
        Type::INT8_ARRAY,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::INT8,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::INT8,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::BOOL_ARRAY,
        Type::INT8,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::BYTEA_ARRAY,
        Type::BYTEA_ARRAY,
    ],
};

impl Leader {
    /// Records how far we are and parks events, in one commit under our epochs. Then acks to the server.
    pub(super) async fn checkpoint(
        &mut self,
        cdc: &Cdc,
        parked: &ParkedRows,
    ) -> Result<(), OutboxReaderError> {
        // All that this snapshot sees is done: the cursor advances, and older events may be pruned.
        if let Some((seen, before)) = self.next_low.take_if(|(_, before)| *before <= self.complete)
            && matches!(self.stage, Stage::Stream(_))
            && self.table.routed.is_none()
        {
            self.compare(cdc, &seen).await?;
            tracing::trace!(%seen, %before, "the cursor advances");
            self.group_mut()?.low = seen;
        }
        let (acked, position, retry_ms) =
            (self.complete.to_string(), self.position, cdc.outbox.options.retry_ms());
        let (commit, index) =
            (position.commit.to_string(), i64::try_from(position.index).unwrap_or(i64::MAX));
        let lineage = self.log().to_string();
        let group = self.group()?;
        let high = group.window.as_ref().map(|window| window.high.text());
        let after = group.window.as_ref().map_or(0, |window| window.after);
        let [topic, kind, key, of, about, media, headers, once, trace] = &parked.texts;
        let values: [&(dyn ToSql + Sync); 28] = [
            &group.partitions,
            &group.epochs,
            &self.names.slot,
            &lineage,
            &acked,
            &commit,
            &index,
            &high,
            &group.low.text(),
            &high,
            &after,
            &parked.errors,
            &parked.keys,
            &parked.for_good,
            &retry_ms,
            &parked.made_at,
            &parked.ids,
            topic,
            kind,
            key,
            of,
            about,
            media,
            headers,
            once,
            trace,
            &parked.intents,
            &parked.payloads,
        ];
        let rows = self.leased.query(&CHECKPOINT, &values).await?;
        let row = rows.first().ok_or(OutboxReaderError::Fenced)?;
        if self.next_low.is_none() {
            let (seen, before): (String, String) = (get(row, 0)?, get(row, 1)?);
            let before =
                Lsn::read(&before).ok_or_else(|| unreadable(&format!("{before:?} is not an LSN")))?;
            self.next_low = Some((snapshot(&seen)?, before));
        }
        self.parked |= !parked.is_empty();
        (self.acked, self.recorded) = (self.complete, self.position);
        self.checkpointed_at = Instant::now();
        if let Stage::Stream(stream) = &mut self.stage {
            stream.send_status(self.acked).await?;
        }
        Ok(())
    }

    /// Checkpoints if due. Without new events that may take longer: only the log has grown.
    pub(super) async fn checkpoint_if_due(&mut self, cdc: &Cdc) -> Result<(), OutboxReaderError> {
        let every = cdc.stream.checkpoint_interval;
        let moved = self.position != self.recorded;
        let due = self.checkpointed_at.elapsed() >= if moved { every } else { every * 5 };
        if due && (moved || self.complete > self.acked) {
            self.checkpoint(cdc, &ParkedRows::default()).await
        } else {
            Ok(())
        }
    }
}
