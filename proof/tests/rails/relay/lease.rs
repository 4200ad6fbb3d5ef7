//! The lease of a relay that reads for long: here a read waits for a lock, until the lease was renewed.

use std::time::Duration;

use semel::relay::poll::postgres::{PostgresOutbox, PostgresOutboxReader};
use semel::relay::{OutboxReader, Settled};
use tokio_postgres::Client;

use crate::relay::sink::text;
use crate::relay::world::{Postgres, insert, until};

/// A third of it is what these tests take.
const LEASE: Duration = Duration::from_secs(9);

struct Long {
    world: Postgres,
    client: Client,
    locks: Client,
}

impl Long {
    async fn new(events: usize) -> Option<(Self, PostgresOutboxReader)> {
        let world = Postgres::new().await?;
        let (client, locks) = (world.connect().await, world.connect().await);
        for n in 0..events {
            client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
        }
        let url = format!("{}&statement_timeout=60s&application_name={}", world.url(), world.schema());
        let options = PostgresOutbox::options(&url).unwrap();
        let source = options.lease(LEASE).batch_max(1, 1 << 20).open().await.unwrap().source();
        Some((Self { world, client, locks }, source))
    }

    /// From now on no event is read.
    async fn lock(&self) {
        let lock = "BEGIN; LOCK TABLE semel_outbox_0 IN ACCESS EXCLUSIVE MODE";
        self.locks.batch_execute(lock).await.unwrap();
    }

    /// A read waits.
    async fn waits(&self) {
        let waits = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'semel_outbox_0'::regclass";
        until("a read waits", async || !self.client.query(waits, &[]).await.unwrap().is_empty()).await;
    }

    /// The lease was renewed since, before it was over.
    async fn renewed(&self) {
        let ask = "SELECT lease_until::text, lease_until < clock_timestamp() FROM semel_outbox_relay";
        let first: String = self.client.query_one(ask, &[]).await.unwrap().get(0);
        loop {
            let row = self.client.query_one(ask, &[]).await.unwrap();
            if row.get::<_, String>(0) != first {
                return;
            }
            assert!(!row.get::<_, bool>(1), "the lease was over while events were read");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn it_is_renewed_while_a_window_is_looked_for() {
    let Some((long, mut source)) = Long::new(1).await else { return };
    long.lock().await;
    let task = tokio::spawn(async move {
        let batch = source.next().await.unwrap().unwrap();
        (source, batch)
    });
    long.waits().await;
    long.renewed().await;
    long.locks.batch_execute("COMMIT").await.unwrap();
    let (mut source, batch) = task.await.unwrap();
    assert_eq!(text(&batch.events[0].event), "0");
    source.release().await.unwrap();
    long.world.end().await;
}

#[tokio::test]
async fn it_is_renewed_while_the_next_chunk_is_read_ahead() {
    let Some((long, mut source)) = Long::new(3).await else { return };
    source.next().await.unwrap().unwrap();
    // The second is read already: that was the last this connection did. The third is not.
    let read = "SELECT FROM pg_stat_activity WHERE application_name = $1 AND state = 'idle' AND query LIKE '-- A chunk%'";
    until("it is read", async || !long.client.query(read, &[&long.world.schema()]).await.unwrap().is_empty())
        .await;
    long.lock().await;
    source.ack(&[Settled::Confirmed]).await.unwrap();
    let batch = source.next().await.unwrap().unwrap();
    assert_eq!(text(&batch.events[0].event), "1");
    long.waits().await;
    let task = tokio::spawn(async move {
        source.renew_lease().await.unwrap();
        source
    });
    long.renewed().await;
    long.locks.batch_execute("COMMIT").await.unwrap();
    let mut source = task.await.unwrap();
    source.ack(&[Settled::Confirmed]).await.unwrap();
    assert_eq!(text(&source.next().await.unwrap().unwrap().events[0].event), "2");
    source.release().await.unwrap();
    long.world.end().await;
}
