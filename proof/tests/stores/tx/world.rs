//! A schema of its own on the server for each test, and connections to it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::intent::fingerprint::{Fingerprint, Recipe};
use semel::{Intent, Key, Operation, Scope};
use sqlx::PgConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use testkit::services::{Lease, Service, require};
use tokio_postgres::NoTls;

/// What the application does: one row in each, or none.
const BUSINESS: &str = "
    CREATE TABLE payment (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, cents bigint NOT NULL);
    CREATE TABLE account (id bigint PRIMARY KEY, cents bigint NOT NULL);
    INSERT INTO account VALUES (7, 0);
";

/// One test's corner of the PostgreSQL server.
pub struct World {
    url: String,
    schema: String,
    _lease: Lease,
}

impl World {
    /// `None` when the run goes without PostgreSQL.
    pub async fn new() -> Option<Self> {
        Self::with(semel::store::postgres::SQL).await
    }

    /// The same with other tables and functions than semel's own: where a bug is planted.
    pub async fn with(sql: &str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let lease = require(Service::Postgres)?;
        let schema = format!("tx_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let world = Self { url: lease.url().to_owned(), schema, _lease: lease };
        let client = world.connect_plain().await;
        client.batch_execute(&format!("CREATE SCHEMA {}", world.schema)).await.unwrap();
        let client = world.connect().await;
        client.batch_execute(sql).await.unwrap();
        client.batch_execute(BUSINESS).await.unwrap();
        Some(world)
    }

    /// The address for a store of semel's own, with bounds that a busy machine keeps.
    pub fn url(&self) -> String {
        format!("{}?schema={}&connect_timeout=60s&statement_timeout=60s", self.url, self.schema)
    }

    /// Server and schema, as the worker wants them.
    pub fn place(&self) -> [&str; 2] {
        [&self.url, &self.schema]
    }

    async fn connect_plain(&self) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// A connection that knows nothing of semel's drivers: the judge's own.
    pub async fn connect(&self) -> tokio_postgres::Client {
        let client = self.connect_plain().await;
        client.batch_execute(&format!("SET search_path = {}", self.schema)).await.unwrap();
        client
    }

    pub async fn pool(&self, connections: u32) -> PgPool {
        let options: PgConnectOptions = self.url.parse().unwrap();
        let options = options.options([("search_path", self.schema.as_str())]).application_name(&self.schema);
        PgPoolOptions::new().max_connections(connections).connect_with(options).await.unwrap()
    }

    /// How many payments were made under a name, and what the account says of all of them together.
    pub async fn payments(&self, name: &str) -> i64 {
        self.count(&format!("SELECT count(*) FROM payment WHERE name = '{name}'")).await
    }

    /// What a query for one number says.
    pub async fn count(&self, query: &str) -> i64 {
        self.connect().await.query_one(query, &[]).await.unwrap().get(0)
    }

    /// Who has looked for an intent last, or asked where it waits, and when: (backend, moment).
    pub async fn looks_of_waiting(&self) -> Vec<(i32, String)> {
        let query = "SELECT pid, query_start::text FROM pg_stat_activity
                     WHERE application_name = $1
                       AND (query LIKE '%semel_tx_look%' OR query LIKE '%pg_postmaster_start_time%')";
        let rows = self.connect().await.query(query, &[&self.schema]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// The same, when that many have.
    pub async fn until_looked(&self, callers: usize) -> Vec<(i32, String)> {
        for _ in 0..2_000 {
            let looks = self.looks_of_waiting().await;
            if looks.len() == callers {
                return looks;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{callers} callers never came");
    }

    /// Takes the schema away again. Not on drop: what a failed test left is worth a look.
    pub async fn end(self) {
        let client = self.connect_plain().await;
        client.batch_execute(&format!("DROP SCHEMA {} CASCADE", self.schema)).await.unwrap();
    }
}

/// An intent of this test's own: locks are the database's, not the schema's, and tests run side by side. A test and
/// all its tasks run on one thread, which has its name.
pub fn intent(key: &str) -> Intent {
    let mut test = DefaultHasher::new();
    std::thread::current().name().hash(&mut test);
    let tenant = format!("test-{:x}", test.finish());
    let (scope, operation) = (Scope::tenant(&tenant).unwrap(), Operation::new("payment.create").unwrap());
    Intent::new(scope, operation, Key::new(key).unwrap())
}

pub fn asked(cents: i64) -> Fingerprint {
    Recipe::default().value(&("EUR", cents)).unwrap()
}

/// The work: two rows, as an application would write them.
pub async fn book(tx: &mut PgConnection, name: &str, cents: i64) -> Result<i64, sqlx::Error> {
    sqlx::query("UPDATE account SET cents = cents + $1 WHERE id = 7").bind(cents).execute(&mut *tx).await?;
    let insert = "INSERT INTO payment (name, cents) VALUES ($1, $2) RETURNING id";
    sqlx::query_scalar(insert).bind(name).bind(cents).fetch_one(tx).await
}
