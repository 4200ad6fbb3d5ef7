//! Reading the log: events come from PostgreSQL's logical replication, in the order of their commits.
//!
//! ```text
//!  commit ─▶ log ─▶ slot ─▶ batches ─▶ sink ─▶ done ─▶ written down ─▶ the server may forget
//! ```
//!
//! - **Place.** An event's place is the place of its commit in the log and its number in the transaction: a commit alone
//!   does not name an event. With the lineage (tables, cluster, timeline) it is the batch's [position](Position).
//! - **Crash.** The stream begins again where the server knows us to be, and gives everything from there again: the
//!   same events with the same ids in the same order. What is written down as done is left out, and for a sink that
//!   keeps the position all that it has.
//! - **Memory.** Batches are bounded, and what does not fit stays in the server: a transaction of any size is read piece
//!   by piece. Meanwhile the server hears that we live.
//! - **One at a time.** The lanes of polling are taken all together, by lease and under an epoch, so a relay that polls
//!   and one that reads the log exclude each other, and each goes on where the other was.
//! - **The slot is lost** (dropped, invalidated, made anew by somebody, or let go): what it does not have any more is
//!   published from the table. A snapshot says what there is, taken when the new slot is there; the stream then leaves
//!   out what that snapshot sees. Nothing is lost, and what was published since the last snapshot that was written down
//!   is repeated.
//! - **Another server**, or the same one restored or promoted: the lineage differs, and the relay stops.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use self::active::{Active, Stage, Started};
use self::aside::{Aside, held_by};
use self::broken::Broken;
use self::lsn::Lsn;
use self::options::{Cdc, Plant};
use self::place::{At, Place, Spot};
use self::stream::Piece;
use self::table::Row;
use super::poll::DUE_EVERY;
use super::poll::postgres::group::Walk;
use super::poll::postgres::read::read;
use super::poll::postgres::retry::Retry;
use super::source::{Batch, Lag, Lineage, Pending, Position, Pruned, Reached, Settled, Source, SourceError};

mod active;
mod aside;
mod broken;
mod check;
mod connect;
mod lag;
mod lsn;
mod options;
mod pgoutput;
mod place;
mod reader;
mod setup;
mod slot;
mod stream;
mod table;
mod wire;

pub use check::{Finding, Gravity};
#[doc(hidden)]
pub use options::Plant as PlantedBug;
pub use options::{CdcOutbox, CdcOutboxOptions};
pub use table::RoutedTable;

/// One relay's way to the log: active, or waiting to be.
pub struct CdcSource {
    cdc: Arc<Cdc>,
    me: Uuid,
    active: Option<Active>,
    outstanding: Option<(Batch, Origin)>,
    /// How far the sink has come, where it keeps that.
    reached: Option<(Lineage, Place, Vec<Uuid>)>,
    /// What is surely done, over a reconnection. Not what is just being written down: if that fails it is not.
    carried: Option<(Lineage, Spot)>,
    /// Not before then it is tried again to become active.
    again_at: Instant,
    due_at: Instant,
    /// The slot gave an error that will not end by itself.
    replace: bool,
    unsure: bool,
}

/// Where a batch came from.
enum Origin {
    Stream { whole: Lsn, spot: Spot, made_at: Vec<Option<String>> },
    Table { seq: i64 },
    Parked(Box<Retry>),
}

impl CdcSource {
    fn new(cdc: Arc<Cdc>) -> Self {
        let now = Instant::now();
        Self {
            cdc,
            me: Uuid::now_v7(),
            active: None,
            outstanding: None,
            reached: None,
            carried: None,
            again_at: now,
            due_at: now,
            replace: false,
            unsure: false,
        }
    }

    /// Forgets what is not certain. Connections are dropped with all that is under way on them.
    fn forget(&mut self) {
        self.active = None;
        self.outstanding = None;
        self.unsure = false;
    }

