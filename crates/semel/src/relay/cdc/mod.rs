//! Reading the log: events come from PostgreSQL's logical replication, in the order of their commits.
//!
//! ```text
//!  commit ─▶ log ─▶ slot ─▶ batches ─▶ sink ─▶ done ─▶ written down ─▶ the server may forget
//! ```
//!
//! - **Place.** An event's place is the place of its commit in the log and its number in the transaction: a commit alone
//!   does not name an event. With the lineage (tables, cluster, timeline) it is the batch's [position](super::outbox_reader::Position).
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
//!
//! | module | what it decides |
//! |---|---|
//! | `leader` | the relay that is active: leader by lease, connected to the slot |
//! | `next_batch` | the next batch: due parked events, then the table scan, then the stream |
//! | `stream`, `decoder` | the slot's stream in batches; from messages to events |
//! | `pgoutput` | the bytes of the plug-in `pgoutput`. Pure; never panics on malformed input |
//! | `replication_connection`, `connect` | the replication connection: frames, and how it is made |
//! | `slot`, `setup`, `check` | what is known of the slot; making slot and publication; whether the server is set up |
//! | `position`, `lsn` | positions in the log |
//! | `table` | which table's rows are events, Debezium's too |
//! | `parking` | events that are parked |
//! | `lag`, `options`, `error` | how much is left; how it is opened; errors and what to do about them |

use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use self::connect::System;
use self::leader::{Leader, Stage};
use self::lsn::Lsn;
use self::options::Cdc;
use self::parking::{ParkedRows, held_by};
use self::position::{CdcPosition, Cursor, StreamPosition};
use self::slot::Known;
use super::outbox_reader::{
    Batch, Lag, LeftOut, OutboxLineage, OutboxReader, OutboxReaderError, Pruned, Settled, SinkCheckpoint,
};
use super::poll::due_after;
use super::poll::postgres::retry::Retry;

mod check;
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

pub use check::{Finding, Severity};
#[doc(hidden)]
pub use options::Plant as PlantedBug;
pub use options::{CdcOutbox, CdcOutboxOptions};
pub use table::RoutedTable;

/// One relay's way to the log: active, or waiting to be.
pub struct CdcOutboxReader {
    cdc: Arc<Cdc>,
    me: Uuid,
    active: Option<Leader>,
    outstanding: Option<(Batch, Origin)>,
    /// How far the sink has come, where it keeps that.
    reached: Option<(OutboxLineage, CdcPosition, Vec<LeftOut>)>,
    /// What is surely done, over a reconnection. Not what is just being written down: if that fails it is not.
    carried: Option<Done>,
    /// Not before then it is tried again to become active.
    again_at: Instant,
    due_at: Instant,
    /// The slot gave an error that will not end by itself.
    replace: bool,
    /// The sink keeps one position: whoever takes the log asks the sink first.
    whole: bool,
    /// It is being asked for.
    taking: bool,
    unsure: bool,
}

/// Where a batch came from.
enum Origin {
    Stream { whole: Lsn, spot: StreamPosition, made_at: Vec<Option<String>> },
    Table { seq: i64 },
    Parked(Box<Retry>),
}

/// How far we have come on a connection.
struct Done {
    system: System,
    spot: StreamPosition,
    /// As much of it is written down.
    recorded: StreamPosition,
}

/// What becomes of it on the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carried {
    On(StreamPosition),
    /// There is nothing, or it is of another server.
    Nothing,
    /// The log ends before it.
    SetBack(Lsn),
    /// The log has come as far, and what was written down was not: it need not be the same log.
    Forgotten,
}

