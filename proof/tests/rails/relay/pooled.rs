//! Behind PgBouncer in transaction mode, with a server that would rather not wait for its disk.

use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{OutboxReader, Settled};
use testkit::services::{Alone, Pooler, Service, alone};

use crate::relay::plans::pooler;
use crate::relay::world::{LEASE, Postgres, insert};

/// Nothing is written to the disk by itself for the time of a test.
const LAZY: [&str; 4] = ["-c", "synchronous_commit=off", "-c", "wal_writer_delay=10s"];

struct Lazy {
    server: Alone,
    world: Postgres,
    pooler: Pooler,
}

impl Lazy {
    async fn new() -> Option<Self> {
        let mut server = alone(Service::Postgres)?;
        server.restart_with(&LAZY).unwrap();
        let world = Postgres::on(server.url()).await;
        let (schema, client) = (world.schema(), world.connect().await);
        let role =
            format!("CREATE ROLE {schema} LOGIN SUPERUSER; ALTER ROLE {schema} SET search_path = {schema}");
        client.batch_execute(&role).await.unwrap();
        client.batch_execute("CHECKPOINT").await.unwrap();
        let pooler = pooler(&world.address(), schema);
        Some(Self { server, world, pooler })
    }

    async fn outbox(&self) -> PostgresOutbox {
        let url = format!("{}?connect_timeout=60s", self.pooler.url());
        PostgresOutbox::options(&url).unwrap().lease(LEASE).open().await.unwrap()
    }

    async fn end(self) {
        let role = self.world.schema();
        let drop = format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}");
        let client = self.world.connect().await;
        std::mem::drop(self.pooler);
        client.batch_execute(&drop).await.unwrap();
        self.world.end().await;
    }

    /// What the server has after it was killed.
    async fn after_a_crash(&mut self, ask: &str) -> i64 {
        self.server.kill().unwrap();
        self.server.start().unwrap();
        self.world.connect().await.query_one(ask, &[]).await.unwrap().get(0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_about_to_be_sent_is_on_disk_behind_a_pooler() {
    let Some(mut lazy) = Lazy::new().await else { return };
    let client = lazy.world.connect().await;
    client.batch_execute(&insert("a", "1")).await.unwrap();
    let mut source = lazy.outbox().await.source();
    let batch = source.next().await.unwrap().unwrap();
    assert_eq!(batch.events.len(), 1);
    // The event itself was appended without a wait for the disk: it is there with what says that it is being sent.
    let noted = lazy
        .after_a_crash(
            "SELECT (SELECT count(*) FROM semel_outbox_cursor WHERE until_seq IS NOT NULL)
                  + (SELECT count(*) FROM semel_outbox)",
        )
        .await;
    assert_eq!(noted, 17, "the batch was given out before it was on disk");
    lazy.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_aside_is_on_disk_behind_a_pooler() {
    let Some(mut lazy) = Lazy::new().await else { return };
    let client = lazy.world.connect().await;
    client.batch_execute(&insert("a", "1")).await.unwrap();
    let mut source = lazy.outbox().await.source();
    source.next().await.unwrap().unwrap();
    source.ack(&[Settled::Parked { error: "no".into(), for_good: true, alone: false }]).await.unwrap();
    let parked = lazy.after_a_crash("SELECT count(*) FROM semel_outbox_parked").await;
    assert_eq!(parked, 1, "it was set aside before that was on disk");
    lazy.end().await;
}
