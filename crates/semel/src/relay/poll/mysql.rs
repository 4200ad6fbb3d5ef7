//! Polling in MySQL and MariaDB: within a partition (column `part`), numbers become visible in order.
//!
//! There are no snapshots to compare. Instead an append locks the counter of its partition until the commit. So a lower
//! number that is not visible yet never will be, and a cursor is a number. The price: only one transaction at a time
//! appends to a partition.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use self::leased_session::{LeasedSession, PartitionCursor};
use super::parking::{ParkedRows, RetryBatch};
use super::{DUE_EVERY, PolledOutbox, due_after};
use crate::relay::outbox_reader::{
    Batch, Lag, OutboxLineage, OutboxReader, OutboxReaderError, Pending, Position, Pruned, Settled,
    SinkCheckpoint,
};
use crate::relay::reader_options::{ReaderOptions, reader_options};
use crate::store::mysql::MysqlStore;
use crate::store::mysql::session::Dial;

mod admin;
mod chunk;
mod leased_session;
mod retry;

/// An outbox in MySQL or MariaDB. Cheap to clone. Create the tables with
/// [`outbox::schema`](crate::outbox::schema). The URL has the form of a [`MysqlStore`] URL.
pub type MysqlOutbox = PolledOutbox<MysqlTables>;

/// The outbox tables in MySQL or MariaDB.
#[derive(Clone, Debug)]
pub struct MysqlTables {
    dial: Arc<Dial>,
    server: Arc<str>,
    options: ReaderOptions,
}

reader_options!(MysqlOutbox, database.options);

impl MysqlOutbox {
    /// The outbox in the database of this URL.
    pub fn new(url: &str) -> Result<Self, OutboxReaderError> {
        let (_, dial, server) = MysqlStore::options().with_url(url)?;
        let (dial, server) = (Arc::new(dial), server.into());
        Ok(Self { database: MysqlTables { dial, server, options: ReaderOptions::default() } })
    }

    /// A reader for one relay. Several share the partitions.
    pub fn source(&self) -> MysqlOutboxReader {
        MysqlOutboxReader {
            outbox: self.database.clone(),
            me: Uuid::now_v7().to_string(),
            leased: None,
            in_flight: None,
            due_at: Instant::now(),
            in_doubt: false,
            exclusive: false,
            reached: None,
        }
    }
}

/// Reads one relay's share of the outbox: the partitions it leases.
pub struct MysqlOutboxReader {
    outbox: MysqlTables,
    me: String,
    leased: Option<LeasedSession>,
    in_flight: Option<(Batch, Origin)>,
    due_at: Instant,
    /// A change got no answer: the stored state has to be read again.
    in_doubt: bool,
    /// All partitions or none, and none before `acquire_exclusive`.
    exclusive: bool,
    /// Cursor of the last batch the sink has. It comes before any other until it is acked.
    reached: Option<String>,
}

/// Where a batch came from.
enum Origin {
    /// The recorded chunk of these partitions. `numbers`: partition and number of each event.
    Partitions {
        cursors: Vec<PartitionCursor>,
        numbers: Vec<(i16, i64)>,
    },
    Parked {
        tried: RetryBatch,
        cursors: Vec<PartitionCursor>,
    },
}

impl MysqlOutboxReader {
    fn reset(&mut self) {
        self.leased = None;
        self.in_flight = None;
        self.in_doubt = false;
    }

