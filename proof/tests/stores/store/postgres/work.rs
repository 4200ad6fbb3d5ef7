//! Claims and outcomes as the tests here make them.

use std::time::Duration;

use semel::intent::fingerprint::{Fingerprint, Recipe};
use semel::store::postgres::{PostgresOptions, PostgresStore};
use semel::store::{Claim, Claimed, Finish, Store, Ticket};
use semel::{Effect, Intent, Key, Operation, Outcome, Owner, Retention, Scope, Verdict};

/// Far longer than anything here takes; what hangs fails instead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The locks of intents belong to the whole database: keys that are claimed at once by tests in schemas of their own have
/// to be different.
pub(crate) fn intent(key: &str) -> Intent {
    Intent::new(Scope::tenant("acme").unwrap(), Operation::new("pay").unwrap(), Key::new(key).unwrap())
}

pub(crate) fn fingerprint() -> Fingerprint {
    Recipe::default().bytes(b"request")
}

pub(crate) fn claim(key: &str) -> Claim {
    Claim {
        intent: intent(key),
        fingerprint: fingerprint(),
        owner: Owner::random(),
        effect: Effect::Opaque,
        lease_ms: 60_000,
        window: semel::intent::guard_expiry::KeyWindow::ENDLESS,
    }
}

pub(crate) fn finish() -> Finish {
    Finish {
        verdict: Verdict::Completed,
        outcome: Some(Outcome::new(201, "done")),
        retention: Retention::DAY,
    }
}

pub(crate) async fn run(store: &impl Store, key: &str) -> Ticket {
    match soon(store.claim(claim(key))).await.unwrap() {
        Claimed::Run(ticket) => ticket,
        other => panic!("{key} did not run: {other:?}"),
    }
}

/// Opens with bounds that are too short for a busy machine now and then.
pub(crate) async fn open_at_last(options: PostgresOptions) -> PostgresStore {
    soon(async {
        loop {
            match options.clone().open().await {
                Ok(store) => return store,
                Err(error) => println!("not open yet: {error}"),
            }
        }
    })
    .await
}

/// Has the statements prepared on this connection, so that what follows is one message each. Bounds as above.
pub(crate) async fn warm_up(store: &PostgresStore, key: &str) {
    let once = async |n: u32| {
        let Ok(Claimed::Run(ticket)) = store.claim(claim(&format!("{key}-{n}"))).await else { return false };
        store.finish(ticket, finish()).await.is_ok()
    };
    soon(async {
        let mut tries = 0;
        while !once(tries).await {
            tries += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it hangs")
}

/// The key of the advisory lock of an intent, spelled out: another language's client would do this.
pub(crate) fn lock_key(intent: &Intent) -> i64 {
    let first: [u8; 8] = intent.id().as_bytes()[..8].try_into().unwrap();
    i64::from_be_bytes(first) ^ i64::from_be_bytes(*b"semel.k1")
}
