//! The simulated outbox as a relay sees it: the real relay's `OutboxReader` over tables in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel::relay::parking::{DUE_EVERY, due_after};
use semel::relay::parking::{ParkedCursor, ParkedRows, RetryBatch, RetryResult};
use semel::relay::{
    Batch, BatchCursor, Lag, OutboxLineage, OutboxReader, OutboxReaderError, Pending, Position, Pruned,
    Settled, SinkCheckpoint,
};
use semel::store::{ErrorKind, Fate, StoreError};
use tokio::time::Instant;

use super::broker::Strike;
use super::plan::Fault;
use super::tables::Tables;
use crate::stage::Stage;

/// How long a statement takes.
const STATEMENT: Duration = Duration::from_millis(1);

/// The database, shared by all relays.
#[derive(Clone)]
pub(super) struct Outbox {
    stage: Stage,
    tables: Arc<Mutex<Tables>>,
    faults: Arc<Vec<Fault>>,
    lease: Duration,
    late: Arc<Mutex<Late>>,
}

/// How often `done` was said, and which of it came late.
#[derive(Default)]
struct Late {
    dones: u64,
    strikes: Vec<Strike>,
}

impl Outbox {
    pub(super) fn new(stage: &Stage, tables: Tables, faults: &[Fault], lease_ms: u64) -> Self {
        Self {
            stage: stage.clone(),
            tables: Arc::new(Mutex::new(tables)),
            faults: Arc::new(faults.to_vec()),
            lease: Duration::from_millis(lease_ms),
            late: Arc::default(),
        }
    }

    fn late(&self) -> MutexGuard<'_, Late> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The relays whose `done` came late.
    pub(super) fn strikes(&self) -> Vec<Strike> {
        self.late().strikes.clone()
    }

    /// How long the next `done` is on its way, if the plan says so.
    fn done_is_late(&self) -> Option<Duration> {
        let at_ms = self.tables().now_ms();
        let mut late = self.late();
        late.dones += 1;
        let dones = late.dones;
        let by_ms = self.faults.iter().find_map(|fault| match fault {
            Fault::LateDone { done, by_ms } if *done == dones => Some(*by_ms),
            _ => None,
        })?;
        late.strikes.push(Strike { at_ms, for_ms: by_ms });
        drop(late);
        self.stage.trace(format_args!("done {dones} is on its way to the outbox for {by_ms} ms"));
        self.stage.count("late dones", 1);
        Some(Duration::from_millis(by_ms))
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A source for one process of a relay.
    pub(super) fn source(&self, me: u64) -> SimulatedSource {
        let now = Instant::now();
        SimulatedSource {
            outbox: self.clone(),
            me,
            owned: BTreeMap::new(),
            outstanding: None,
            heartbeat_at: now,
            ours_until: now,
            due_at: now,
            next_partition: 0,
            whole: false,
            reached: None,
            unsure: false,
        }
    }

    fn is_in(&self, during: impl Fn(&Fault) -> Option<(u64, u64)>) -> bool {
        let now = self.tables().now_ms();
        self.faults.iter().filter_map(during).any(|(at, long)| (at..at + long).contains(&now))
    }

    fn is_down(&self) -> bool {
        self.is_in(|fault| match fault {
            Fault::OutboxDown { at_ms, for_ms } => Some((*at_ms, *for_ms)),
            _ => None,
        })
    }

    fn is_silent(&self) -> bool {
        self.is_in(|fault| match fault {
            Fault::OutboxSilent { at_ms, for_ms } => Some((*at_ms, *for_ms)),
            _ => None,
        })
    }
}

/// Where a batch came from.
enum Origin {
    Chunk { partition: usize, until: i64, seqs: Vec<i64> },
    Parked { tried: RetryBatch, epochs: BTreeMap<usize, u64> },
}

/// One relay's share of the outbox.
pub(super) struct SimulatedSource {
    outbox: Outbox,
    me: u64,
    /// Partitions, and the epochs under which they are ours.
    owned: BTreeMap<usize, u64>,
    outstanding: Option<(Batch, Origin)>,
    heartbeat_at: Instant,
    ours_until: Instant,
    due_at: Instant,
    next_partition: usize,
    whole: bool,
    reached: Option<BatchCursor>,
    /// A statement was cancelled or failed: what is stored is not known.
    unsure: bool,
}

impl SimulatedSource {
    /// One statement. It may fail before it is done, or be done and its answer lost.
    async fn commit<T>(&mut self, work: impl FnOnce(&mut Tables) -> T) -> Result<T, OutboxReaderError> {
        if self.unsure {
            self.forget();
        }
        self.unsure = true;
        tokio::time::sleep(STATEMENT).await;
        let failed = |message| Err(StoreError::new(ErrorKind::Unavailable, Fate::InDoubt, message).into());
        if self.outbox.is_down() {
            self.outbox.stage.count("statements that failed", 1);
            return failed("the outbox cannot be reached");
        }
        let result = work(&mut self.outbox.tables());
        if self.outbox.is_silent() {
            self.outbox.stage.count("statements without an answer", 1);
            return failed("the answer of the outbox was lost");
        }
        self.unsure = false;
        Ok(result)
    }

