//! Polling in PostgreSQL: the difference of two snapshots, in the order of a sequence.
//!
//! A cursor that remembers the last number loses whoever drew a lower one and commits later. A cursor that waits until
//! no older transaction is under way stalls behind anybody's long one. So a cursor here remembers a *snapshot*: which
//! transactions had ended when it was taken. What a newer snapshot sees and the older one does not is new, whatever its
//! number and whoever is still under way; each event is in exactly one such window.
//!
//! **Order.** Two transactions that hand a lock over append to a key one after the other: the second draws its numbers
//! after the first has committed. So the first is in an earlier window, or in the same one with lower numbers. The ids of
//! the transactions say nothing: the second may have begun long before the first.
//!
//! **A standby is refused**: snapshots taken there have an empty list of what is under way.
//!
//! **Restart.** A window is walked through in chunks, and each is written to the cursor's row before it is sent. The
//! commit that writes it also puts on disk whatever it is about to tell: an event is never published and then lost with
//! the server, not even one that was appended with `synchronous_commit = off`.
//!
//! **Cost.** A look without result is one read and writes nothing. A batch costs two updates of the cursor. One row is
//! renewed every few seconds, to show that the relay lives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::types::ToSql;
use uuid::Uuid;

use self::leased_session::LeasedSession;
use self::options::Outbox;
use self::partition_group::ScanPlan;
use self::retry::Retry;
use super::parking::{ParkedRows, RetryBatch};
use super::{DUE_EVERY, LANES, due_after};
use crate::relay::outbox_reader::{
    Batch, Lag, OutboxReader, OutboxReaderError, Pending, Position, Pruned, Settled, SinkCheckpoint,
};
use crate::store::{ErrorKind, Fate, StoreError};

mod admin;
pub(in crate::relay) mod leased_session;
mod list;
pub(in crate::relay) mod options;
pub(in crate::relay) mod partition_group;
mod prefetch;
mod prune;
pub(in crate::relay) mod read;
pub(in crate::relay) mod retry;
pub(in crate::relay) mod snapshot;
mod statement;

pub use options::{PostgresOutbox, PostgresOutboxOptions};

/// One relay's share of the outbox.
pub struct PostgresOutboxReader {
    outbox: Arc<Outbox>,
    me: Uuid,
    link: Option<LeasedSession>,
    outstanding: Option<(Batch, Origin)>,
    /// Whose turn it is.
    turn: usize,
    due_at: Instant,
    /// A change was asked for and its answer never came: what is stored has to be read again.
    unsure: bool,
    /// All lanes or none, and none before it is asked for them.
    whole: bool,
    /// The batch that a sink has had last. It comes before any other as long as it is not done.
    reached: Option<String>,
}

/// What a group has to give.
enum Found {
    Batch(Batch),
    Nothing,
    /// Its window is behind it.
    Arrived,
}

/// Where a batch came from.
enum Origin {
    /// The window of the first of these lanes' group, up to that seq.
    Window {
        lane: i16,
        seqs: Vec<i64>,
        until: i64,
    },
    Parked(Box<Retry>),
}

impl PostgresOutboxReader {
    fn new(outbox: Arc<Outbox>) -> Self {
        Self {
            outbox,
            me: Uuid::now_v7(),
            link: None,
            outstanding: None,
            turn: 0,
            due_at: Instant::now(),
            unsure: false,
            whole: false,
            reached: None,
        }
    }

    /// Forgets what is not certain. The connection is dropped with all that is under way on it.
    fn forget(&mut self) {
        self.link = None;
        self.outstanding = None;
        self.unsure = false;
    }

