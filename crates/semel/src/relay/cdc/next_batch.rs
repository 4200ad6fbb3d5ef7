//! Chooses the next batch: due parked events, then the table scan, then the stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::CdcError;
use super::leader::{Leader, Stage, Started};
use super::options::Plant;
use super::position::{CdcPosition, Cursor, StreamPosition};
use super::stream::StreamBatch;
use super::table::Row;
use super::{CdcOutboxReader, Origin, lag, sink_position};
use crate::relay::outbox_reader::{Batch, BatchCursor, OutboxReaderError, Pending, Position};
use crate::relay::parking::DUE_EVERY;
use crate::relay::postgres::partition_group::ScanPlan;
use crate::relay::postgres::read::read;

impl CdcOutboxReader {
    pub(super) async fn find(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.taking = false;
        if !self.ready().await? {
            // A short pause, so that a caller in a loop does not keep a processor busy.
            tokio::time::sleep(Duration::from_millis(10)).await;
            return Ok(None);
        }
        if let Some((batch, _)) = &self.in_flight {
            return Ok(Some(batch.clone()));
        }
        self.settle_reached().await?;
        if Instant::now() >= self.due_at
            && !self.owes_left_out()
            && let Some(batch) = self.find_due().await?
        {
            return Ok(Some(batch));
        }
        loop {
            let cdc = self.cdc.clone();
            let Some(active) = &mut self.active else { return Ok(None) };
            match &mut active.stage {
                Stage::Creating(creation) => {
                    let created = creation.created(Duration::from_millis(50)).await;
                    let Some(created) = created else { return Ok(None) };
                    created?;
                    active.stage = Stage::Adopting;
                }
                stage @ (Stage::Adopting | Stage::Starting) => {
                    let begun = match stage {
                        Stage::Adopting => active.adopt(&cdc).await?,
                        _ => active.start(&cdc).await?,
                    };
                    match begun {
                        Started::Yes => {}
                        Started::NotYet => {
                            tokio::time::sleep(Duration::from_millis(20)).await;
                            return Ok(None);
                        }
                        Started::Lost(error) => {
                            self.replace = true;
                            return Err(error.into());
                        }
                    }
                }
                Stage::Table => {
                    if let Some(batch) = self.find_in_table().await? {
                        return Ok(Some(batch));
                    }
                }
                Stage::Stream(_) => return self.find_in_stream().await,
                Stage::SlotDropped => return Ok(None),
            }
        }
    }

    async fn find_due(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let Some(active) = &mut self.active else { return Ok(None) };
        let due = if active.parked { active.leased.due().await? } else { None };
        let Some((retry, events)) = due else {
            self.due_at = Instant::now() + DUE_EVERY;
            return Ok(None);
        };
        if events.is_empty() {
            active.leased.retried(&retry, &[]).await?;
            active.parked = lag::any_parked(&active.leased).await?;
            return Ok(None);
        }
        let at = match active.group()?.window.as_ref() {
            Some(window) => {
                let (high, mut seq) = (window.high.text().to_owned(), window.after);
                if let Some((_, CdcPosition { at: Cursor::Table { high: of, seq: until }, .. }, _)) =
                    &self.reached
                    && *of == high
                {
                    seq = seq.max(*until);
                }
                Cursor::Table { high, seq }
            }
            None => {
                Cursor::Stream(sink_position(self.reached.as_ref(), active.position).0.max(active.position))
            }
        };
        let timeline = active.system.timeline.clone();
        let position = CdcPosition { timeline, at, parked: retry.tried.ns.clone() };
        Ok(self.give(position, events, Origin::Parked(Box::new(retry))))
    }