    fn forget(&mut self) {
        self.owned.clear();
        self.outstanding = None;
        self.unsure = false;
    }

    fn fenced<T>(&mut self) -> Result<T, OutboxReaderError> {
        self.outbox.stage.count("calls that were fenced", 1);
        self.forget();
        Err(OutboxReaderError::Fenced)
    }

    fn drop_what_lapsed(&mut self) {
        if self.unsure || (!self.owned.is_empty() && Instant::now() >= self.ours_until) {
            self.forget();
        }
    }

    /// Renews what is ours. Partitions that are another's by now are dropped.
    async fn heartbeat(&mut self) -> Result<(usize, usize), OutboxReaderError> {
        let asked = Instant::now();
        self.heartbeat_at = asked + self.outbox.lease / 10;
        let (me, owned) = (self.me, self.owned.clone());
        let (kept, share) = self
            .commit(move |tables| {
                let kept: BTreeMap<usize, u64> =
                    owned.into_iter().filter(|(partition, epoch)| tables.renew(*partition, *epoch)).collect();
                (kept, tables.show(me))
            })
            .await?;
        let lost = kept.len() < self.owned.len();
        self.owned = kept;
        self.heartbeat_at = asked + self.outbox.lease / 3;
        self.ours_until = asked + self.outbox.lease * 7 / 8;
        let still_ours = match &self.outstanding {
            None => true,
            Some((_, Origin::Chunk { partition, .. })) => self.owned.contains_key(partition),
            Some((_, Origin::Parked { epochs, .. })) => epochs.keys().all(|one| self.owned.contains_key(one)),
        };
        if !still_ours || (lost && self.whole) {
            return self.fenced();
        }
        Ok(share)
    }

    async fn ready(&mut self) -> Result<(), OutboxReaderError> {
        self.drop_what_lapsed();
        if self.whole && self.owned.is_empty() {
            return Err(OutboxReaderError::Fenced);
        }
        if Instant::now() < self.heartbeat_at {
            return Ok(());
        }
        let (index, relays) = self.heartbeat().await?;
        if self.whole || self.outstanding.is_some() {
            return Ok(());
        }
        let (me, owned) = (self.me, self.owned.clone());
        self.owned = self
            .commit(move |tables| {
                let mut owned = owned;
                for partition in 0..tables.cursors.len() {
                    match (partition % relays == index, owned.get(&partition).copied()) {
                        (true, None) => {
                            owned.extend(tables.take(partition, me).map(|epoch| (partition, epoch)))
                        }
                        (false, Some(epoch)) => {
                            tables.release(partition, epoch);
                            owned.remove(&partition);
                        }
                        _ => {}
                    }
                }
                owned
            })
            .await?;
        Ok(())
    }

