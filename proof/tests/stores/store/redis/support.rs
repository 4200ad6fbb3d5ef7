//! Short names for what the tests of Redis do all the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use semel::intent::fingerprint::Fingerprint;
use semel::store::redis::{RedisOptions, RedisStore};
use semel::store::{Claim, Claimed, ErrorKind, Fate, Finish, Finished, Store, StoreError, Ticket};
use semel::{Effect, Intent, Key, Operation, Outcome, Owner, Retention, Scope, Verdict};
use testkit::child::Child;
use testkit::services::spare_port;

pub(crate) const LEASE_MS: u64 = 60_000;

/// A new prefix: a store of the test's own in a shared server.
pub(crate) fn prefix(name: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let random = fastrand::u64(..);
    format!("{name}-{random:x}-{count}:")
}

/// The URL of the cluster as semel writes it.
pub(crate) fn cluster_url(nodes: &str) -> String {
    format!("redis+cluster://{}", nodes.replace("redis://", ""))
}

/// With a time-out a busy machine keeps: its server writes to the disk before it answers.
pub(crate) fn options(url: &str, prefix: &str) -> RedisOptions {
    RedisStore::options(url).unwrap().prefix(prefix).unwrap().timeout(Duration::from_secs(30))
}

/// A new store of the test's own.
pub(crate) async fn fresh(url: &str, name: &str) -> RedisStore {
    options(url, &prefix(name)).create().await.unwrap()
}

pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    let patient = Some(Duration::from_secs(30));
    let config =
        ::redis::AsyncConnectionConfig::new().set_connection_timeout(patient).set_response_timeout(patient);
    ::redis::Client::open(url).unwrap().get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

pub(crate) async fn say<T: ::redis::FromRedisValue>(
    connection: &mut MultiplexedConnection,
    words: &[&str],
) -> T {
    let mut command = ::redis::Cmd::new();
    words.iter().for_each(|word| {
        command.arg(*word);
    });
    command.query_async(connection).await.unwrap()
}

pub(crate) fn intent(key: &str) -> Intent {
    intent_of("acme", "payment.create", key)
}

pub(crate) fn intent_of(tenant: &str, operation: &str, key: &str) -> Intent {
    Intent::new(Scope::tenant(tenant).unwrap(), Operation::new(operation).unwrap(), Key::new(key).unwrap())
}

pub(crate) fn claim(key: &str) -> Claim {
    Claim {
        intent: intent(key),
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
    body_of(store.claim(claim(key)).await)
}

pub(crate) fn body_of(claimed: Result<Claimed, StoreError>) -> String {
    match claimed {
        Ok(Claimed::Replay(existing)) => {
            let outcome = existing.record.outcome.clone().unwrap();
            String::from_utf8(outcome.body_bytes().unwrap().to_vec()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

/// Opens with a time-out that is too short for a busy machine now and then.
pub(crate) async fn open_at_last(url: &str) -> RedisStore {
    soon(async {
        loop {
            match RedisStore::open(url).await {
                Ok(store) => return store,
                Err(error) => println!("not open yet: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
}

/// The answer has to be that it is in doubt. A machine too slow to reach the server in time has sent nothing, and asks
/// again.
pub(crate) async fn in_doubt<T: std::fmt::Debug>(ask: impl AsyncFn() -> Result<T, StoreError>) {
    soon(async {
        loop {
            let error = ask().await.expect_err("no replica has it");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            if error.fate() == Fate::InDoubt {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Asks until the store is reached, and as many replicas as it waits for have it.
pub(crate) async fn settled(store: &RedisStore, claim: &Claim) -> Claimed {
    soon(async {
        loop {
            match store.claim(claim.clone()).await {
                Ok(claimed) => return claimed,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("it takes much too long")
}

/// A server of the test's own, which it may flush, fill, misconfigure and kill. Ended with the test.
pub(crate) struct Server {
    child: Child,
    dir: tempfile::TempDir,
    port: u16,
    settings: Vec<String>,
}

impl Server {
    pub(crate) async fn start(settings: &[&str]) -> Self {
        let port = spare_port();
        let dir = tempfile::tempdir().unwrap();
        let settings: Vec<String> = settings.iter().map(|word| (*word).to_owned()).collect();
        let child = spawn(port, &dir, &settings);
        let server = Self { child, dir, port, settings };
        server.wait().await;
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The same with a time-out a busy machine keeps.
    pub(crate) fn patient_url(&self) -> String {
        format!("{}?timeout=30000", self.url())
    }

    pub(crate) fn address(&self) -> (&'static str, u16) {
        ("127.0.0.1", self.port)
    }

    /// SIGKILL, and a start on what is on disk.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.port, &self.dir, &self.settings);
        self.wait().await;
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    pub(crate) async fn say<T: ::redis::FromRedisValue>(&self, words: &[&str]) -> T {
        say(&mut connect(&self.url()).await, words).await
    }

    async fn wait(&self) {
        for _ in 0..3_000 {
            let client = ::redis::Client::open(self.url()).unwrap();
            if let Ok(mut connection) = client.get_multiplexed_async_connection().await
                && ::redis::cmd("PING").query_async::<()>(&mut connection).await.is_ok()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the server of this test does not come up");
    }
}

fn spawn(port: u16, dir: &tempfile::TempDir, settings: &[String]) -> Child {
    let mut command = std::process::Command::new("redis-server");
    command.current_dir(dir.path()).args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()]);
    Child::spawn(command_with(command, settings), None).unwrap()
}

fn command_with(mut command: std::process::Command, settings: &[String]) -> std::process::Command {
    command.args(settings);
    command
}
