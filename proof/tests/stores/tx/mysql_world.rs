//! A database of a test's own on a server that speaks MySQL's protocol.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::store::Claim;
use semel::{Effect, Intent, Key, Operation, Owner, Scope};
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Executor, MySql, MySqlConnection, Transaction};
use testkit::services::{Lease, Service, require};

use crate::tx::world::asked;

const SOON: Duration = Duration::from_secs(60);

pub async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("it takes much too long")
}

/// One test's database.
pub struct World {
    pub url: String,
    pub pool: MySqlPool,
    server: String,
    name: String,
    _lease: Option<Lease>,
}

impl World {
    /// `None` when the run goes without that server.
    pub async fn new(server: Service) -> Option<Self> {
        let lease = require(server)?;
        let server = lease.url().to_owned();
        Some(Self { _lease: Some(lease), ..Self::on(server).await })
    }

    /// On a server that somebody has alone.
    pub async fn on(server: String) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tx_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = MySqlPool::connect(&server).await.unwrap();
        root.execute(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name}"))).await.unwrap();
        root.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        root.close().await;
        // A store's bounds that a busy machine keeps; others pass over them.
        let bounds = "connect-timeout-ms=60000&statement-timeout-ms=60000";
        let url = format!("{}/{name}?{bounds}", server.rsplit_once('/').unwrap().0);
        semel::store::migrate(&url).await.unwrap();
        let pool = MySqlPoolOptions::new().max_connections(16).connect(&url).await.unwrap();
        let business = "CREATE TABLE payment (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(99), cents BIGINT); \
                        CREATE TABLE account (id BIGINT PRIMARY KEY, cents BIGINT); \
                        INSERT INTO account VALUES (7, 0), (8, 0)";
        pool.execute(business).await.unwrap();
        Self { url, pool, server, name, _lease: None }
    }

    pub async fn begin(&self) -> Transaction<'static, MySql> {
        soon(self.pool.begin()).await.unwrap()
    }

    pub async fn begin_with(&self, isolation: &str) -> Transaction<'static, MySql> {
        let mut tx = self.begin().await;
        // Said of the session; the transaction that is open began before it, so begin anew.
        let set = format!("COMMIT; SET SESSION TRANSACTION ISOLATION LEVEL {isolation}; START TRANSACTION");
        tx.execute(AssertSqlSafe(set)).await.unwrap();
        tx
    }

    pub async fn count(&self, query: &str) -> i64 {
        let query = format!("SELECT CAST(({query}) AS SIGNED)");
        sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&self.pool).await.unwrap()
    }

    /// Waits until so many transactions in this database wait for a lock.
    pub async fn until_waiting(&self, transactions: i64) {
        until_waiting(&self.pool, transactions).await;
    }

    pub async fn payments(&self, name: &str) -> i64 {
        self.count(&format!("SELECT COUNT(*) FROM payment WHERE name = '{name}'")).await
    }

    pub async fn end(self) {
        self.pool.close().await;
        let root = MySqlPool::connect(&self.server).await.unwrap();
        root.execute(AssertSqlSafe(format!("DROP DATABASE {}", self.name))).await.unwrap();
        root.close().await;
    }
}

/// Waits until so many transactions in the database of these connections wait for a lock.
pub async fn until_waiting(pool: &MySqlPool, transactions: i64) {
    let waiting = "SELECT COUNT(*) FROM information_schema.innodb_trx t \
                   JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
                   WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()";
    soon(async {
        while sqlx::query_scalar::<_, i64>(waiting).fetch_one(pool).await.unwrap() < transactions {
            // Asked more often, the server would show the same picture again.
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    })
    .await;
}

/// Every test has a database of its own, and its tasks run on several threads.
pub fn intent(key: &str) -> Intent {
    let (scope, operation) = (Scope::tenant("acme").unwrap(), Operation::new("payment.create").unwrap());
    Intent::new(scope, operation, Key::new(key).unwrap())
}

pub async fn book(tx: &mut MySqlConnection, name: &str, cents: i64) -> Result<i64, sqlx::Error> {
    let made = sqlx::query("INSERT INTO payment (name, cents) VALUES (?, ?)").bind(name).bind(cents);
    Ok(made.execute(&mut *tx).await?.last_insert_id().cast_signed())
}

pub fn claim_of(key: &str) -> Claim {
    Claim {
        intent: intent(key),
        fingerprint: asked(1),
        owner: Owner::random(),
        effect: Effect::Keyed,
        lease_ms: 60_000,
        window: semel::intent::guard_expiry::KeyWindow::ENDLESS,
    }
}