    fn events(&self, seqs: &[i64], may_be_held: bool) -> Vec<Pending> {
        let tables = self.outbox.tables();
        let pending = |seq: &i64| {
            let mut pending = Pending::new((*tables.rows[seq].event).clone());
            pending.held = may_be_held && tables.is_held(*seq);
            pending
        };
        seqs.iter().map(pending).collect()
    }

    fn give(&mut self, cursor: BatchCursor, events: Vec<Pending>, origin: Origin) -> Batch {
        let position = Position { lineage: OutboxLineage::read("simulated"), cursor };
        let batch = match &origin {
            Origin::Chunk { .. } => Batch::new(position, events),
            Origin::Parked { .. } => Batch::retry(position, events),
        };
        self.outstanding = Some((batch.clone(), origin));
        batch
    }

    async fn chunk_of(&mut self, partition: usize, epoch: u64) -> Result<Option<Batch>, OutboxReaderError> {
        let found = self.commit(move |tables| tables.chunk(partition, epoch)).await?;
        let Ok(found) = found else { return self.fenced() };
        let Some((until, seqs)) = found else { return Ok(None) };
        let after = self.outbox.tables().cursors[partition].after;
        let events = self.events(&seqs, true);
        let origin = Origin::Chunk { partition, until, seqs };
        Ok(Some(self.give(cursor_of(partition, after, until), events, origin)))
    }

    fn parked(&mut self, tried: RetryBatch, cursor: BatchCursor) -> Batch {
        let (seqs, epochs): (Vec<i64>, BTreeMap<usize, u64>) = {
            let tables = self.outbox.tables();
            let of = |key: &String| tables.parked_keys.get(key).map(|key| key.partition);
            let epochs = tried.keys.iter().filter_map(of);
            let epochs = epochs.filter_map(|one| Some((one, *self.owned.get(&one)?))).collect();
            (tried.ns.iter().map(|n| tables.parked[n].seq).collect(), epochs)
        };
        let events = self.events(&seqs, false);
        self.give(cursor, events, Origin::Parked { tried, epochs })
    }

    async fn find_due(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let owned = self.owned.clone();
        let tried = self.commit(move |tables| tables.due(&owned)).await?;
        if tried.ns.is_empty() && tried.empty.is_empty() {
            self.due_at = Instant::now() + DUE_EVERY;
            return Ok(None);
        }
        if tried.ns.is_empty() {
            let (owned, retried) = (self.owned.clone(), RetryResult::of(&tried, &[]));
            self.commit(move |tables| tables.retried(&owned, &retried)).await?;
            return Ok(None);
        }
        self.outbox.stage.count("batches of parked events", 1);
        let cursor = BatchCursor::of(tried.cursor());
        Ok(Some(self.parked(tried, cursor)))
    }

