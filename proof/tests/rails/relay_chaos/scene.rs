//! A database with writers, a topic, and relays in between.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::outbox;
use semel::tx::driver::Dialect;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor, Row};
use testkit::child::Child;

use crate::relay_chaos::SOON;
use crate::relay_chaos::broker::{Follower, topic};
use crate::relay_chaos::judge::{Counted, Ledger, Verdict, judge};
use crate::relay_chaos::load::{Database, KEYS, Load, WRITERS, connect};

/// Short, so that those who come after the dead need not wait long.
pub const LEASE: Duration = Duration::from_millis(1_000);

/// A busy server takes longer than usual to greet.
const PATIENT: &str = "&connect_timeout=60s";

static COUNT: AtomicU32 = AtomicU32::new(0);

pub struct Scene {
    /// Where relays find the events: perhaps through a proxy.
    pub source: String,
    /// Where they find the broker.
    pub bootstrap: String,
    pub mode: &'static str,
    /// The broker itself.
    broker: String,
    pub topic: String,
    /// What a relay that publishes exactly once is called by the broker.
    pub name: String,
    pub database: Database,
    pub follower: Follower,
}

/// A new name, also if its process's number comes again.
fn corner() -> String {
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("chaos_{}_{count}_{:x}", std::process::id(), fastrand::u32(..))
}

impl Scene {
    async fn new(source: String, database: Database, broker: &str) -> Self {
        let topic = topic(broker).await;
        let follower = Follower::new(broker, &topic);
        let broker = broker.to_owned();
        let name = topic.clone();
        Self { source, bootstrap: broker.clone(), mode: "poll", broker, topic, name, database, follower }
    }

    /// In a schema of its own on this server.
    pub async fn postgres(url: &str, broker: &str) -> Self {
        let schema = corner();
        let options: PgConnectOptions = url.parse().unwrap();
        let options = options.options([("search_path", schema.as_str())]);
        let pool = PgPoolOptions::new()
            .max_connections(u32::try_from(WRITERS).unwrap() + 1)
            .acquire_timeout(Duration::from_secs(20))
            .connect_with(options)
            .await
            .unwrap();
        let tables = outbox::schema(Dialect::Postgres);
        let made = format!(
            "CREATE SCHEMA {schema}; {tables}; CREATE TABLE counter (k text PRIMARY KEY, n bigint NOT NULL);
             INSERT INTO counter SELECT 'k' || n, 0 FROM generate_series(0, {}) n",
            KEYS - 1
        );
        sqlx::raw_sql(AssertSqlSafe(made)).execute(&pool).await.unwrap();
        Self::new(format!("{url}?schema={schema}{PATIENT}"), Database::Postgres(pool), broker).await
    }

    /// In a database of its own on this server, which speaks MySQL's protocol.
    pub async fn mysql(url: &str, broker: &str) -> Self {
        let name = corner();
        let server = MySqlPool::connect(url).await.unwrap();
        server.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        server.close().await;
        let url = format!("{}/{name}", url.rsplit_once('/').unwrap().0);
        let pool = MySqlPoolOptions::new()
            .max_connections(u32::try_from(WRITERS).unwrap() + 1)
            .connect(&url)
            .await
            .unwrap();
        sqlx::raw_sql(outbox::schema(Dialect::Mysql)).execute(&pool).await.unwrap();
        pool.execute("CREATE TABLE counter (k varchar(9) PRIMARY KEY, n bigint NOT NULL)").await.unwrap();
        let rows: Vec<String> = (0..KEYS).map(|n| format!("('k{n}', 0)")).collect();
        let fill = format!("INSERT INTO counter VALUES {}", rows.join(","));
        pool.execute(AssertSqlSafe(fill)).await.unwrap();
        Self::new(url, Database::Mysql(pool), broker).await
    }