    /// Does something that cannot be done half. Cancelled or failed, all is read again.
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
        }
        self.unsure = false;
        result
    }

    /// A connection, and lanes only while they are ours.
    async fn linked(&mut self) -> Result<(), OutboxReaderError> {
        if self.link.as_ref().is_some_and(|link| !link.session.is_open()) {
            self.forget();
        }
        // What we owned when the lease ran out is another's by now.
        if self.link.as_ref().is_some_and(|link| !link.groups.is_empty() && Instant::now() >= link.ours_until)
        {
            self.forget();
        }
        if self.link.is_none() {
            self.link = Some(LeasedSession::open(&self.outbox, self.me).await?);
        }
        Ok(())
    }

    /// A connection, with a lease that lasts, and the lanes that fall to us.
    async fn ready(&mut self) -> Result<(), OutboxReaderError> {
        self.linked().await?;
        let (outbox, idle) = (self.outbox.clone(), self.outstanding.is_none());
        let Some(link) = &mut self.link else { return Ok(()) };
        if self.whole && link.groups.is_empty() {
            return Err(OutboxReaderError::Fenced);
        }
        link.beat_if_due(&outbox).await?;
        if idle && !self.whole && link.heard {
            link.balance(&outbox).await?;
        }
        Ok(())
    }

    /// Gives what is outstanding, or finds the next.
    async fn find(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.ready().await?;
        if let Some((batch, _)) = &self.outstanding {
            return Ok(Some(batch.clone()));
        }
        if let Some(batch) = self.find_reached().await? {
            return Ok(Some(batch));
        }
        if Instant::now() >= self.due_at
            && let Some(batch) = self.find_due().await?
        {
            return Ok(Some(batch));
        }
        // Groups that arrive where another is go on with it. A few times: it is better to come back than to go on for
        // ever about the events of others.
        for _ in 0..4 * LANES {
            let Some(link) = &mut self.link else { return Ok(None) };
            partition_group::merge(&mut link.groups);
            let groups = link.groups.len();
            let mut arrived = false;
            for step in 0..groups {
                let at = (self.turn + step) % groups;
                match self.find_in(at).await? {
                    Found::Batch(batch) => {
                        self.turn = at + 1;
                        return Ok(Some(batch));
                    }
                    Found::Nothing => {}
                    Found::Arrived => {
                        arrived = true;
                        break;
                    }
                }
            }
            if !arrived {
                break;
            }
        }
        Ok(None)
    }

    /// What the sink has had last, if that is not done.
    async fn find_reached(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let (Some(place), Some(link)) = (self.reached.clone(), &self.link) else { return Ok(None) };
        let found = if let Some(ns) = RetryBatch::named(&place) {
            let outbox = self.outbox.clone();
            let again = link.again(&outbox, &ns).await?;
            again.map(|(retry, events)| self.give(place, events, Origin::Parked(Box::new(retry))))
        } else {
            match link.groups.iter().position(|group| group.place().as_ref() == Some(&place)) {
                None => None,
                Some(at) => match self.find_in(at).await? {
                    Found::Batch(batch) => Some(batch),
                    Found::Nothing | Found::Arrived => None,
                },
            }
        };
        if found.is_none() {
            self.reached = None;
        }
        Ok(found)
    }

    async fn find_due(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let outbox = self.outbox.clone();
        let Some(link) = &mut self.link else { return Ok(None) };
        let Some((retry, events)) = link.due(&outbox).await? else {
            self.due_at = Instant::now() + DUE_EVERY;
            return Ok(None);
        };
        if events.is_empty() {
            link.ahead = None;
            link.retried(&outbox, &retry, &[]).await?;
            return Ok(None);
        }
        if self.whole {
            link.settle_what_was_done(&outbox).await?;
        }
        let place = retry.tried.place();
        Ok(Some(self.give(place, events, Origin::Parked(Box::new(retry)))))
    }

    /// The next chunk of a group, written down.
    async fn find_in(&mut self, at: usize) -> Result<Found, OutboxReaderError> {
        let outbox = self.outbox.clone();
        let Some(link) = &mut self.link else { return Ok(Found::Nothing) };
        let mut opened = false;
        loop {
            let Some(group) = link.groups.get(at) else { return Ok(Found::Nothing) };
            match &group.window {
                None if opened || partition_group::is_awaited(&link.groups, at) => return Ok(Found::Nothing),
                None => {
                    opened = true;
                    if !link.open_window(&outbox, at).await? {
                        return Ok(Found::Nothing);
                    }
                }
                Some(window) if window.walk == ScanPlan::Unknown => link.find_walk(&outbox, at).await?,
                Some(window) => {
                    let (low, high, after) = (group.low.clone(), window.high.clone(), window.after);
                    let chunk = link.chunk(&outbox, at).await?;
                    let Some(group) = link.groups.get(at) else { return Ok(Found::Nothing) };
                    let Some(window) = &group.window else { return Ok(Found::Nothing) };
                    let (Some(until), Some(lane)) =
                        (chunk.seqs.last().copied(), group.lanes.first().copied())
                    else {
                        let Some(group) = link.groups.get_mut(at) else { return Ok(Found::Nothing) };
                        // What was written down may have been of lanes that others have now. Behind it there is more.
                        if let Some(window) = &mut group.window
                            && let Some(until) = window.recorded.take()
                        {
                            window.after = until;
                            continue;
                        }
                        group.low = high;
                        group.window = None;
                        if link.groups.len() > 1 {
                            return Ok(Found::Arrived);
                        }
                        continue;
                    };
                    let until = window.recorded.unwrap_or(until);
                    let mut moved = Vec::new();
                    let recorded = window.recorded.is_some();
                    if !recorded {
                        let values: [&(dyn ToSql + Sync); 5] =
                            [&low.text(), &high.text(), &after, &until, &group.tids];
                        moved = link.fenced(&outbox.statements.note, group, &values).await?;
                    }
                    link.moved(at, &moved)?;
                    if let Some(window) = link.groups.get_mut(at).and_then(|group| group.window.as_mut()) {
                        window.recorded = Some(until);
                    }
                    let place = link.groups.get(at).and_then(|group| group.place()).unwrap_or_default();
                    if recorded && self.whole {
                        link.settle_what_was_done(&outbox).await?;
                    }
                    link.read_ahead(&outbox);
                    let origin = Origin::Window { lane, seqs: chunk.seqs, until };
                    return Ok(Found::Batch(self.give(place, chunk.events, origin)));
                }
            }
        }
    }

    fn give(&mut self, place: String, events: Vec<Pending>, origin: Origin) -> Batch {
        let lineage = self.link.as_ref().map(|link| link.lineage.clone());
        let position =
            Position { lineage: lineage.unwrap_or_else(|| crate::relay::OutboxLineage::read("")), place };
        let batch = Batch { position, events, is_retry: matches!(origin, Origin::Parked(_)) };
        self.outstanding = Some((batch.clone(), origin));
        batch
    }

    async fn settle(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        let outbox = self.outbox.clone();
        let (Some((batch, origin)), Some(link)) = (&self.outstanding, &mut self.link) else {
            // The connection broke meanwhile: the batch is given again.
            return Err(OutboxReaderError::Fenced);
        };
        match origin {
            Origin::Parked(retry) => {
                link.ahead = None;
                link.retried(&outbox, retry, settled).await?;
                self.due_at = Instant::now() + due_after(settled);
            }
            Origin::Window { lane, seqs, until } => {
                let at = link.groups.iter().position(|group| group.lanes.contains(lane));
                let at = at.ok_or(OutboxReaderError::Fenced)?;
                let group = link.groups.get(at).ok_or(OutboxReaderError::Fenced)?;
                let aside = ParkedRows::of(seqs, &batch.events, settled);
                let moved = if aside.seqs.is_empty() {
                    link.fenced(&outbox.statements.advance, group, &[until, &group.tids]).await?
                } else {
                    // Whose key is parked now was not when the next chunk was read.
                    link.ahead = None;
                    let retry_ms = outbox.options.retry_ms();
                    let ParkedRows { seqs, keys, errors, for_good } = &aside;
                    let values: [&(dyn ToSql + Sync); 6] = [until, seqs, errors, keys, for_good, &retry_ms];
                    link.fenced(&outbox.statements.park, group, &values).await?
                };
                link.moved(at, &moved)?;
                if let Some(window) = link.groups.get_mut(at).and_then(|group| group.window.as_mut()) {
                    (window.after, window.recorded) = (*until, None);
                }
            }
        }
        (self.outstanding, self.reached) = (None, None);
        Ok(())
    }
}