    /// What the sink has had last, if that is not done.
    async fn find_reached(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let Some(reached) = self.reached.clone() else { return Ok(None) };
        let found = if let Some(ParkedCursor(ns)) = reached.parse() {
            let tried = self.commit(move |tables| tables.again(&ns)).await?;
            (!tried.ns.is_empty()).then(|| self.parked(tried, reached))
        } else {
            let noted = |(partition, cursor): (usize, &super::tables::Cursor)| {
                let until = cursor.until?;
                (cursor_of(partition, cursor.after, until) == reached).then_some(partition)
            };
            let noted = self.outbox.tables().cursors.iter().enumerate().find_map(noted);
            match noted.and_then(|partition| Some((partition, *self.owned.get(&partition)?))) {
                Some((partition, epoch)) => self.chunk_of(partition, epoch).await?,
                None => None,
            }
        };
        match &found {
            Some(_) => self.outbox.stage.count("batches given again to compare", 1),
            None => self.reached = None,
        }
        Ok(found)
    }
}

/// Names a batch.
fn cursor_of(partition: usize, after: i64, until: i64) -> BatchCursor {
    BatchCursor::of(format_args!("{partition}:{after}-{until}"))
}

impl OutboxReader for SimulatedSource {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.ready().await?;
        if let Some((batch, _)) = &self.outstanding {
            return Ok(Some(batch.clone()));
        }
        if self.owned.is_empty() {
            return Ok(None);
        }
        if let Some(batch) = self.find_reached().await? {
            return Ok(Some(batch));
        }
        if Instant::now() >= self.due_at
            && let Some(batch) = self.find_due().await?
        {
            return Ok(Some(batch));
        }
        let owned: Vec<(usize, u64)> =
            self.owned.iter().map(|(partition, epoch)| (*partition, *epoch)).collect();
        for step in 0..owned.len() {
            let at = (self.next_partition + step) % owned.len();
            if let Some(batch) = self.chunk_of(owned[at].0, owned[at].1).await? {
                self.next_partition = at + 1;
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        self.whole = true;
        self.drop_what_lapsed();
        if !self.owned.is_empty() {
            return match self.heartbeat().await {
                Ok(_) => Ok(true),
                Err(OutboxReaderError::Fenced) => Ok(false),
                Err(error) => Err(error),
            };
        }
        let (asked, me) = (Instant::now(), self.me);
        let Some(owned) = self.commit(move |tables| tables.acquire_exclusive(me)).await? else {
            return Ok(false);
        };
        (self.owned, self.outstanding) = (owned, None);
        self.heartbeat_at = asked + self.outbox.lease / 3;
        self.ours_until = asked + self.outbox.lease * 7 / 8;
        Ok(true)
    }

    async fn resume(&mut self, reached: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        self.outbox.stage.count("positions compared", 1);
        self.reached = reached.map(|reached| reached.position.cursor.clone());
        if self.outstanding.as_ref().map(|(batch, _)| &batch.position.cursor) != self.reached.as_ref() {
            self.outstanding = None;
        }
        Ok(())
    }

    async fn ack(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        if self.unsure {
            self.forget();
        }
        let late = self.outbox.done_is_late();
        if let Some(late) = late {
            // A relay that dies meanwhile leaves it half way.
            self.unsure = true;
            tokio::time::sleep(late).await;
            self.unsure = false;
        }
        let done = match self.outstanding.take() {
            None => return self.fenced(),
            Some((batch, Origin::Chunk { partition, until, seqs })) => {
                let Some(epoch) = self.owned.get(&partition).copied() else { return self.fenced() };
                let aside = ParkedRows::of(&seqs, &batch.events, settled);
                self.commit(move |tables| tables.advance(partition, epoch, until, &aside)).await?
            }
            Some((_, Origin::Parked { tried, epochs })) => {
                self.due_at = Instant::now() + due_after(settled);
                if self.outbox.stage.has("retries_without_a_pause") {
                    self.due_at = Instant::now();
                }
                let retried = RetryResult::of(&tried, settled);
                self.commit(move |tables| tables.retried(&epochs, &retried)).await?
            }
        };
        if late.is_some() {
            let stage = &self.outbox.stage;
            stage.trace(format_args!("the late done is {}", if done { "taken" } else { "fenced" }));
            stage.count("late dones that were fenced", u64::from(!done));
        }
        if !done {
            return self.fenced();
        }
        self.reached = None;
        Ok(())
    }

    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        if self.owned.is_empty() || self.unsure {
            return self.fenced();
        }
        self.heartbeat().await.map(drop)
    }

    fn renew_after(&self) -> Duration {
        self.heartbeat_at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    fn holds_lease(&self) -> bool {
        !self.unsure && !self.owned.is_empty() && Instant::now() < self.ours_until
    }

    async fn prune(&mut self, _: Duration) -> Result<Pruned, OutboxReaderError> {
        Ok(Pruned::default())
    }

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        Ok(Lag::default())
    }

    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        let (me, owned) = (self.me, self.owned.clone());
        let left = self
            .commit(move |tables| {
                owned.iter().for_each(|(partition, epoch)| tables.release(*partition, *epoch));
                tables.gone(me);
            })
            .await;
        self.forget();
        left
    }
}