    /// Runs something that must not stay half done. If it fails or is cancelled, the stored state is read again.
    async fn or_reset<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, OutboxReaderError>,
    ) -> Result<T, OutboxReaderError> {
        if self.in_doubt {
            self.reset();
        }
        self.in_doubt = true;
        let result = work(self).await;
        if result.is_err() {
            self.reset();
        }
        self.in_doubt = false;
        result
    }

    /// Connects. Reconnects if the lease has expired: another relay may own the partitions by now.
    async fn ensure_connected(&mut self) -> Result<(), OutboxReaderError> {
        let now = Instant::now();
        let stale = |leased: &LeasedSession| {
            !leased.session.is_open() || (!leased.cursors.is_empty() && now >= leased.lease_safe_until)
        };
        if self.leased.as_ref().is_some_and(stale) {
            self.reset();
        }
        if self.leased.is_none() {
            self.leased = Some(LeasedSession::open(&self.outbox, &self.me).await?);
        }
        Ok(())
    }

    /// Connects, renews the lease, and takes our share of the partitions between batches.
    async fn ready(&mut self) -> Result<(), OutboxReaderError> {
        self.ensure_connected().await?;
        let idle = self.in_flight.is_none();
        let Some(leased) = &mut self.leased else { return Ok(()) };
        if self.exclusive && leased.cursors.is_empty() {
            return Err(OutboxReaderError::Fenced);
        }
        if Instant::now() >= leased.heartbeat_at {
            leased.heartbeat().await?;
        }
        if idle && !self.exclusive && leased.rebalance_due {
            leased.rebalance().await?;
        }
        Ok(())
    }

    async fn find(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.ready().await?;
        if let Some((batch, _)) = &self.in_flight {
            return Ok(Some(batch.clone()));
        }
        let Some(leased) = &mut self.leased else { return Ok(None) };
        // The last batch the sink has comes first, if it is not acked yet.
        let mut reached = self.reached.clone();
        if let Some(ns) = reached.as_deref().and_then(RetryBatch::named) {
            let (tried, cursors, events) = leased.again(&ns).await?;
            if !events.is_empty() {
                let cursor = reached.unwrap_or_default();
                return Ok(Some(self.give(cursor, events, Origin::Parked { tried, cursors })));
            }
        }
        let recorded: Vec<PartitionCursor> =
            leased.cursors.iter().copied().filter(|cursor| cursor.recorded.is_some()).collect();
        reached = reached.filter(|reached| *reached == cursor_text(&recorded));
        self.reached.clone_from(&reached);
        if reached.is_none() && Instant::now() >= self.due_at {
            let (tried, cursors, events) = leased.due().await?;
            if !events.is_empty() {
                let cursor = tried.place();
                return Ok(Some(self.give(cursor, events, Origin::Parked { tried, cursors })));
            }
            if !tried.empty.is_empty() {
                leased.retried(&tried, &cursors, &[]).await?;
            }
            self.due_at = Instant::now() + DUE_EVERY;
        }
        let Some((cursors, numbers, events)) = leased.chunk().await? else { return Ok(None) };
        let cursor = cursor_text(&cursors);
        Ok(Some(self.give(cursor, events, Origin::Partitions { cursors, numbers })))
    }

    fn give(&mut self, cursor: String, events: Vec<Pending>, origin: Origin) -> Batch {
        let lineage = self.leased.as_ref().map_or("", |leased| leased.lineage.as_str());
        let position = Position { lineage: OutboxLineage::read(lineage), place: cursor };
        let batch = Batch { position, events, is_retry: matches!(origin, Origin::Parked { .. }) };
        self.in_flight = Some((batch.clone(), origin));
        batch
    }

    async fn settle(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        let (Some((batch, origin)), Some(leased)) = (&self.in_flight, &mut self.leased) else {
            // The connection broke meanwhile: the batch is delivered again.
            return Err(OutboxReaderError::Fenced);
        };
        match origin {
            Origin::Parked { tried, cursors } => {
                leased.retried(tried, cursors, settled).await?;
                self.due_at = Instant::now() + due_after(settled);
            }
            Origin::Partitions { cursors, numbers } => {
                let indices: Vec<i64> = (0..).take(numbers.len()).collect();
                leased.advance(cursors, numbers, &ParkedRows::of(&indices, &batch.events, settled)).await?;
            }
        }
        (self.in_flight, self.reached) = (None, None);
        Ok(())
    }
}

