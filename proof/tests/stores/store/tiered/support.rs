//! A tiered store of the test's own: a SQLite file, and a prefix in the shared Redis.

use std::path::PathBuf;
use std::time::Duration;

use semel::observe::Metrics;
use semel::store::Store;
use semel::store::sqlite::SqliteStore;
use semel::store::tiered::TieredStore;
use testkit::services::{Lease, Service, require};

use crate::store::redis::support::prefix;

pub(crate) struct Place {
    pub(crate) redis: Lease,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) prefix: String,
    pub(crate) metrics: Metrics,
}

impl Place {
    pub(crate) fn new() -> Option<Self> {
        let redis = require(Service::Redis)?;
        let dir = tempfile::tempdir().unwrap();
        Some(Self { redis, dir, prefix: prefix("tier"), metrics: Metrics::new() })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("semel.db")
    }

    /// The cache's URL. A look may take long here: the machine is busy, and these tests are not about speed.
    pub(crate) fn cache_url(&self) -> String {
        format!("{}?prefix={}&timeout=30000", self.redis.url(), self.prefix)
    }

    pub(crate) async fn sqlite(&self) -> SqliteStore {
        SqliteStore::open(self.path()).await.unwrap()
    }

    pub(crate) async fn open(&self) -> TieredStore<SqliteStore> {
        self.over(self.sqlite().await).await
    }

    pub(crate) async fn over<S: Store>(&self, authority: S) -> TieredStore<S> {
        TieredStore::open(authority, &self.cache_url(), &self.metrics).await.unwrap()
    }

    pub(crate) fn looks(&self, result: &str) -> u64 {
        self.counted(&format!("semel_cache_total{{result=\"{result}\"}} "))
    }

    pub(crate) fn fills(&self, result: &str) -> u64 {
        self.counted(&format!("semel_cache_fill_total{{result=\"{result}\"}} "))
    }

    fn counted(&self, name: &str) -> u64 {
        let text = self.metrics.render();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
    }

    /// Returns when so many outcomes have ended in the cache.
    pub(crate) async fn filled(&self, result: &str, times: u64) {
        for _ in 0..6_000 {
            if self.fills(result) >= times {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{} of {times} fills were {result}", self.fills(result));
    }

    /// How many outcomes have come to their end on the way into the cache, there or not.
    pub(crate) fn fills_ended(&self) -> u64 {
        ["stored", "overtaken", "dropped", "error"].iter().map(|result| self.fills(result)).sum()
    }

    /// The entries of this store in the cache.
    pub(crate) async fn entries(&self) -> Vec<Vec<u8>> {
        let mut connection = crate::store::redis::support::connect(self.redis.url()).await;
        let mut scan = ::redis::cmd("SCAN");
        scan.arg(0).arg("MATCH").arg(format!("{}*", self.prefix)).arg("COUNT").arg(10_000_000);
        let (_, keys): (u64, Vec<Vec<u8>>) = scan.query_async(&mut connection).await.unwrap();
        keys
    }
}
