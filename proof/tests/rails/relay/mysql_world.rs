//! An outbox for tests of polling in MySQL and MariaDB.

use std::time::Duration;

use semel::outbox::{self, append_tx};
use semel::relay::poll::mysql::MysqlOutbox;
use semel::tx::driver::Dialect;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Executor};
use testkit::services::{Lease, Service, require};

use crate::relay::world::{corner, event};

/// Its end is waited for now and then.
pub const LEASE: Duration = Duration::from_secs(6);

/// An outbox in a database of its own on a server that speaks MySQL's protocol.
pub struct World {
    pub pool: MySqlPool,
    pub outbox: MysqlOutbox,
    pub database: String,
    pub server: Lease,
}

impl World {
    /// `None` when the run goes without that server.
    pub async fn new(server: Service) -> Option<Self> {
        let lease = require(server)?;
        let database = corner();
        let server = MySqlPool::connect(lease.url()).await.unwrap();
        server.execute(AssertSqlSafe(format!("CREATE DATABASE {database}"))).await.unwrap();
        let base = lease.url().rsplit_once('/').unwrap().0;
        let url = format!("{base}/{database}");
        let pool = MySqlPoolOptions::new().max_connections(16).connect(&url).await.unwrap();
        sqlx::raw_sql(outbox::schema(Dialect::Mysql)).execute(&pool).await.unwrap();
        // A busy server takes longer than usual to greet.
        let outbox = MysqlOutbox::new(&format!("{url}?connect-timeout-ms=60000")).unwrap().lease(LEASE);
        Some(Self { pool, outbox, database, server: lease })
    }

    pub async fn append(&self, events: &[(&str, &str)]) {
        for (key, text) in events {
            let mut tx = self.pool.begin().await.unwrap();
            append_tx(&mut tx, &event(key, text)).await.unwrap();
            tx.commit().await.unwrap();
        }
    }

    /// How many parts each relay has.
    pub async fn owned(&self) -> Vec<i64> {
        let owned =
            "SELECT count(*) FROM semel_outbox_cursor WHERE owner IS NOT NULL GROUP BY owner ORDER BY 1";
        sqlx::query_scalar(owned).fetch_all(&self.pool).await.unwrap()
    }

    pub async fn end(self) {
        self.pool.execute(AssertSqlSafe(format!("DROP DATABASE {}", self.database))).await.unwrap();
        self.pool.close().await;
    }
}
