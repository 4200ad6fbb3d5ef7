//! A corner of its own on each server for each test.

use std::sync::atomic::{AtomicU32, Ordering};

use semel::outbox::{self, Event};
use semel::tx::driver::Dialect;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor};
use testkit::services::{Lease, Service, require};

static COUNT: AtomicU32 = AtomicU32::new(0);

fn corner() -> String {
    format!("outbox_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

pub struct Postgres {
    url: String,
    schema: String,
    _lease: Lease,
}

impl Postgres {
    /// `None` when the run goes without PostgreSQL.
    pub async fn new() -> Option<Self> {
        Self::with(outbox::schema(Dialect::Postgres)).await
    }

    /// With these tables.
    pub async fn with(tables: &str) -> Option<Self> {
        let lease = require(Service::Postgres)?;
        let world = Self { url: lease.url().to_owned(), schema: corner(), _lease: lease };
        let client = connect(&world.url).await;
        let schema = &world.schema;
        client
            .batch_execute(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}; {tables}"))
            .await
            .unwrap();
        Some(world)
    }

    pub async fn connect(&self) -> tokio_postgres::Client {
        let client = connect(&self.url).await;
        client.batch_execute(&format!("SET search_path = {}", self.schema)).await.unwrap();
        client
    }

    /// Names the corner.
    pub fn url(&self) -> String {
        format!("{}?schema={}", self.url, self.schema)
    }

    pub async fn pool(&self, connections: u32) -> PgPool {
        let options: PgConnectOptions = self.url.parse().unwrap();
        let options = options.options([("search_path", self.schema.as_str())]);
        PgPoolOptions::new().max_connections(connections).connect_with(options).await.unwrap()
    }

    pub async fn end(self) {
        let client = connect(&self.url).await;
        client.batch_execute(&format!("DROP SCHEMA {} CASCADE", self.schema)).await.unwrap();
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// On a server that speaks MySQL's protocol.
pub struct Mysql {
    pub pool: MySqlPool,
    database: String,
    lease: Lease,
}

impl Mysql {
    /// `None` when the run goes without that server.
    pub async fn new(server: Service) -> Option<Self> {
        Self::with(server, outbox::schema(Dialect::Mysql)).await
    }

    /// With these tables.
    pub async fn with(server: Service, tables: &str) -> Option<Self> {
        let lease = require(server)?;
        let database = corner();
        let server = MySqlPool::connect(lease.url()).await.unwrap();
        server.execute(AssertSqlSafe(format!("CREATE DATABASE {database}"))).await.unwrap();
        let base = lease.url().rsplit_once('/').unwrap().0;
        let pool =
            MySqlPoolOptions::new().max_connections(16).connect(&format!("{base}/{database}")).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(tables)).execute(&pool).await.unwrap();
        Some(Self { pool, database, lease })
    }

    /// Names the corner.
    pub fn url(&self) -> String {
        format!("{}/{}", self.lease.url().rsplit_once('/').unwrap().0, self.database)
    }

    /// The one pool there is.
    pub async fn pool(&self, _: u32) -> MySqlPool {
        self.pool.clone()
    }

    pub async fn end(self) {
        self.pool.execute(AssertSqlSafe(format!("DROP DATABASE {}", self.database))).await.unwrap();
        self.pool.close().await;
    }
}

/// An event whose payload is its number.
pub fn event(n: usize) -> Event {
    Event::new("payments", "payment.completed", n.to_string()).unwrap()
}