    /// The next chunk of the table. `None`: there is nothing more.
    async fn find_in_table(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let cdc = self.cdc.clone();
        let Some(active) = &mut self.active else { return Ok(None) };
        if active.group()?.window.as_ref().is_some_and(|window| window.plan == ScanPlan::Unknown) {
            active.leased.choose_plan(0).await?;
        }
        // The next chunk ends at the sink's position, so that it is the same batch as before.
        if let Some((_, CdcPosition { at: Cursor::Table { high, seq }, .. }, _)) = &self.reached
            && let Some(window) = &mut active.group_mut()?.window
            && window.high.text() == high
        {
            window.recorded = (*seq > window.after).then_some(*seq);
        }
        let mut chunk = read(&active.leased.session, &cdc.outbox, active.group()?).await?;
        let (Some(seq), Some(window)) = (chunk.seqs.last().copied(), active.group()?.window.as_ref()) else {
            active.finish_table(&cdc).await?;
            return Ok(None);
        };
        let high = window.high.text().to_owned();
        if let Some((_, CdcPosition { at: Cursor::Table { high: of, seq: until }, .. }, left_out)) =
            &self.reached
            && *of == high
        {
            let mut seqs = chunk.seqs.iter();
            chunk.events.retain(|pending| {
                seqs.next().is_none_or(|seq| seq > until)
                    || left_out.iter().any(|left| left.is(&pending.event))
            });
        }
        if chunk.events.is_empty() {
            if let Some(window) = &mut active.group_mut()?.window {
                (window.after, window.recorded) = (seq, None);
            }
            return Ok(None);
        }
        let timeline = active.system.timeline.clone();
        let position = CdcPosition { timeline, at: Cursor::Table { high, seq }, parked: Vec::new() };
        Ok(self.give(position, chunk.events, Origin::Table { seq }))
    }

    async fn find_in_stream(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let cdc = self.cdc.clone();
        let (reached, commit_only) = (&self.reached, cdc.stream.plant.is(Plant::CommitOnly));
        let Some(active) = &mut self.active else { return Ok(None) };
        let (low, done) = (active.group()?.low.clone(), active.position);
        let (mark, has_left_out) = sink_position(reached.as_ref(), done);
        let is_past = |position: StreamPosition, mark: StreamPosition| {
            if commit_only { position.commit <= mark.commit } else { position <= mark }
        };
        let wanted = |position: StreamPosition, row: &Row| {
            if row.xid.is_some_and(|xid| low.sees(xid)) || is_past(position, done) {
                return false;
            }
            match reached {
                Some((_, CdcPosition { at: Cursor::Stream(mark), .. }, left_out))
                    if is_past(position, *mark) =>
                {
                    left_out.iter().any(|left| left.is(&row.event))
                }
                _ => true,
            }
        };
        let Stage::Stream(stream) = &mut active.stage else { return Ok(None) };
        let until = if has_left_out { mark } else { StreamPosition::default() };
        let read = stream.read(cdc.outbox.options.bounds, until, wanted).await;
        if read.as_ref().is_err_and(CdcError::is_slot_lost) {
            self.replace = true;
        }
        let Some(StreamBatch { rows, complete, position }) = read? else { return Ok(None) };
        if rows.is_empty() || cdc.stream.plant.is(Plant::AckUnconfirmed) {
            // There is nothing to publish in it, so all of it is done.
            (active.complete, active.position) =
                (active.complete.max(complete), active.position.max(position));
            active.checkpoint_if_due(&cdc).await?;
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let (mut events, mut made_at) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        for (_, row) in rows {
            events.push(Pending { event: Arc::new(row.event), held: false, unreadable: row.unreadable });
            made_at.push(row.made_at);
        }
        if active.parked {
            lag::mark_held(&active.leased, &mut events).await?;
        }
        let timeline = active.system.timeline.clone();
        // Never behind the position that the sink has stored.
        let at = Cursor::Stream(position.max(mark));
        let cdc_position = CdcPosition { timeline, at, parked: Vec::new() };
        Ok(self.give(cdc_position, events, Origin::Stream { complete, position, made_at }))
    }

    /// Whether events that the sink left out are still to be delivered. They come before anything else: otherwise the
    /// sink would store a position that no longer lists them.
    fn owes_left_out(&self) -> bool {
        let (Some(active), Some((_, CdcPosition { at, .. }, left_out))) = (&self.active, &self.reached)
        else {
            return false;
        };
        let window = active.leased.groups.first().and_then(|group| group.window.as_ref());
        match (at, window) {
            (Cursor::Stream(mark), None) => *mark > active.position && !left_out.is_empty(),
            (Cursor::Table { high, seq }, Some(window)) => {
                window.high.text() == high && *seq > window.after && !left_out.is_empty()
            }
            _ => false,
        }
    }

    fn give(&mut self, position: CdcPosition, events: Vec<Pending>, origin: Origin) -> Option<Batch> {
        let lineage = self.active.as_ref().map(Leader::lineage)?;
        let position = Position { lineage, cursor: BatchCursor::of(position) };
        let batch = Batch { position, events, is_retry: matches!(origin, Origin::Parked(_)) };
        self.in_flight = Some((batch.clone(), origin));
        Some(batch)
    }
}