impl OutboxReader for PostgresOutboxReader {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.or_reset(async |this| this.find().await).await
    }

    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        self.whole = true;
        self.or_reset(async |this| {
            this.linked().await?;
            let outbox = this.outbox.clone();
            let Some(link) = &mut this.link else { return Ok(false) };
            let taken = link.acquire_exclusive(&outbox).await?;
            if !taken {
                this.outstanding = None;
            }
            Ok(taken)
        })
        .await
    }

    async fn resume(&mut self, reached: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        if let (Some(reached), Some(link)) = (reached, &self.link)
            && !reached.position.lineage.matches(&link.lineage)
        {
            let (stored, found) = (reached.position.lineage.clone(), link.lineage.clone());
            return Err(OutboxReaderError::OutboxLineage { stored, found });
        }
        if let (Some(reached), Some(link)) = (reached, &self.link)
            && partition_group::is_behind(&link.groups, &reached.position.place)
        {
            // Or another has had it since: then it is its position, and not for us to judge.
            let reached = reached.position.place.clone();
            return Err(if self.holds_lease() {
                OutboxReaderError::Behind { reached }
            } else {
                OutboxReaderError::Fenced
            });
        }
        self.reached = reached.map(|reached| reached.position.place.clone());
        if self.outstanding.as_ref().map(|(batch, _)| &batch.position.place) != self.reached.as_ref() {
            self.outstanding = None;
        }
        Ok(())
    }

    async fn ack(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        self.or_reset(async |this| this.settle(settled).await).await
    }

    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        let outbox = self.outbox.clone();
        let Some(link) = &mut self.link else { return Err(OutboxReaderError::Fenced) };
        // Tried again soon if it fails, not at once.
        link.beat_at = Instant::now() + outbox.options.lease / 10;
        link.heartbeat(&outbox).await
    }

    fn renew_after(&self) -> Duration {
        let due = |link: &LeasedSession| link.beat_at.saturating_duration_since(Instant::now());
        self.link.as_ref().map_or(self.outbox.options.lease / 3, due)
    }

    fn holds_lease(&self) -> bool {
        !self.unsure && self.link.as_ref().is_some_and(|link| Instant::now() < link.ours_until)
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        if self.outstanding.is_some() {
            return Ok(Pruned::default());
        }
        self.or_reset(async |this| {
            this.ready().await?;
            let outbox = this.outbox.clone();
            match &mut this.link {
                Some(link) => link.prune(&outbox, older_than).await,
                None => Ok(Pruned::default()),
            }
        })
        .await
    }

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        self.or_reset(async |this| {
            let had = this.outstanding.is_some();
            this.ready().await?;
            // Under a new lease, but what is on its way is another's by now.
            if had && this.outstanding.is_none() {
                return Err(OutboxReaderError::Fenced);
            }
            let outbox = this.outbox.clone();
            match &this.link {
                Some(link) => link.lag(&outbox).await,
                None => Ok(Lag::default()),
            }
        })
        .await
    }

    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        self.outstanding = None;
        let outbox = self.outbox.clone();
        match self.link.take() {
            Some(link) if link.session.is_open() => Ok(link.release(&outbox).await?),
            _ => Ok(()),
        }
    }
}

pub(in crate::relay) fn unreadable(why: &str) -> StoreError {
    let message = format!("an answer about semel_outbox makes no sense: {why}; look at its tables with psql");
    StoreError::new(ErrorKind::Corrupt, Fate::NotApplied, message)
}
