//! Polling in MySQL and MariaDB: the numbers of a part become visible in their order.
//!
//! There are no snapshots to compare. Instead whoever appends holds the counter of the event's part until the commit, so
//! what is lower and not there yet will never be, and the cursor of a part is a number. The price is paid by those who append:
//! within a part one transaction at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use self::leased_session::{LeasedSession, PartitionCursor};
use super::parking::{ParkedRows, RetryBatch};
use super::{Bounds, DUE_EVERY, due_after};
use crate::relay::outbox_reader::{
    Batch, Lag, OutboxLineage, OutboxReader, OutboxReaderError, Pending, Position, Pruned, Settled,
    SinkCheckpoint,
};
use crate::store::mysql::MysqlStore;
use crate::store::mysql::session::Dial;

mod admin;
mod chunk;
mod leased_session;
mod list;
mod retry;

/// An outbox in MySQL or MariaDB. Cheap to clone. The tables are made with
/// [`outbox::schema`](crate::outbox::schema); the URL is one of a [`MysqlStore`].
#[derive(Clone, Debug)]
pub struct MysqlOutbox {
    dial: Arc<Dial>,
    server: Arc<str>,
    bounds: Bounds,
    lease: Duration,
    retry: Duration,
}

impl MysqlOutbox {
    /// The outbox in the database a URL names.
    pub fn new(url: &str) -> Result<Self, OutboxReaderError> {
        let (_, dial, server) = MysqlStore::options().with_url(url)?;
        Ok(Self {
            dial: Arc::new(dial),
            server: server.into(),
            bounds: Bounds::default(),
            lease: Duration::from_secs(10),
            retry: Duration::from_secs(1),
        })
    }

    /// Most events of a batch, and most bytes of their payloads: 4,000 and 4 MiB unless told otherwise.
    pub fn batch_max(mut self, events: usize, bytes: usize) -> Self {
        self.bounds = Bounds { events_max: events.clamp(1, 100_000), bytes_max: bytes.max(1) };
        self
    }

    /// How long after a relay's death others take its parts: 10 s unless told otherwise.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(Duration::from_millis(100), Duration::from_secs(600));
        self
    }

    /// When a key that was parked because the sink failed is tried again, at first: 1 s unless told otherwise, then
    /// twice as late each time, up to a minute.
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.retry = pause.clamp(Duration::from_millis(1), Duration::from_secs(3_600));
        self
    }

    /// A source for one relay. Several share the events.
    pub fn source(&self) -> MysqlOutboxReader {
        MysqlOutboxReader {
            outbox: self.clone(),
            me: Uuid::now_v7().to_string(),
            link: None,
            outstanding: None,
            due_at: Instant::now(),
            unsure: false,
            whole: false,
            reached: None,
        }
    }
}

/// One relay's share of the outbox.
pub struct MysqlOutboxReader {
    outbox: MysqlOutbox,
    me: String,
    link: Option<LeasedSession>,
    outstanding: Option<(Batch, Origin)>,
    due_at: Instant,
    /// A change was asked for and its answer never came: what is stored has to be read again.
    unsure: bool,
    /// All parts or none, and none before it is asked for them.
    whole: bool,
    /// The batch that a sink has had last. It comes before any other as long as it is not done.
    reached: Option<String>,
}

/// Where a batch came from.
enum Origin {
    /// These parts, up to where it is written down. With each event its part and number.
    Parts {
        places: Vec<PartitionCursor>,
        numbers: Vec<(i16, i64)>,
    },
    Parked {
        tried: RetryBatch,
        parts: Vec<PartitionCursor>,
    },
}

impl MysqlOutboxReader {
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

    /// A connection, and parts only while they are ours.
    async fn linked(&mut self) -> Result<(), OutboxReaderError> {
        let now = Instant::now();
        let stale = |link: &LeasedSession| {
            !link.session.is_open() || (!link.places.is_empty() && now >= link.ours_until)
        };
        if self.link.as_ref().is_some_and(stale) {
            self.forget();
        }
        if self.link.is_none() {
            self.link = Some(LeasedSession::open(&self.outbox, &self.me).await?);
        }
        Ok(())
    }

    /// A connection, with a lease that lasts, and the parts that fall to us.
    async fn ready(&mut self) -> Result<(), OutboxReaderError> {
        self.linked().await?;
        let idle = self.outstanding.is_none();
        let Some(link) = &mut self.link else { return Ok(()) };
        if self.whole && link.places.is_empty() {
            return Err(OutboxReaderError::Fenced);
        }
        if Instant::now() >= link.beat_at {
            link.heartbeat().await?;
        }
        if idle && !self.whole && link.heard {
            link.balance().await?;
        }
        Ok(())
    }