    /// In this file.
    pub async fn sqlite(path: PathBuf, broker: &str) -> Self {
        let mut connection = connect(&path).unwrap();
        connection.execute_batch(outbox::schema(Dialect::Sqlite)).unwrap();
        let tx = connection.transaction().unwrap();
        tx.execute_batch("CREATE TABLE counter (k TEXT PRIMARY KEY, n INTEGER NOT NULL)").unwrap();
        for n in 0..KEYS {
            tx.execute("INSERT INTO counter VALUES (?1, 0)", [format!("k{n}")]).unwrap();
        }
        tx.commit().unwrap();
        Self::new(path.display().to_string(), Database::Sqlite(path), broker).await
    }

    pub fn load(&self) -> Load {
        Load::start(&self.database, &self.topic)
    }

    /// A relay that stops at this crash point.
    pub fn relay_at(&self, point: Option<&str>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proof-worker"));
        command.arg("relay");
        let lease = LEASE.as_millis().to_string();
        // Cursors of another kind connect by themselves, and know of the schema only.
        let plain = self.source.trim_end_matches(PATIENT);
        let source = if self.mode.starts_with("by-") { plain } else { &self.source };
        command.args([source, &self.bootstrap, self.mode, &self.name, "50", &lease]);
        Child::spawn(command, point).unwrap()
    }

    /// A relay that has begun.
    pub fn relay(&self) -> Child {
        let mut relay = self.relay_at(None);
        assert_eq!(relay.next_line(SOON).unwrap(), "up");
        relay
    }

    /// What is in the table.
    pub async fn table(&self) -> Vec<Counted> {
        let counted = |id: String, key: String, n: String| Counted { id, key, n: n.parse().unwrap() };
        match &self.database {
            Database::Postgres(pool) => {
                let look = "SELECT id::text, key, convert_from(payload, 'UTF8') FROM semel_outbox";
                let rows = sqlx::query(look).fetch_all(pool).await.unwrap();
                rows.iter().map(|row| counted(row.get(0), row.get(1), row.get(2))).collect()
            }
            Database::Mysql(pool) => {
                let look = "SELECT id, `key`, CONVERT(payload USING utf8mb4) FROM semel_outbox";
                let rows = sqlx::query(look).fetch_all(pool).await.unwrap();
                rows.iter().map(|row| counted(row.get(0), row.get(1), row.get(2))).collect()
            }
            Database::Sqlite(path) => {
                let connection = connect(path).unwrap();
                let look = "SELECT id, key, CAST(payload AS TEXT) FROM semel_outbox";
                let mut rows = connection.prepare(look).unwrap();
                let rows = rows.query_map([], |row| Ok(counted(row.get(0)?, row.get(1)?, row.get(2)?)));
                rows.unwrap().map(Result::unwrap).collect()
            }
        }
    }

    /// The same events, exactly once.
    pub fn exactly_once(mut self) -> Self {
        self.mode = "exactly-once";
        self
    }

    /// Stops the writers, lets these relays finish, stops them in order, and has a stranger read what there is.
    pub async fn end(&mut self, load: Load, relays: Vec<Child>) -> Verdict {
        let ledger = load.stop().await;
        self.judge(&ledger, relays, Duration::from_secs(60)).await
    }

    /// The same for a relay that is expected to leave something out: it is not waited for long.
    pub async fn end_soon(&mut self, load: Load, relays: Vec<Child>) -> Verdict {
        let ledger = load.stop().await;
        self.judge(&ledger, relays, Duration::from_secs(8)).await
    }

    pub async fn judge(&mut self, ledger: &Ledger, relays: Vec<Child>, quiet: Duration) -> Verdict {
        let table = self.table().await;
        self.follower.all(&table, quiet);
        for mut relay in relays {
            relay.terminate().unwrap();
            let ended = relay.wait(SOON).unwrap();
            assert!(ended.status.success(), "{ended:?}");
        }
        let verdict = judge(&table, ledger, &self.follower.judged(&self.broker));
        println!("{verdict}\nfigures: {} events, {} repeats", table.len(), verdict.repeats);
        verdict
    }
}
