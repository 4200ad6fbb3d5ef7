//! What is given next: parked events whose time has come, then the table as long as it is gone through, then the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::CdcError;
use super::leader::{Leader, Stage, Started};
use super::options::Plant;
use super::position::{CdcPosition, Cursor, StreamPosition};
use super::stream::Piece;
use super::table::Row;
use super::{CdcOutboxReader, Origin, lag, mark_of};
use crate::relay::outbox_reader::{Batch, OutboxReaderError, Pending, Position};
use crate::relay::poll::DUE_EVERY;
use crate::relay::poll::postgres::partition_group::ScanPlan;
use crate::relay::poll::postgres::read::read;

impl CdcOutboxReader {
    pub(super) async fn find(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.taking = false;
        if !self.ready().await? {
            // A little, so that who asks at once again does not keep a processor busy.
            tokio::time::sleep(Duration::from_millis(10)).await;
            return Ok(None);
        }
        if let Some((batch, _)) = &self.outstanding {
            return Ok(Some(batch.clone()));
        }
        self.settle_reached().await?;
        if Instant::now() >= self.due_at
            && !self.owes()
            && let Some(batch) = self.find_due().await?
        {
            return Ok(Some(batch));
        }
        loop {
            let cdc = self.cdc.clone();
            let Some(active) = &mut self.active else { return Ok(None) };
            match &mut active.stage {
                Stage::Creating(making) => {
                    let Some(made) = making.made(Duration::from_millis(50)).await else { return Ok(None) };
                    made?;
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
                        Started::Lost(broken) => {
                            self.replace = true;
                            return Err(broken.into());
                        }
                    }
                }
                Stage::Table => {
                    if let Some(batch) = self.find_in_table().await? {
                        return Ok(Some(batch));
                    }
                }
                Stage::Stream(_) => return self.find_in_stream().await,
                Stage::LetGo => return Ok(None),
            }
        }
    }

    async fn find_due(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let cdc = self.cdc.clone();
        let Some(active) = &mut self.active else { return Ok(None) };
        let due = if active.parked { active.link.due(&cdc.outbox).await? } else { None };
        let Some((retry, events)) = due else {
            self.due_at = Instant::now() + DUE_EVERY;
            return Ok(None);
        };
        if events.is_empty() {
            active.link.retried(&cdc.outbox, &retry, &[]).await?;
            active.parked = lag::any_parked(&active.link).await?;
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
            None => Cursor::Stream(mark_of(self.reached.as_ref(), active.spot).0.max(active.spot)),
        };
        let timeline = active.system.timeline.clone();
        let place = CdcPosition { timeline, at, parked: retry.numbers().to_vec() };
        Ok(self.give(place, events, Origin::Parked(Box::new(retry))))
    }

    /// The next chunk of the table. `None`: there is nothing more.
    async fn find_in_table(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let cdc = self.cdc.clone();
        let Some(active) = &mut self.active else { return Ok(None) };
        if active.group()?.window.as_ref().is_some_and(|window| window.walk == ScanPlan::Unknown) {
            active.link.find_walk(&cdc.outbox, 0).await?;
        }
        // What was one batch stays one, up to where the sink has come.
        if let Some((_, CdcPosition { at: Cursor::Table { high, seq }, .. }, _)) = &self.reached
            && let Some(window) = &mut active.group_mut()?.window
            && window.high.text() == high
        {
            window.recorded = (*seq > window.after).then_some(*seq);
        }
        let mut chunk = read(&active.link.session, &cdc.outbox, active.group()?).await?;
        let (Some(seq), Some(window)) = (chunk.seqs.last().copied(), active.group()?.window.as_ref()) else {
            active.arrive(&cdc).await?;
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
        let place = CdcPosition { timeline, at: Cursor::Table { high, seq }, parked: Vec::new() };
        Ok(self.give(place, chunk.events, Origin::Table { seq }))
    }

    async fn find_in_stream(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let cdc = self.cdc.clone();
        let (reached, commit_only) = (&self.reached, cdc.stream.plant == Some(Plant::CommitOnly));
        let Some(active) = &mut self.active else { return Ok(None) };
        let (low, done) = (active.group()?.low.clone(), active.spot);
        let (mark, promised) = mark_of(reached.as_ref(), done);
        let is_past = |spot: StreamPosition, mark: StreamPosition| {
            if commit_only { spot.commit <= mark.commit } else { spot <= mark }
        };
        let wanted = |spot: StreamPosition, row: &Row| {
            if row.xid.is_some_and(|xid| low.sees(xid)) || is_past(spot, done) {
                return false;
            }
            match reached {
                Some((_, CdcPosition { at: Cursor::Stream(mark), .. }, left_out)) if is_past(spot, *mark) => {
                    left_out.iter().any(|left| left.is(&row.event))
                }
                _ => true,
            }
        };
        let Stage::Stream(stream) = &mut active.stage else { return Ok(None) };
        let until = if promised { mark } else { StreamPosition::default() };
        let read = stream.read(cdc.outbox.options.bounds, until, wanted).await;
        if read.as_ref().is_err_and(CdcError::is_lost) {
            self.replace = true;
        }
        let Some(Piece { rows, whole, spot }) = read? else { return Ok(None) };
        if rows.is_empty() || cdc.stream.plant == Some(Plant::AckUnconfirmed) {
            // Nothing of it is to be given, so all of it is done.
            (active.whole, active.spot) = (active.whole.max(whole), active.spot.max(spot));
            active.note_if_due(&cdc).await?;
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
            lag::mark_held(&active.link, &mut events).await?;
        }
        let timeline = active.system.timeline.clone();
        // Never back behind what the sink has written down.
        let place = CdcPosition { timeline, at: Cursor::Stream(spot.max(mark)), parked: Vec::new() };
        Ok(self.give(place, events, Origin::Stream { whole, spot, made_at }))
    }

    /// Whether events that the sink left out are still to be given. Nothing else may be given before: the sink would
    /// write down a position that does not speak of them any more.
    fn owes(&self) -> bool {
        let (Some(active), Some((_, CdcPosition { at, .. }, left_out))) = (&self.active, &self.reached)
        else {
            return false;
        };
        let window = active.link.groups.first().and_then(|group| group.window.as_ref());
        match (at, window) {
            (Cursor::Stream(mark), None) => *mark > active.spot && !left_out.is_empty(),
            (Cursor::Table { high, seq }, Some(window)) => {
                window.high.text() == high && *seq > window.after && !left_out.is_empty()
            }
            _ => false,
        }
    }

    fn give(&mut self, place: CdcPosition, events: Vec<Pending>, origin: Origin) -> Option<Batch> {
        let lineage = self.active.as_ref().map(Leader::lineage)?;
        let position = Position { lineage, place: place.to_string() };
        let batch = Batch { position, events, is_retry: matches!(origin, Origin::Parked(_)) };
        self.outstanding = Some((batch.clone(), origin));
        Some(batch)
    }
}
