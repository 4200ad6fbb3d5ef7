//! Short names for what the SQLite tests do all the time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel::intent::fingerprint::Fingerprint;
use semel::store::sqlite::{SqliteOptions, SqliteStore};
use semel::store::{Claim, Claimed, Finish, Finished, Store, StoreError, Ticket};
use semel::{Effect, Intent, Key, Operation, Outcome, Owner, Retention, Scope, StoreTime, Verdict};

pub(crate) const LEASE_MS: u64 = 60_000;

/// A directory of the test's own, and a file in it that is not there yet.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

pub(crate) fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("semel.db");
    Place { dir, path }
}

/// The file among several who write, where no writer may give up the wait for a turn.
pub(crate) async fn open_among_others(path: &Path) -> SqliteStore {
    SqliteStore::options().busy_timeout(Duration::from_secs(120)).open(path).await.unwrap()
}

/// A clock that stands until it is set.
#[derive(Clone)]
pub(crate) struct Hand(Arc<AtomicU64>);

impl Hand {
    pub(crate) fn at(ms: u64) -> Self {
        Self(Arc::new(AtomicU64::new(ms)))
    }
    pub(crate) fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
    pub(crate) fn clock(&self) -> impl Fn() -> StoreTime + Send + Sync + 'static {
        let hand = self.clone();
        move || StoreTime(hand.0.load(Ordering::SeqCst))
    }
    pub(crate) fn options(&self) -> SqliteOptions {
        SqliteStore::options().clock(self.clock())
    }
}

pub(crate) fn intent(key: &str) -> Intent {
    intent_of("acme", "payment.create", key)
}

pub(crate) fn intent_of(tenant: &str, operation: &str, key: &str) -> Intent {
    Intent::new(Scope::tenant(tenant).unwrap(), Operation::new(operation).unwrap(), Key::new(key).unwrap())
}

pub(crate) fn claim(key: &str) -> Claim {
    claim_of(intent(key))
}

pub(crate) fn claim_of(intent: Intent) -> Claim {
    Claim {
        intent,
        fingerprint: Fingerprint::from_parts([7; 32], 1),
        owner: Owner::random(),
        effect: Effect::Opaque,
        lease_ms: LEASE_MS,
        window: semel::intent::guard_expiry::KeyWindow::ENDLESS,
    }
}

pub(crate) fn completed(body: &str) -> Finish {
    Finish {
        verdict: Verdict::Completed,
        outcome: Some(Outcome::new(201, body.to_owned())),
        retention: Retention::DAY,
    }
}

pub(crate) async fn run(store: &impl Store, claim: Claim) -> Ticket {
    match store.claim(claim).await {
        Ok(Claimed::Run(ticket)) => ticket,
        other => panic!("{other:?}"),
    }
}

/// Claims and finishes.
pub(crate) async fn done(store: &impl Store, key: &str) -> Ticket {
    let ticket = run(store, claim(key)).await;
    assert_eq!(store.finish(ticket, completed(key)).await.unwrap(), Finished::Recorded);
    ticket
}

/// The body that is replayed.
pub(crate) async fn replayed(store: &impl Store, key: &str) -> String {
    match store.claim(claim(key)).await.unwrap() {
        Claimed::Replay(existing) => {
            let outcome = existing.record.outcome.clone().unwrap();
            String::from_utf8(outcome.body_bytes().unwrap().to_vec()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn error_of<T>(result: Result<T, StoreError>) -> StoreError {
    result.err().expect("should have failed")
}

/// Another process's connection, as far as SQLite is concerned.
pub(crate) fn plain(path: &std::path::Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).unwrap()
}

/// Holds the write lock, so that whatever is asked meanwhile ends up in one batch.
pub(crate) struct Held(rusqlite::Connection);

pub(crate) fn hold(path: &std::path::Path) -> Held {
    let connection = plain(path);
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    Held(connection)
}

impl Held {
    pub(crate) fn release(self) {
        self.0.execute_batch("ROLLBACK").unwrap();
    }
}

/// Polls once: the request is in the queue when this returns.
pub(crate) fn started<F: Future>(future: F) -> std::pin::Pin<Box<F>> {
    let mut future = Box::pin(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
    future
}