    /// Does something that cannot be done half. Cancelled or failed, all begins again at what is written down.
    async fn surely<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        if self.unsure {
            self.forget();
        }
        self.unsure = true;
        let result = work(self).await;
        if result.is_err() {
            self.forget();
        }
        self.unsure = false;
        result
    }

    /// Is active, or becomes so. `false`: another relay is.
    async fn ready(&mut self) -> Result<bool, SourceError> {
        if self
            .active
            .as_ref()
            .is_some_and(|active| !active.link.session.is_open() || Instant::now() >= active.link.ours_until)
        {
            self.forget();
        }
        if self.active.is_none() {
            if Instant::now() < self.again_at {
                return Ok(false);
            }
            self.again_at = Instant::now() + self.cdc.outbox.options.lease / 10;
            let Some(mut active) = Active::open(&self.cdc, self.me, self.replace).await? else {
                return Ok(false);
            };
            self.replace = false;
            if let Some((lineage, spot)) = &self.carried
                && *lineage == active.lineage
                && matches!(active.stage, Stage::Starting)
            {
                active.spot = active.spot.max(*spot);
            }
            self.check_reached(&active)?;
            self.active = Some(active);
        }
        let Some(active) = &mut self.active else { return Ok(false) };
        if Instant::now() >= active.link.beat_at {
            active.keep(&self.cdc).await?;
        }
        if self.outstanding.is_none() && matches!(active.stage, Stage::LetGo) {
            self.forget();
            self.again_at = Instant::now();
            return Ok(false);
        }
        Ok(true)
    }

    /// A position of another log says nothing about this one. Nor does one that this log has not come to yet: then it
    /// is an old copy of itself.
    fn check_reached(&self, active: &Active) -> Result<(), SourceError> {
        match &self.reached {
            Some((_, Place { at: At::Stream(spot), .. }, _)) if spot.commit > active.written => {
                Err(options::lost(format!(
                    "the sink has events up to {} of the log, and the log ends at {}: the server was set back to an \
                     older state; find out, then say where to go on with `semel outbox rebase`, at the sink too",
                    spot.commit, active.written
                )))
            }
            Some((stored, ..)) if !stored.matches(&active.lineage) => {
                Err(SourceError::Lineage { stored: stored.clone(), found: active.lineage.clone() })
            }
            _ => Ok(()),
        }
    }

    async fn find(&mut self) -> Result<Option<Batch>, SourceError> {
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
            && let Some(batch) = self.find_due().await?
        {
            return Ok(Some(batch));
        }
        loop {
            let cdc = self.cdc.clone();
            let Some(active) = &mut self.active else { return Ok(None) };
            match &mut active.stage {
                Stage::Creating(task) => {
                    let Ok(made) = tokio::time::timeout(Duration::from_millis(50), task).await else {
                        return Ok(None);
                    };
                    made.map_err(|error| options::wrong(format!("making the slot failed: {error}")))??;
                    active.stage = Stage::Adopting;
                }
                Stage::Adopting => active.adopt(&cdc).await?,
                Stage::Table => {
                    if let Some(batch) = self.find_in_table().await? {
                        return Ok(Some(batch));
                    }
                }
                Stage::Starting => match active.start(&cdc).await? {
                    Started::Yes => {}
                    Started::NotYet => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        return Ok(None);
                    }
                    Started::Lost(broken) => {
                        self.replace = true;
                        return Err(broken.into());
                    }
                },
                Stage::Stream(_) => return self.find_in_stream().await,
                Stage::LetGo => return Ok(None),
            }
        }
    }

    async fn find_due(&mut self) -> Result<Option<Batch>, SourceError> {
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
        let at = match (&active.stage, active.group()?.window.as_ref()) {
            (Stage::Table, Some(window)) => {
                At::Table { high: window.high.text().to_owned(), seq: window.after }
            }
            _ => At::Stream(active.spot),
        };
        let place = Place { at, parked: retry.numbers().to_vec() };
        Ok(self.give(place, events, Origin::Parked(Box::new(retry))))
    }

    /// The next chunk of the table. `None`: there is nothing more.
    async fn find_in_table(&mut self) -> Result<Option<Batch>, SourceError> {
        let cdc = self.cdc.clone();
        let Some(active) = &mut self.active else { return Ok(None) };
        if active.group()?.window.as_ref().is_some_and(|window| window.walk == Walk::Unknown) {
            active.link.find_walk(&cdc.outbox, 0).await?;
        }
        let mut chunk = read(&active.link.session, &cdc.outbox, active.group()?).await?;
        let (Some(seq), Some(window)) = (chunk.seqs.last().copied(), active.group()?.window.as_ref()) else {
            active.arrive(&cdc).await?;
            return Ok(None);
        };
        let high = window.high.text().to_owned();
        if let Some((_, Place { at: At::Table { high: of, seq: until }, .. }, left_out)) = &self.reached
            && *of == high
        {
            let mut seqs = chunk.seqs.iter();
            chunk.events.retain(|pending| {
                seqs.next().is_none_or(|seq| seq > until) || left_out.contains(&pending.event.id())
            });
        }
        if chunk.events.is_empty() {
            if let Some(window) = &mut active.group_mut()?.window {
                window.after = seq;
            }
            return Ok(None);
        }
        let place = Place { at: At::Table { high, seq }, parked: Vec::new() };
        Ok(self.give(place, chunk.events, Origin::Table { seq }))
    }

    async fn find_in_stream(&mut self) -> Result<Option<Batch>, SourceError> {
        let cdc = self.cdc.clone();
        let (reached, commit_only) = (&self.reached, cdc.stream.plant == Some(Plant::CommitOnly));
        let Some(active) = &mut self.active else { return Ok(None) };
        let (low, done) = (active.group()?.low.clone(), active.spot);
        let is_past = |spot: Spot, mark: Spot| {
            if commit_only { spot.commit <= mark.commit } else { spot <= mark }
        };
        let wanted = |spot: Spot, row: &Row| {
            if row.xid.is_some_and(|xid| low.sees(xid)) || is_past(spot, done) {
                return false;
            }
            match reached {
                Some((_, Place { at: At::Stream(mark), .. }, left_out)) if is_past(spot, *mark) => {
                    left_out.contains(&row.event.id())
                }
                _ => true,
            }
        };
        let Stage::Stream(stream) = &mut active.stage else { return Ok(None) };
        let read = stream.read(cdc.outbox.options.bounds, wanted).await;
        if read.as_ref().is_err_and(Broken::is_lost) {
            self.replace = true;
        }
        let Piece { rows, whole, spot } = read?;
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
            events.push(Pending { event: Arc::new(row.event), held: false });
            made_at.push(row.made_at);
        }
        if active.parked {
            lag::mark_held(&active.link, &mut events).await?;
        }
        let place = Place { at: At::Stream(spot), parked: Vec::new() };
        Ok(self.give(place, events, Origin::Stream { whole, spot, made_at }))
    }

    fn give(&mut self, place: Place, events: Vec<Pending>, origin: Origin) -> Option<Batch> {
        let lineage = self.active.as_ref().map(|active| active.lineage.clone())?;
        let batch = Batch { position: Position { lineage, place: place.to_string() }, events };
        self.outstanding = Some((batch.clone(), origin));
        Some(batch)
    }

    /// Parked events that the sink has, as it says, are not parked any more.
    async fn settle_reached(&mut self) -> Result<(), SourceError> {
        let cdc = self.cdc.clone();
        let (Some(active), Some((_, place, left_out))) = (&self.active, &mut self.reached) else {
            return Ok(());
        };
        if !place.parked.is_empty() {
            active.link.published(&cdc.outbox, &place.parked, left_out).await?;
            place.parked.clear();
            // They were left out of a batch of parked ones: in the stream they are past.
            left_out.clear();
        }
        Ok(())
    }

    async fn settle(&mut self, settled: &[Settled]) -> Result<(), SourceError> {
        let cdc = self.cdc.clone();
        let (Some((batch, origin)), Some(active)) = (&self.outstanding, &mut self.active) else {
            // The connection broke meanwhile: the batch is given again.
            return Err(SourceError::Fenced);
        };
        if Instant::now() >= active.link.ours_until {
            return Err(SourceError::Fenced);
        }
        match origin {
            Origin::Parked(retry) => {
                active.link.retried(&cdc.outbox, retry, settled).await?;
                active.parked = lag::any_parked(&active.link).await?;
                self.due_at = Instant::now();
            }
            Origin::Stream { whole, spot, made_at } => {
                let aside = Aside::of(&batch.events, made_at, settled);
                (active.whole, active.spot) = (active.whole.max(*whole), active.spot.max(*spot));
                if !aside.is_empty() {
                    active.note(&cdc, &aside).await?;
                }
                self.carried = Some((active.lineage.clone(), active.spot));
                active.note_if_due(&cdc).await?;
            }
            Origin::Table { seq } => {
                let aside = Aside::of(&batch.events, &[], settled);
                if let Some(window) = &mut active.group_mut()?.window {
                    window.after = *seq;
                }
                active.note(&cdc, &aside).await?;
            }
        }
        self.outstanding = None;
        Ok(())
    }
}

