//! Cursors as they are often written. They lose or overtake, and the tests must see it.

use std::time::Duration;

use semel::outbox::Event;
use semel::relay::{Batch, Lag, Lineage, Pending, Position, Pruned, Settled, Source, SourceError};
use tokio_postgres::Client;
use uuid::Uuid;

pub enum By {
    /// What has a higher number than the last one.
    Seq,
    /// What no open transaction is older than, in the order of transactions.
    Xid,
}

pub struct Naive {
    pub client: Client,
    pub by: By,
    pub at: (String, i64),
    pub next: Option<(String, i64)>,
}

impl Naive {
    pub fn new(client: Client, by: By) -> Self {
        Self { client, by, at: ("0".into(), 0), next: None }
    }
}

impl Source for Naive {
    async fn next(&mut self) -> Result<Option<Batch>, SourceError> {
        let columns = "SELECT xid::text, seq, key, convert_from(payload, 'UTF8'), id::text FROM semel_outbox";
        let text = match self.by {
            By::Seq => format!("{columns} WHERE seq > $2 AND $1::text IS NOT NULL ORDER BY seq"),
            By::Xid => format!(
                "{columns} WHERE (xid, seq) > ($1::text::xid8, $2)
                 AND xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY xid, seq"
            ),
        };
        let rows = self.client.query(&text, &[&self.at.0, &self.at.1]).await.unwrap();
        let Some(last) = rows.last() else { return Ok(None) };
        self.next = Some((last.get(0), last.get(1)));
        let events = rows.iter().map(|row| {
            let (key, text, id): (String, String, String) = (row.get(2), row.get(3), row.get(4));
            let event = Event::new("t", "made", text).unwrap().key(&key).unwrap();
            Pending::new(event.with_id(Uuid::parse_str(&id).unwrap()))
        });
        let position = Position { lineage: Lineage::read("naive"), place: format!("{:?}", self.at) };
        Ok(Some(Batch::new(position, events.collect())))
    }

    async fn done(&mut self, _: &[Settled]) -> Result<(), SourceError> {
        self.at = self.next.take().unwrap();
        Ok(())
    }

    async fn keep(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    fn keep_in(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn holds(&self) -> bool {
        true
    }

    async fn prune(&mut self, _: Duration) -> Result<Pruned, SourceError> {
        Ok(Pruned::default())
    }

    async fn lag(&mut self) -> Result<Lag, SourceError> {
        Ok(Lag::default())
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}