    async fn find(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.ready().await?;
        if let Some((batch, _)) = &self.outstanding {
            return Ok(Some(batch.clone()));
        }
        let Some(link) = &mut self.link else { return Ok(None) };
        // What the sink has had last comes first, if it is not done.
        let mut reached = self.reached.clone();
        if let Some(ns) = reached.as_deref().and_then(RetryBatch::named) {
            let (tried, parts, events) = link.again(&ns).await?;
            if !events.is_empty() {
                let place = reached.unwrap_or_default();
                return Ok(Some(self.give(place, events, Origin::Parked { tried, parts })));
            }
        }
        let recorded: Vec<PartitionCursor> =
            link.places.iter().copied().filter(|place| place.recorded.is_some()).collect();
        reached = reached.filter(|reached| *reached == name(&recorded));
        self.reached.clone_from(&reached);
        if reached.is_none() && Instant::now() >= self.due_at {
            let (tried, parts, events) = link.due().await?;
            if !events.is_empty() {
                let place = tried.place();
                return Ok(Some(self.give(place, events, Origin::Parked { tried, parts })));
            }
            if !tried.empty.is_empty() {
                link.retried(&tried, &parts, &[]).await?;
            }
            self.due_at = Instant::now() + DUE_EVERY;
        }
        let Some((places, numbers, events)) = link.chunk().await? else { return Ok(None) };
        let place = name(&places);
        Ok(Some(self.give(place, events, Origin::Parts { places, numbers })))
    }

    fn give(&mut self, place: String, events: Vec<Pending>, origin: Origin) -> Batch {
        let lineage = self.link.as_ref().map_or("", |link| link.lineage.as_str());
        let position = Position { lineage: OutboxLineage::read(lineage), place };
        let batch = Batch { position, events, is_retry: matches!(origin, Origin::Parked { .. }) };
        self.outstanding = Some((batch.clone(), origin));
        batch
    }

    async fn settle(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        let (Some((batch, origin)), Some(link)) = (&self.outstanding, &mut self.link) else {
            // The connection broke meanwhile: the batch is given again.
            return Err(OutboxReaderError::Fenced);
        };
        match origin {
            Origin::Parked { tried, parts } => {
                link.retried(tried, parts, settled).await?;
                self.due_at = Instant::now() + due_after(settled);
            }
            Origin::Parts { places, numbers } => {
                let indices: Vec<i64> = (0..).take(numbers.len()).collect();
                link.advance(places, numbers, &ParkedRows::of(&indices, &batch.events, settled)).await?;
            }
        }
        (self.outstanding, self.reached) = (None, None);
        Ok(())
    }
}

impl OutboxReader for MysqlOutboxReader {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.or_reset(async |this| this.find().await).await
    }

    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        self.whole = true;
        self.or_reset(async |this| {
            this.linked().await?;
            let Some(link) = &mut this.link else { return Ok(false) };
            let taken = link.acquire_exclusive().await?;
            if !taken {
                this.outstanding = None;
            }
            Ok(taken)
        })
        .await
    }

    async fn resume(&mut self, reached: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        let found = self.link.as_ref().map(|link| OutboxLineage::read(&link.lineage));
        if let (Some(reached), Some(found)) = (reached, found)
            && !reached.position.lineage.matches(&found)
        {
            return Err(OutboxReaderError::OutboxLineage { stored: reached.position.lineage.clone(), found });
        }
        if let (Some(reached), Some(link)) = (reached, &self.link)
            && is_behind(&reached.position.place, &link.places)
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
        let Some(link) = &mut self.link else { return Err(OutboxReaderError::Fenced) };
        // Tried again soon if it fails, not at once.
        link.beat_at = Instant::now() + self.outbox.lease / 10;
        link.heartbeat().await
    }

    fn renew_after(&self) -> Duration {
        let due = |link: &LeasedSession| link.beat_at.saturating_duration_since(Instant::now());
        self.link.as_ref().map_or(self.outbox.lease / 3, due)
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
            match &mut this.link {
                Some(link) => link.prune(older_than).await,
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
            match &mut this.link {
                Some(link) => link.lag().await,
                None => Ok(Lag::default()),
            }
        })
        .await
    }

    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        self.outstanding = None;
        match self.link.take() {
            Some(link) if link.session.is_open() => link.release().await,
            _ => Ok(()),
        }
    }
}

/// Whether a batch of that name ends, in any part, beyond all that was ever written down here.
fn is_behind(name: &str, places: &[PartitionCursor]) -> bool {
    let beyond = |one: &str| {
        let (part, range) = one.split_once(':')?;
        let (part, until): (i16, i64) = (part.parse().ok()?, range.split_once('-')?.1.parse().ok()?);
        let place = places.iter().find(|place| place.part == part)?;
        Some(until > place.recorded.unwrap_or(place.after))
    };
    name.split(' ').any(|one| beyond(one) == Some(true))
}

/// Names what is written down. In order: in which order the parts were looked at is nobody's place.
fn name(places: &[PartitionCursor]) -> String {
    let mut places = places.to_vec();
    places.sort_unstable_by_key(|place| place.part);
    let name = |place: &PartitionCursor| {
        format!("{}:{}-{}", place.part, place.after, place.recorded.unwrap_or(place.after))
    };
    places.iter().map(name).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_beyond_what_was_written_down_is_noticed() {
        let place = |part, after, recorded| PartitionCursor { part, epoch: 1, after, recorded };
        let places = [place(0, 5, None), place(1, 5, Some(9))];
        assert!(!is_behind(&name(&places), &places));
        assert!(!is_behind("0:1-5 1:5-9", &places) && !is_behind("parked [7, 9]", &places));
        assert!(is_behind("0:5-6", &places) && is_behind("0:1-5 1:9-10", &places));
    }
}
