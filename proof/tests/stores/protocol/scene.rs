//! A directory with a store and a ledger, and the processes that use them.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use semel::store::sqlite::SqliteStore;
use semel::store::{Record, Store};
use semel::{Intent, Key, Operation, Scope, State};
use tempfile::TempDir;
use testkit::child::Child;
use testkit::ledger::Entries;

/// Nothing here takes this long unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than a busy machine stands still. Most who use it wait for it to run out.
const LEASE_MS: u64 = 8_000;

pub struct Scene {
    directory: TempDir,
    effect: &'static str,
    lease_ms: u64,
    began_ms: u128,
}

impl Scene {
    pub fn new(effect: &'static str) -> Self {
        Self::with_lease(effect, LEASE_MS)
    }

    pub fn with_lease(effect: &'static str, lease_ms: u64) -> Self {
        let began_ms = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
        Self { directory: testkit::scratch::directory(), effect, lease_ms, began_ms }
    }

    pub fn store_path(&self) -> PathBuf {
        self.directory.path().join("semel.db")
    }

    fn ledger_path(&self) -> PathBuf {
        self.directory.path().join("ledger")
    }

    /// A process that makes one call for `key`.
    pub fn start(&self, key: &str, crash_at: Option<&str>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proof-worker"));
        command.arg("protocol");
        command.arg("once").arg(self.store_path()).arg(self.ledger_path());
        command.args([self.effect, &self.lease_ms.to_string(), key]);
        Child::spawn(command, crash_at).unwrap()
    }

    /// A process that does the work for `key` without a guard.
    pub fn start_bare(&self, key: &str, crash_at: Option<&str>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proof-worker"));
        command.arg("protocol");
        command.arg("bare").arg(self.ledger_path()).arg(key);
        Child::spawn(command, crash_at).unwrap()
    }

    /// A process under load, which has begun to work.
    pub fn start_load(&self, seed: u64) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proof-worker"));
        command.arg("protocol");
        command.arg("load").arg(self.store_path()).arg(self.ledger_path());
        command.args([self.lease_ms.to_string(), seed.to_string(), self.began_ms.to_string()]);
        let mut child = Child::spawn(command, None).unwrap();
        assert_eq!(child.next_line(PATIENCE).unwrap(), "working");
        child
    }

    /// What one more call for `key` gets.
    pub fn call(&self, key: &str) -> String {
        let mut child = self.start(key, None);
        let answer = child.next_line(PATIENCE).unwrap();
        let ended = child.wait(PATIENCE).unwrap();
        assert!(ended.status.success(), "{ended:?}");
        answer
    }

    /// How often the effect happened, and how often under different keys.
    pub fn effects(&self) -> (usize, usize) {
        let entries = self.ledger();
        (entries.lines().len(), entries.distinct())
    }

    pub fn ledger(&self) -> Entries {
        Entries::read(self.ledger_path()).unwrap()
    }

    pub fn intent(key: &str) -> Intent {
        let (scope, operation) = (Scope::tenant("acme").unwrap(), Operation::new("pay").unwrap());
        Intent::new(scope, operation, Key::new(key).unwrap())
    }

    pub fn record(&self, key: &str) -> Option<Record> {
        let id = Self::intent(key).id();
        self.with_store(async move |store| store.get(id).await.unwrap())
    }

    /// The state that holds now by the store's clock.
    pub fn state(&self, key: &str) -> Option<State> {
        let id = Self::intent(key).id();
        self.with_store(async move |store| {
            let record = store.get(id).await.unwrap()?;
            record.state_at(store.now().await.unwrap())
        })
    }

    /// Returns when the lease of `key` has run out by the store's clock.
    pub fn let_the_lease_run_out(&self, key: &str) {
        let id = Self::intent(key).id();
        self.with_store(async move |store| {
            let Some(record) = store.get(id).await.unwrap() else { return };
            while store.now().await.unwrap() < record.head.lease_until {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }

    pub fn with_store<T>(&self, work: impl AsyncFnOnce(&SqliteStore) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = SqliteStore::open(self.store_path()).await.unwrap();
            work(&store).await
        })
    }
}
