//! Polling in MySQL and MariaDB: within a partition (column `part`), numbers become visible in order.
//!
//! There are no snapshots to compare. Instead an append locks the counter of its partition until the commit. So a lower
//! number that is not visible yet never will be, and a cursor is a number. The price: only one transaction at a time
//! appends to a partition.

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

    fn is_behind(&self, cursor: &str) -> bool {
        is_behind(cursor, &self.cursors)
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
        cursor: Option<&str>,
    ) -> Result<Option<ChunkRead<PartitionsChunk>>, OutboxReaderError> {
        if cursor.is_some_and(|cursor| cursor != cursor_text(&self.recorded())) {
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

    async fn again(&mut self, ns: &[i64]) -> Result<Option<(Retry, Vec<Pending>)>, OutboxReaderError> {
        self.again(ns).await
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
