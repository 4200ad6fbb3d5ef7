//! Cursors as they are often written. They lose or overtake.

use std::time::Duration;

use semel::outbox::{Event, EventError};
use semel::relay::{
    Batch, BatchCursor, Lag, OutboxLineage, OutboxReader, OutboxReaderError, Pending, Position, Pruned,
    Settled,
};
use semel::store::{ErrorKind, Fate, StoreError};
use tokio_postgres::{Client, Row};
use uuid::Uuid;

/// What the cursor remembers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// What has a higher number than the last one.
    Seq,
    /// What no open transaction is older than, in the order of transactions.
    Xid,
}

/// A source with such a cursor. It keeps it in memory.
pub struct Naive {
    client: Client,
    by: By,
    at: (String, i64),
    next: Option<(String, i64)>,
}

impl Naive {
    /// From the beginning on. The connection finds the tables by itself.
    pub fn new(client: Client, by: By) -> Self {
        Self { client, by, at: ("0".into(), 0), next: None }
    }
}

fn reader_error(error: impl std::fmt::Display) -> OutboxReaderError {
    StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, error.to_string()).into()
}

fn event(row: &Row) -> Result<Event, EventError> {
    let text = |at: usize| row.get::<_, String>(at);
    let event = Event::new(&text(2), &text(3), row.get::<_, Vec<u8>>(5))?.key(&text(4))?;
    Ok(event.with_id(Uuid::parse_str(&text(6)).unwrap_or_default()))
}

impl OutboxReader for Naive {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let columns = "SELECT xid::text, seq, topic, type, key, payload, id::text FROM semel_outbox";
        let text = match self.by {
            By::Seq => format!("{columns} WHERE seq > $2 AND $1::text IS NOT NULL ORDER BY seq LIMIT 1000"),
            By::Xid => format!(
                "{columns} WHERE (xid, seq) > ($1::text::xid8, $2)
                 AND xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY xid, seq LIMIT 1000"
            ),
        };
        let rows = self.client.query(&text, &[&self.at.0, &self.at.1]).await.map_err(reader_error)?;
        let Some(last) = rows.last() else { return Ok(None) };
        self.next = Some((last.get(0), last.get(1)));
        let events = rows.iter().map(|row| event(row).map(Pending::new));
        let events = events.collect::<Result<_, _>>().map_err(reader_error)?;
        let position = Position {
            lineage: OutboxLineage::read("naive"),
            cursor: BatchCursor::of(format_args!("{:?}", self.at)),
        };
        Ok(Some(Batch::new(position, events)))
    }

    async fn ack(&mut self, _: &[Settled]) -> Result<(), OutboxReaderError> {
        self.at = self.next.take().unwrap_or_else(|| self.at.clone());
        Ok(())
    }

    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        Ok(())
    }

    fn renew_after(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn holds_lease(&self) -> bool {
        true
    }

    async fn prune(&mut self, _: Duration) -> Result<Pruned, OutboxReaderError> {
        Ok(Pruned::default())
    }

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        Ok(Lag::default())
    }

    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        Ok(())
    }
}
