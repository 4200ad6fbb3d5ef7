//! A store file with one intent of each kind, made days ago so that ages do not change while a test runs.

use std::future::Future;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use semel::guard::Guarded;
use semel::intent::fingerprint::Recipe;
use semel::store::sqlite::SqliteStore;
use semel::store::{Claim, Claimed, Store};
use semel::{
    Effect, Execution, Guard, Intent, Key, Operation, Outcome, Owner, Retention, Scope, StoreTime, WorkResult,
};
use tempfile::TempDir;

use crate::semel::{Ran, command, ran};

/// In the middle of an hour, three days back.
pub(crate) const AGE: Duration = Duration::from_secs(3 * 86_400 + 4 * 3_600 + 1_800);
const DAY_MS: u64 = 86_400_000;

pub(crate) struct World {
    directory: TempDir,
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub(crate) fn intent(scope: &str, operation: &str, key: &str) -> Intent {
    let scope = Scope::from_text(scope).unwrap();
    Intent::new(scope, Operation::new(operation).unwrap(), Key::new(key).unwrap())
}

/// The intents of [`World::new`], newest last.
pub(crate) fn uncertain() -> Intent {
    intent("acme/user-42", "payment.create", "order-1001")
}
pub(crate) fn lapsed() -> Intent {
    intent("acme", "payment.create", "order-1002")
}
pub(crate) fn in_progress() -> Intent {
    intent("acme", "payment.create", "order-1003")
}
pub(crate) fn completed() -> Intent {
    intent("globex", "payment.refund", "order-1004")
}
pub(crate) fn refused() -> Intent {
    intent("globex", "payment.create", "order-1005")
}
pub(crate) fn not_applied() -> Intent {
    intent("", "mail.send", "welcome-7")
}

impl World {
    /// A directory without a store.
    pub(crate) fn empty() -> Self {
        Self { directory: testkit::scratch::directory() }
    }

    /// A store with one intent of each kind.
    pub(crate) fn new() -> Self {
        let world = Self::empty();
        block_on(async {
            let store = world.store_long_ago().await;
            let uncertain = uncertain();
            let broke =
                Execution { result: WorkResult::Unknown, outcome: Outcome::new(504, "gateway timeout") };
            ends(&store, &uncertain, Retention::DAY, broke).await;
            claims(&store, &lapsed(), 1_000).await;
            // It ends in 12 and a half hours: a lease of more than a day is not trusted.
            claims(&store, &in_progress(), AGE.as_millis() as u64 + 25 * DAY_MS / 48).await;
            let created = Outcome::new(201, "{\"id\":7}").header("content-type", "application/json");
            ends(&store, &completed(), Retention::Forever, Execution::completed(created)).await;
            let declined =
                Execution { result: WorkResult::FailedFinal, outcome: Outcome::new(402, "card declined") };
            ends(&store, &refused(), Retention::Ms(7 * DAY_MS), declined).await;
            let failed = Execution {
                result: WorkResult::NotApplied,
                outcome: Outcome::new(503, "connection refused"),
            };
            ends(&store, &not_applied(), Retention::Forever, failed).await;
            store.close().await;
        });
        world
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("semel.db")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    pub(crate) fn semel(&self, args: &[&str]) -> Ran {
        let mut command = command(args);
        command.env("SEMEL_STORE", self.url());
        ran(command)
    }

    /// The store as it is now.
    pub(crate) async fn store(&self) -> SqliteStore {
        SqliteStore::open(self.path()).await.unwrap()
    }

    /// The store, with a clock that is [`AGE`] behind.
    pub(crate) async fn store_long_ago(&self) -> SqliteStore {
        let clock = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            StoreTime((now - AGE).as_millis() as u64)
        };
        SqliteStore::options().clock(clock).open(self.path()).await.unwrap()
    }
}

pub(crate) async fn claims(store: &SqliteStore, intent: &Intent, lease_ms: u64) {
    let fingerprint = Recipe::default().bytes(b"request");
    let owner = Owner::random();
    let window = semel::intent::guard_expiry::KeyWindow::ENDLESS;
    let claim =
        Claim { intent: intent.clone(), fingerprint, owner, effect: Effect::Opaque, lease_ms, window };
    assert!(matches!(store.claim(claim).await.unwrap(), Claimed::Run(_)));
}

pub(crate) fn guarded(store: &SqliteStore, intent: &Intent) -> Guarded<SqliteStore> {
    Guard::new(store.clone()).operation(intent.operation().as_str()).unwrap()
}

async fn ends(store: &SqliteStore, intent: &Intent, retention: Retention, execution: Execution) {
    let guarded = guarded(store, intent).retention(retention).unwrap();
    let fingerprint = Recipe::default().bytes(b"request");
    guarded.run(intent.clone(), fingerprint, |_| async { execution }).await.unwrap();
}
