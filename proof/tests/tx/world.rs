//! A schema of its own on the server for each test, and connections to it.

use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use testkit::services::{Lease, Service, require};
use tokio_postgres::NoTls;

/// One test's corner of the PostgreSQL server.
pub struct World {
    url: String,
    schema: String,
    _lease: Lease,
}

impl World {
    /// `None` when the run goes without PostgreSQL.
    pub async fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let lease = require(Service::Postgres)?;
        let schema = format!("tx_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let world = Self { url: lease.url().to_owned(), schema, _lease: lease };
        let client = world.connect_plain().await;
        client.batch_execute(&format!("CREATE SCHEMA {}", world.schema)).await.unwrap();
        Some(world)
    }

    /// The address, with the schema in it.
    pub fn url(&self) -> String {
        format!("{}?options=-c%20search_path%3D{}", self.url, self.schema)
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
        let options = options.options([("search_path", self.schema.as_str())]);
        PgPoolOptions::new().max_connections(connections).connect_with(options).await.unwrap()
    }

    /// What a query for one number says.
    pub async fn count(&self, query: &str) -> i64 {
        self.connect().await.query_one(query, &[]).await.unwrap().get(0)
    }

    /// Takes the schema away again. Not on drop: what a failed test left is worth a look.
    pub async fn end(self) {
        let client = self.connect_plain().await;
        client.batch_execute(&format!("DROP SCHEMA {} CASCADE", self.schema)).await.unwrap();
    }
}