/// A server that was set back (its disk was) has the same name and timeline, and gives the same places in the log to
/// other commits: whoever goes on behind the old place leaves them out.
fn carried(done: Option<&Done>, system: &System, recorded: StreamPosition, written: Lsn) -> Carried {
    match done {
        Some(done) if done.system == *system => {
            if done.spot.commit > written {
                Carried::SetBack(done.spot.commit)
            } else if done.recorded > recorded {
                Carried::Forgotten
            } else {
                Carried::On(done.spot)
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
            outstanding: None,
            reached: None,
            carried: None,
            again_at: now,
            due_at: now,
            replace: false,
            whole: false,
            taking: false,
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
    async fn or_reset<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, OutboxReaderError>,
    ) -> Result<T, OutboxReaderError> {
        if self.unsure {
            self.forget();
        }
        self.unsure = true;
        let result = work(self).await;
        if result.is_err() {
            self.forget();
            // Whoever asks waits for a while before it asks again.
            self.again_at = Instant::now();
        }
        self.unsure = false;
        result
    }

    /// Is active, or becomes so. `false`: another relay is.
    async fn ready(&mut self) -> Result<bool, OutboxReaderError> {
        if self
            .active
            .as_ref()
            .is_some_and(|active| !active.link.session.is_open() || Instant::now() >= active.link.ours_until)
        {
            self.forget();
        }
        if self.active.is_none() {
            if self.whole && !self.taking {
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
        if Instant::now() >= active.link.beat_at {
            active.renew_lease(&self.cdc).await?;
        }
        if self.outstanding.is_none() && matches!(active.stage, Stage::LetGo) {
            self.forget();
            self.again_at = Instant::now();
            return Ok(false);
        }
        Ok(true)
    }

    /// What was done before the connection broke, and is not written down, is done still: in the same stream.
    fn carry(&mut self, active: &mut Leader) -> Result<(), OutboxReaderError> {
        let streams = matches!(active.stage, Stage::Starting);
        match carried(self.carried.as_ref(), &active.system, active.recorded, active.written) {
            Carried::SetBack(commit) => {
                return Err(options::lost(format!(
                    "events up to {commit} of the log are published, and the log ends at {}: the server was set back \
                     to an older state; find out, then say where to go on with `semel outbox rebase`",
                    active.written
                )));
            }
            Carried::On(spot) if streams => {
                active.spot = active.spot.max(spot);
                return Ok(());
            }
            Carried::Forgotten if streams => tracing::warn!(
                slot = active.names.slot,
                "what was written down is not there any more; going on from what is, with repetitions"
            ),
            // A new stream: what was done says nothing of it.
            _ => {}
        }
        self.carried = None;
        Ok(())
    }

    /// A position of another log says nothing about this one. Nor does one that this log has not come to yet: then it
    /// is an old copy of itself.
    fn check_reached(&self) -> Result<(), OutboxReaderError> {
        let (Some((stored, place, _)), Some(active)) = (&self.reached, &self.active) else { return Ok(()) };
        let found = active.lineage();
        if !stored.matches(&found) {
            return Err(OutboxReaderError::OutboxLineage { stored: stored.clone(), found });
        }
        let timeline = &active.system.timeline;
        if place.timeline != *timeline {
            let (stored, found) = (active.log_of(&place.timeline), active.log_of(timeline));
            return Err(OutboxReaderError::OutboxLineage { stored, found });
        }
        match &place.at {
            Cursor::Stream(spot) if spot.commit > active.written => Err(options::lost(format!(
                "the sink has events up to {} of the log, and the log ends at {}: the server was set back to an older \
                 state; find out, then say where to go on with `semel outbox rebase`, and at the sink",
                spot.commit, active.written
            ))),
            _ => Ok(()),
        }
    }

    /// Parked events that the sink has, as it says, are not parked any more.
    async fn settle_reached(&mut self) -> Result<(), OutboxReaderError> {
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

    async fn settle(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        let cdc = self.cdc.clone();
        let (Some((batch, origin)), Some(active)) = (&self.outstanding, &mut self.active) else {
            // The connection broke meanwhile: the batch is given again.
            return Err(OutboxReaderError::Fenced);
        };
        if Instant::now() >= active.link.ours_until {
            return Err(OutboxReaderError::Fenced);
        }
        match origin {
            Origin::Parked(retry) => {
                active.link.retried(&cdc.outbox, retry, settled).await?;
                active.parked = lag::any_parked(&active.link).await?;
                self.due_at = Instant::now() + due_after(settled);
            }
            Origin::Stream { whole, spot, made_at } => {
                let aside = ParkedRows::of(&batch.events, made_at, settled);
                (active.whole, active.spot) = (active.whole.max(*whole), active.spot.max(*spot));
                if !aside.is_empty() {
                    active.note(&cdc, &aside).await?;
                }
                let done = |active: &Leader| Done {
                    system: active.system.clone(),
                    spot: active.spot,
                    recorded: active.recorded,
                };
                self.carried = Some(done(active));
                active.note_if_due(&cdc).await?;
                self.carried = Some(done(active));
            }
            Origin::Table { seq } => {
                let aside = ParkedRows::of(&batch.events, &[], settled);
                if let Some(window) = &mut active.group_mut()?.window {
                    (window.after, window.recorded) = (*seq, None);
                }
                active.note(&cdc, &aside).await?;
            }
        }
        self.outstanding = None;
        Ok(())
    }
}

/// How far in the stream the sink has come, if that is further than we are, and whether it left something out.
fn mark_of(
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
        (self.whole, self.taking) = (true, true);
        let taken = self.or_reset(async |this| this.ready().await).await;
        self.taking = false;
        taken
    }

    async fn resume(&mut self, reached: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        let place = reached.and_then(|reached| Some((reached, CdcPosition::read(&reached.position.place)?)));
        if let (Some(reached), None) = (reached, &place) {
            tracing::warn!(
                place = reached.position.place,
                "what the sink has was given by another kind of source; what was published since is repeated"
            );
        }
        self.reached =
            place.map(|(reached, place)| (reached.position.lineage.clone(), place, reached.left_out.clone()));
        self.or_reset(async |this| {
            let Some(active) = &mut this.active else { return Ok(()) };
            active.written = Known::ask(&active.link, &active.names.slot).await?.written;
            // It is not known what of the batch the sink has: it is read again.
            if this.outstanding.take().is_some() && matches!(active.stage, Stage::Stream(_)) {
                active.stage = Stage::Starting;
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
        let due = |active: &Leader| active.link.beat_at.saturating_duration_since(Instant::now());
        self.active.as_ref().map_or(self.cdc.outbox.options.lease / 3, due)
    }

    fn holds_lease(&self) -> bool {
        !self.unsure && self.active.as_ref().is_some_and(|active| Instant::now() < active.link.ours_until)
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        if self.outstanding.is_some() {
            return Ok(Pruned::default());
        }
        self.or_reset(async |this| {
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

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        self.or_reset(async |this| {
            let ready = this.ready().await?;
            let cdc = this.cdc.clone();
            match &mut this.active {
                Some(active) if ready => lag::lag(&cdc, &active.link, &active.names.slot).await,
                _ => Ok(Lag::default()),
            }
        })
        .await
    }

    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        self.outstanding = None;
        match self.active.take() {
            Some(active) if !self.unsure && active.link.session.is_open() => active.release(&self.cdc).await,
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
        let spot = |commit| StreamPosition { commit: Lsn(commit), index: 1 };
        let done = Done { system: system("71"), spot: spot(100), recorded: spot(80) };
        let cases = [
            ("71", 80, 100, Carried::On(spot(100))),
            // Written down after all: the answer was lost.
            ("71", 100, 120, Carried::On(spot(100))),
            ("71", 60, 70, Carried::SetBack(Lsn(100))),
            ("71", 80, 90, Carried::SetBack(Lsn(100))),
            // Set back, and by now as far again.
            ("71", 60, 120, Carried::Forgotten),
            ("72", 60, 70, Carried::Nothing),
        ];
        for (id, recorded, written, expected) in cases {
            let found = carried(Some(&done), &system(id), spot(recorded), Lsn(written));
            assert_eq!(found, expected, "{id} {recorded} {written}");
        }
        assert_eq!(carried(None, &system("71"), spot(0), Lsn(0)), Carried::Nothing);
    }
}
