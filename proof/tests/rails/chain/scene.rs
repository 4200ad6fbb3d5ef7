//! A database with an outbox, an inbox and a table of effects, a topic, and the processes in between.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use semel::tx::driver::Dialect;
use semel::{inbox, outbox};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Row};
use testkit::child::Child;
use testkit::services::{Alone, Cluster, Service, alone, require};

use crate::chain::SOON;
use crate::relay_chaos::judge::{Counted, Ledger, Verdict, judge};
use crate::relay_chaos::load::{Database, KEYS, Load, WRITERS};

const PARTITIONS: i32 = 3;
const LEASE_MS: &str = "1000";
const SCHEMA: &str = "chain";

pub struct Scene {
    /// A server of the test's own, to be killed.
    pub cluster: Cluster,
    pub kafka: Alone,
    topic: String,
    pool: PgPool,
    /// How the consumer names messages.
    pub consumes: &'static str,
}

impl Scene {
    /// `None` when the run goes without PostgreSQL or Kafka.
    pub async fn new() -> Option<Self> {
        // Only to go without where the run does.
        drop(require(Service::Postgres)?);
        let (kafka, cluster) = (alone(Service::Kafka)?, Cluster::new().unwrap());
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let topic = format!("chain-{}-{nanos}", std::process::id());
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", kafka.url()).create().unwrap();
        let new = NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(1));
        admin.create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        let options: PgConnectOptions = cluster.url().parse().unwrap();
        let pool = PgPoolOptions::new()
            .max_connections(u32::try_from(WRITERS).unwrap() + 1)
            .acquire_timeout(Duration::from_secs(20))
            .connect_with(options.options([("search_path", SCHEMA)]))
            .await
            .unwrap();
        let made = format!(
            "CREATE SCHEMA {SCHEMA}; {}; {};
             CREATE TABLE effect (seq bigserial PRIMARY KEY, id text NOT NULL, key text, n integer NOT NULL);
             CREATE TABLE counter (k text PRIMARY KEY, n bigint NOT NULL);
             INSERT INTO counter SELECT 'k' || n, 0 FROM generate_series(0, {}) n",
            outbox::schema(Dialect::Postgres),
            inbox::schema(Dialect::Postgres),
            KEYS - 1
        );
        sqlx::raw_sql(AssertSqlSafe(made)).execute(&pool).await.unwrap();
        Some(Self { cluster, kafka, topic, pool, consumes: "right" })
    }

    pub fn load(&self) -> Load {
        Load::start(&Database::Postgres(self.pool.clone()), &self.topic)
    }

    /// A relay that stops at this crash point.
    pub fn relay(&self, crash_at: Option<&str>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proof-worker"));
        command.arg("relay");
        let source = format!("{}?schema={SCHEMA}", self.cluster.url());
        command.args([&source, self.kafka.url(), "poll", &self.topic, "50", LEASE_MS]);
        begun(Child::spawn(command, crash_at).unwrap(), "up")
    }

    /// A consumer that stops at this crash point. It has its partitions back at once after a crash.
    pub fn consumer(&self, crash_at: Option<&str>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proof-worker"));
        command.arg("consume");
        let (brokers, topic, url) = (self.kafka.url(), self.topic.as_str(), self.cluster.url());
        command.args(["kafka", brokers, topic, &url, SCHEMA, self.consumes, "one"]);
        begun(Child::spawn(command, crash_at).unwrap(), "working")
    }

    /// Effects so far, once the database can be asked.
    async fn effects(&self) -> i64 {
        let until = Instant::now() + SOON;
        loop {
            match sqlx::query_scalar("SELECT count(*) FROM effect").fetch_one(&self.pool).await {
                Ok(effects) => return effects,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until there are so many more.
    pub async fn more(&self, effects: i64) {
        let wanted = self.effects().await + effects;
        let until = Instant::now() + SOON;
        while self.effects().await < wanted {
            assert!(Instant::now() < until, "{} of {wanted} effects", self.effects().await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops the writers, waits until everything has its effect, stops relay and consumer in order, and judges.
    pub async fn end(&self, load: Load, relay: Child, consumer: Child) -> Verdict {
        let ledger = load.stop().await;
        self.arrive().await;
        stop(relay);
        // What was sent twice may come late.
        self.rest().await;
        stop(consumer);
        self.judge(&ledger).await
    }

    /// What does not is for the judge to name.
    async fn arrive(&self) {
        let look = "SELECT count(*) FROM semel_outbox o WHERE NOT EXISTS (SELECT FROM effect e WHERE e.id = o.id::text)";
        let until = Instant::now() + SOON;
        while sqlx::query_scalar::<_, i64>(look).fetch_one(&self.pool).await.unwrap_or(1) > 0
            && Instant::now() < until
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn rest(&self) {
        let look = "SELECT coalesce(sum(messages), 0) FROM semel_inbox_batch";
        let handled = async || sqlx::query_scalar::<_, i64>(look).fetch_one(&self.pool).await.unwrap();
        let mut last = -1;
        loop {
            let now = handled().await;
            if now == last {
                return;
            }
            last = now;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }

    async fn judge(&self, ledger: &Ledger) -> Verdict {
        let counted = |id: String, key: String, n: i64| Counted { id, key, n: n.unsigned_abs() };
        let look = "SELECT id::text, key, convert_from(payload, 'UTF8')::bigint FROM semel_outbox";
        let table = sqlx::query(look).fetch_all(&self.pool).await.unwrap();
        let table: Vec<Counted> =
            table.iter().map(|row| counted(row.get(0), row.get(1), row.get(2))).collect();
        let look = "SELECT id, key, n::bigint FROM effect ORDER BY seq";
        let effects = sqlx::query(look).fetch_all(&self.pool).await.unwrap();
        let effects: Vec<Counted> =
            effects.iter().map(|row| counted(row.get(0), row.get(1), row.get(2))).collect();
        let verdict = judge(&table, ledger, &effects);
        println!("{verdict}\nfigures: {} events, {} effects", table.len(), effects.len());
        verdict
    }
}

fn begun(mut child: Child, line: &str) -> Child {
    let said = child.next_line(SOON);
    assert!(said.as_deref().is_ok_and(|said| said == line), "{said:?}; {:?}", child.wait(SOON));
    child
}

/// Stops a process in order.
fn stop(mut child: Child) {
    child.terminate().unwrap();
    let ended = child.wait(SOON).unwrap();
    assert!(ended.status.success(), "{ended:?}");
}