impl Source for CdcSource {
    async fn next(&mut self) -> Result<Option<Batch>, SourceError> {
        self.surely(async |this| this.find().await).await
    }

    async fn resume(&mut self, reached: Option<&Reached>) -> Result<(), SourceError> {
        let place = reached.and_then(|reached| Some((reached, Place::read(&reached.position.place)?)));
        if let (Some(reached), None) = (reached, &place) {
            tracing::warn!(
                place = reached.position.place,
                "what the sink has was given by another kind of source; what was published since is repeated"
            );
        }
        self.reached =
            place.map(|(reached, place)| (reached.position.lineage.clone(), place, reached.left_out.clone()));
        if self.outstanding.is_some() {
            // It is not known what of it the sink has: it is read again.
            self.forget();
        }
        if let Some(active) = &self.active {
            self.check_reached(active)?;
        }
        Ok(())
    }

    async fn done(&mut self, settled: &[Settled]) -> Result<(), SourceError> {
        self.surely(async |this| this.settle(settled).await).await
    }

    async fn keep(&mut self) -> Result<(), SourceError> {
        let cdc = self.cdc.clone();
        match &mut self.active {
            Some(active) => active.keep(&cdc).await,
            None => Err(SourceError::Fenced),
        }
    }

    fn keep_in(&self) -> Duration {
        let due = |active: &Active| active.link.beat_at.saturating_duration_since(Instant::now());
        self.active.as_ref().map_or(self.cdc.outbox.options.lease / 3, due)
    }

    fn holds(&self) -> bool {
        !self.unsure && self.active.as_ref().is_some_and(|active| Instant::now() < active.link.ours_until)
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, SourceError> {
        if self.outstanding.is_some() {
            return Ok(Pruned::default());
        }
        self.surely(async |this| {
            if !this.ready().await? {
                return Ok(Pruned::default());
            }
            let cdc = this.cdc.clone();
            match &mut this.active {
                Some(active) => active.link.prune(&cdc.outbox, older_than).await,
                None => Ok(Pruned::default()),
            }
        })
        .await
    }

    async fn lag(&mut self) -> Result<Lag, SourceError> {
        self.surely(async |this| {
            let ready = this.ready().await?;
            let cdc = this.cdc.clone();
            match &mut this.active {
                Some(active) if ready => lag::lag(&cdc, &active.link, active.whole).await,
                _ => Ok(Lag::default()),
            }
        })
        .await
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        self.outstanding = None;
        match self.active.take() {
            Some(active) if !self.unsure && active.link.session.is_open() => active.leave(&self.cdc).await,
            _ => Ok(()),
        }
    }
}
