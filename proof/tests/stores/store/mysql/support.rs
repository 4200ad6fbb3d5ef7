//! Databases of a test's own, and the ordinary requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel::intent::fingerprint::{Fingerprint, Recipe};
use semel::store::mysql::{MysqlOptions, MysqlStore};
use semel::store::{Claim, Claimed, Finish, Store, StoreError, Ticket};
use semel::{Effect, Intent, Key, Operation, Outcome, Owner, Retention, Scope, Verdict};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use testkit::services::{Lease, require};

use super::SERVER;

/// Nothing here takes this long.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// What a store's URL ends with: bounds that a busy machine keeps, for tests that must not see them run out.
pub(crate) const PATIENT: &str = "?connect-timeout-ms=60000&statement-timeout-ms=60000";

pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("it takes much too long")
}

/// A database of a test's own, dropped with this.
pub(crate) struct Database {
    pub(crate) url: String,
    pub(crate) name: String,
    server: String,
    _lease: Lease,
}

impl Database {
    /// `None` when the run goes without the server.
    pub(crate) async fn new() -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let lease = require(SERVER)?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("semel_{}_{count}_{:x}", std::process::id(), fastrand::u32(..));
        let server = lease.url().to_owned();
        let mut connection = raw(&server).await;
        run(&mut connection, &format!("CREATE DATABASE {name}")).await;
        let url = format!("{}/{name}{PATIENT}", server.rsplit_once('/').expect("a database in the URL").0);
        Some(Self { url, name, server, _lease: lease })
    }

    pub(crate) async fn store(&self) -> MysqlStore {
        self.open(MysqlStore::options()).await
    }

    pub(crate) async fn open(&self, options: MysqlOptions) -> MysqlStore {
        soon(options.open(&self.url)).await.expect("the store opens")
    }

    /// A connection beside the store's.
    pub(crate) async fn raw(&self) -> MySqlConnection {
        raw(&self.url).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        // A thread of its own: this may be inside a runtime, which cannot be blocked on.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                if let Ok(mut connection) = MySqlConnection::connect(&server).await {
                    let drop = format!("DROP DATABASE IF EXISTS {name}");
                    // A test that fails may have left a transaction open, which the drop would wait for.
                    let _ = connection.execute("SET lock_wait_timeout = 2").await;
                    let _ = connection.execute(AssertSqlSafe(drop)).await;
                }
            });
        });
        let _ = dropping.join();
    }
}

pub(crate) async fn raw(url: &str) -> MySqlConnection {
    soon(MySqlConnection::connect(url)).await.expect("connect")
}

pub(crate) async fn run(connection: &mut MySqlConnection, sql: &str) {
    let sql = sql.to_owned();
    soon(connection.execute(AssertSqlSafe(sql.clone())))
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

pub(crate) async fn number(connection: &mut MySqlConnection, sql: &str) -> i64 {
    let read = sqlx::query_scalar(AssertSqlSafe(format!("SELECT CAST(({sql}) AS SIGNED)")));
    soon(read.fetch_one(connection)).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

pub(crate) fn intent_of(scope: &str, operation: &str, key: &str) -> Intent {
    let scope = Scope::tenant(scope).expect("a tenant");
    Intent::new(scope, Operation::new(operation).expect("an operation"), Key::new(key).expect("a key"))
}

pub(crate) fn print() -> Fingerprint {
    Recipe::default().bytes(b"the same request")
}

pub(crate) fn claim_of(key: &str) -> Claim {
    Claim {
        intent: intent_of("acme", "pay", key),
        fingerprint: print(),
        owner: Owner::random(),
        effect: Effect::Opaque,
        lease_ms: 60_000,
        window: semel::intent::guard_expiry::KeyWindow::ENDLESS,
    }
}

pub(crate) fn completed(body: &str) -> Finish {
    Finish {
        verdict: Verdict::Completed,
        outcome: Some(Outcome::new(200, body.to_owned())),
        retention: Retention::DAY,
    }
}

/// Claims, and has to run.
pub(crate) async fn run_of(store: &MysqlStore, claim: &Claim) -> Ticket {
    match soon(store.claim(claim.clone())).await.expect("a claim") {
        Claimed::Run(ticket) => ticket,
        other => panic!("{:?} was answered {other:?}", claim.intent),
    }
}

/// Asks until the outage is over, and until it can be seen who has the key: a claim that was in doubt may still be
/// on its way.
pub(crate) async fn settle(store: &MysqlStore, claim: &Claim) -> Claimed {
    at_last(async || match store.claim(claim.clone()).await {
        Ok(Claimed::InFlight(met)) if met.record.head.owner == Owner::NONE => None,
        met => Some(met),
    })
    .await
}

/// Asks until the outage is over and there is an answer.
pub(crate) async fn at_last<T>(ask: impl AsyncFn() -> Option<Result<T, StoreError>>) -> T {
    soon(async {
        loop {
            match ask().await {
                Some(Ok(answer)) => return answer,
                Some(Err(error)) if !error.may_retry() => panic!("{error}"),
                Some(Err(_)) | None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    })
    .await
}

/// The id of an intent as SQL knows it.
pub(crate) fn id_sql(intent: &Intent) -> String {
    let digits: String = intent.id().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("X'{digits}'")
}

/// A row as another process's transaction would insert it, still to be committed.
pub(crate) async fn insert_raw(connection: &mut MySqlConnection, intent: &Intent) {
    try_insert(connection, intent).await.expect("the insert");
}

/// The same where it may fail; the server's number of the error then.
pub(crate) async fn try_insert(connection: &mut MySqlConnection, intent: &Intent) -> Result<(), u16> {
    let insert = format!(
        "INSERT INTO semel_intent (id, state, effect, epoch, attempts, lease_until, created_at, changed_at, \
         owner, recipe, fingerprint, operation, scope, `key`) \
         VALUES ({}, 0, 0, 1, 1, 9000000000000, 1, 1, X'{:032x}', 1, X'{:064x}', 1, 'acme', '{}') \
         ON DUPLICATE KEY UPDATE id = id",
        id_sql(intent),
        7,
        7,
        intent.key().as_str()
    );
    match soon(connection.execute(AssertSqlSafe(insert))).await {
        Ok(_) => Ok(()),
        Err(sqlx::Error::Database(error)) => {
            Err(error.downcast_ref::<sqlx::mysql::MySqlDatabaseError>().number())
        }
        Err(error) => panic!("{error}"),
    }
}
