//! Polling in MySQL and MariaDB: within a partition (column `part`), numbers become visible in order.
//!
//! There are no snapshots to compare. Instead an append locks the counter of its partition until the commit. So a lower
//! number that is not visible yet never will be, and a cursor is a number. The price: only one transaction at a time
//! appends to a partition.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use self::leased_session::{LeasedMysqlSession, PartitionCursor};
use super::PolledOutbox;
use super::reader::{ChunkRead, Leased, PollReader};
use crate::relay::lease::RelayLease;
use crate::relay::outbox_reader::{Lag, OutboxReaderError, Pending, Pruned, Settled};
use crate::relay::parking::{ParkedRows, Retry};
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
}

/// Reads one relay's share of an outbox in MySQL or MariaDB: the partitions it leases.
pub type MysqlOutboxReader = PollReader<MysqlTables>;

/// The recorded chunk of these partitions.
pub struct PartitionsChunk {
    cursors: Vec<PartitionCursor>,
    /// Partition and number of each event.
    numbers: Vec<(i16, i64)>,
}

impl Leased for LeasedMysqlSession {
    type Chunk = PartitionsChunk;
    type Cursor = PartitionsCursor;

    fn lease(&self) -> &RelayLease {
        &self.lease
    }

    fn lease_mut(&mut self) -> &mut RelayLease {
        &mut self.lease
    }

    fn is_open(&self) -> bool {
        self.session.is_open()
    }

    fn owns_any(&self) -> bool {
        !self.cursors.is_empty()
    }

    fn is_behind(&self, cursor: &PartitionsCursor) -> bool {
        cursor.is_beyond(&self.cursors)
    }

    async fn heartbeat(&mut self) -> Result<(), OutboxReaderError> {
        self.heartbeat().await
    }

    async fn rebalance(&mut self) -> Result<(), OutboxReaderError> {
        self.rebalance().await
    }

    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        self.acquire_exclusive().await
    }

    async fn chunk(
        &mut self,
        cursor: Option<&PartitionsCursor>,
    ) -> Result<Option<ChunkRead<Self>>, OutboxReaderError> {
        if cursor.is_some_and(|cursor| *cursor != PartitionsCursor::of(&self.recorded())) {
            return Ok(None);
        }
        self.chunk().await
    }

    async fn advance(
        &mut self,
        PartitionsChunk { cursors, numbers }: &PartitionsChunk,
        events: &[Pending],
        settled: &[Settled],
    ) -> Result<(), OutboxReaderError> {
        let indices: Vec<i64> = (0..).take(numbers.len()).collect();
        self.advance(cursors, numbers, &ParkedRows::of(&indices, events, settled)).await
    }

    async fn due(&mut self) -> Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError> {
        self.due().await
    }

    async fn still_parked(&mut self, ns: &[i64]) -> Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError> {
        self.still_parked(ns).await
    }

    async fn retried(&mut self, retry: &Retry, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        self.retried(retry, settled).await
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        self.prune(older_than).await
    }

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        self.lag().await
    }

    async fn release(self) -> Result<(), OutboxReaderError> {
        self.release().await
    }
}

/// In each partition, the events after one number up to another. Sorted, so that the order of reading does not change it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionsCursor(Vec<(i16, i64, i64)>);

impl PartitionsCursor {
    /// The cursor of the recorded chunk.
    fn of(cursors: &[PartitionCursor]) -> Self {
        let range = |cursor: &PartitionCursor| {
            (cursor.partition, cursor.after, cursor.recorded.unwrap_or(cursor.after))
        };
        let mut ranges: Vec<_> = cursors.iter().map(range).collect();
        ranges.sort_unstable();
        Self(ranges)
    }

    /// Whether it ends, in some partition, beyond everything recorded here.
    fn is_beyond(&self, cursors: &[PartitionCursor]) -> bool {
        self.0.iter().any(|(partition, _, until)| {
            let recorded = cursors.iter().find(|cursor| cursor.partition == *partition);
            recorded.is_some_and(|cursor| *until > cursor.recorded.unwrap_or(cursor.after))
        })
    }
}

impl fmt::Display for PartitionsCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (partition, after, until)) in self.0.iter().enumerate() {
            write!(f, "{}{partition}:{after}-{until}", if at == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl FromStr for PartitionsCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let range = |one: &str| {
            let (partition, range) = one.split_once(':')?;
            let (after, until) = range.split_once('-')?;
            Some((partition.parse().ok()?, after.parse().ok()?, until.parse().ok()?))
        };
        text.split(' ').map(range).collect::<Option<_>>().map(Self).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_what_it_wrote_and_one_from_beyond_what_is_recorded_is_noticed() {
        let cursor = |partition, after, recorded| PartitionCursor { partition, epoch: 1, after, recorded };
        let cursors = [cursor(1, 5, Some(9)), cursor(0, 5, None)];
        let own = PartitionsCursor::of(&cursors);
        assert_eq!(own.to_string(), "0:5-5 1:5-9", "it is stored in sinks");
        assert_eq!("0:5-5 1:5-9".parse(), Ok(own.clone()));
        for other in ["parked [7, 9]", "5-9", "[0] 3:3:..5:5: 0-7", ""] {
            assert_eq!(other.parse::<PartitionsCursor>(), Err(()));
        }
        let is_beyond = |text: &str| text.parse::<PartitionsCursor>().unwrap().is_beyond(&cursors);
        assert!(!own.is_beyond(&cursors) && !is_beyond("0:1-5 1:5-9"));
        assert!(is_beyond("0:5-6") && is_beyond("0:1-5 1:9-10"));
    }
}