impl OutboxReader for MysqlOutboxReader {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.or_reset(async |this| this.find().await).await
    }

    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        self.exclusive = true;
        self.or_reset(async |this| {
            this.ensure_connected().await?;
            let Some(leased) = &mut this.leased else { return Ok(false) };
            let taken = leased.acquire_exclusive().await?;
            if !taken {
                this.in_flight = None;
            }
            Ok(taken)
        })
        .await
    }

    async fn resume(&mut self, reached: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        let found = self.leased.as_ref().map(|leased| OutboxLineage::read(&leased.lineage));
        if let (Some(reached), Some(found)) = (reached, found)
            && !reached.position.lineage.matches(&found)
        {
            return Err(OutboxReaderError::OutboxLineage { stored: reached.position.lineage.clone(), found });
        }
        if let (Some(reached), Some(leased)) = (reached, &self.leased)
            && is_behind(&reached.position.place, &leased.cursors)
        {
            // Without the lease it proves nothing: another relay may have moved the sink since.
            let reached = reached.position.place.clone();
            return Err(if self.holds_lease() {
                OutboxReaderError::Behind { reached }
            } else {
                OutboxReaderError::Fenced
            });
        }
        self.reached = reached.map(|reached| reached.position.place.clone());
        if self.in_flight.as_ref().map(|(batch, _)| &batch.position.place) != self.reached.as_ref() {
            self.in_flight = None;
        }
        Ok(())
    }

    async fn ack(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        self.or_reset(async |this| this.settle(settled).await).await
    }

    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        let Some(leased) = &mut self.leased else { return Err(OutboxReaderError::Fenced) };
        // If it fails, it is retried soon, not at once.
        leased.heartbeat_at = Instant::now() + self.outbox.options.lease / 10;
        leased.heartbeat().await
    }

    fn renew_after(&self) -> Duration {
        let due = |leased: &LeasedSession| leased.heartbeat_at.saturating_duration_since(Instant::now());
        self.leased.as_ref().map_or(self.outbox.options.lease / 3, due)
    }

    fn holds_lease(&self) -> bool {
        !self.in_doubt && self.leased.as_ref().is_some_and(|leased| Instant::now() < leased.lease_safe_until)
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        if self.in_flight.is_some() {
            return Ok(Pruned::default());
        }
        self.or_reset(async |this| {
            this.ready().await?;
            match &mut this.leased {
                Some(leased) => leased.prune(older_than).await,
                None => Ok(Pruned::default()),
            }
        })
        .await
    }

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        self.or_reset(async |this| {
            let had = this.in_flight.is_some();
            this.ready().await?;
            // Under a new lease, but another relay may own the batch by now.
            if had && this.in_flight.is_none() {
                return Err(OutboxReaderError::Fenced);
            }
            match &mut this.leased {
                Some(leased) => leased.lag().await,
                None => Ok(Lag::default()),
            }
        })
        .await
    }

    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        self.in_flight = None;
        match self.leased.take() {
            Some(leased) if leased.session.is_open() => leased.release().await,
            _ => Ok(()),
        }
    }
}

/// Whether this cursor ends, in some partition, beyond everything recorded here.
fn is_behind(text: &str, cursors: &[PartitionCursor]) -> bool {
    let beyond = |one: &str| {
        let (part, range) = one.split_once(':')?;
        let (part, until): (i16, i64) = (part.parse().ok()?, range.split_once('-')?.1.parse().ok()?);
        let cursor = cursors.iter().find(|cursor| cursor.part == part)?;
        Some(until > cursor.recorded.unwrap_or(cursor.after))
    };
    text.split(' ').any(|one| beyond(one) == Some(true))
}

/// The cursor of the recorded chunk. Sorted, so that the order of reading does not change it.
fn cursor_text(cursors: &[PartitionCursor]) -> String {
    let mut cursors = cursors.to_vec();
    cursors.sort_unstable_by_key(|cursor| cursor.part);
    let text = |cursor: &PartitionCursor| {
        format!("{}:{}-{}", cursor.part, cursor.after, cursor.recorded.unwrap_or(cursor.after))
    };
    cursors.iter().map(text).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_beyond_what_was_written_down_is_noticed() {
        let cursor = |part, after, recorded| PartitionCursor { part, epoch: 1, after, recorded };
        let cursors = [cursor(0, 5, None), cursor(1, 5, Some(9))];
        assert!(!is_behind(&cursor_text(&cursors), &cursors));
        assert!(!is_behind("0:1-5 1:5-9", &cursors) && !is_behind("parked [7, 9]", &cursors));
        assert!(is_behind("0:5-6", &cursors) && is_behind("0:1-5 1:9-10", &cursors));
    }
}
