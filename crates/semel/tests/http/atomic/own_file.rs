//! A handler that claims in a transaction on its own SQLite file, and the layer that looks there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::post;
use http::{Request, Response, StatusCode};
use rusqlite::{Connection, TransactionBehavior};
use semel::blocking;
use semel::guard::{Kept, Rebuild, Rebuilt};
use semel::http::{ClaimHandle, Rule};
use semel::store::Store;
use semel::store::faulty::{Fault, Faulty, StoreCall};
use semel::tx::TxError;
use semel::tx::sqlite::{SqliteReader, migrate};
use semel::{Effect, InFlight, Outcome, StoreDown};
use std::time::Duration;

use crate::world::{Got, call, layer, payment, payments};

/// What becomes of the process around the commit.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Lives,
    DiesBeforeCommit,
    DiesAfterCommit,
}

struct Service {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Service {
    fn new() -> Self {
        let directory = testkit::scratch::directory();
        let path = directory.path().join("app.db");
        let db = Connection::open(&path).unwrap();
        db.pragma_update(None, "journal_mode", "wal").unwrap();
        db.execute_batch("CREATE TABLE payment (id INTEGER PRIMARY KEY, body TEXT NOT NULL)").unwrap();
        migrate(&db).unwrap();
        Self { _directory: directory, path }
    }

    async fn app(&self, fate: Fate) -> Router {
        self.app_on(fate, SqliteReader::open(&self.path).await.unwrap())
    }

    fn app_on(&self, fate: Fate, store: impl Store) -> Router {
        self.app_with(fate, store, self.rule())
    }

    fn rule(&self) -> Rule {
        payments().effect(Effect::Atomic).in_flight(InFlight::Wait(Duration::from_secs(5)))
    }

    fn app_with(&self, fate: Fate, store: impl Store, rule: Rule) -> Router {
        let path: Arc<Path> = self.path.clone().into();
        let handler = move |request: Request<Body>| async move {
            let claim = request.extensions().get::<ClaimHandle>().cloned().unwrap();
            let body = axum::body::to_bytes(request.into_body(), 1_000).await.unwrap();
            tokio::task::spawn_blocking(move || pay(&path, &claim, &body, fate)).await.unwrap()
        };
        let layer = layer(store, rule);
        Router::new().route("/payments", post(handler)).layer(layer)
    }

    async fn pay(&self, fate: Fate, key: &str, body: &'static str) -> Got {
        call(&self.app(fate).await, payment(key, body)).await
    }

    fn payments(&self) -> i64 {
        let db = Connection::open(&self.path).unwrap();
        db.query_row("SELECT count(*) FROM payment", [], |row| row.get(0)).unwrap()
    }
}

fn pay(path: &Path, claim: &ClaimHandle, body: &[u8], fate: Fate) -> Response<Body> {
    let mut db = Connection::open(path).unwrap();
    db.busy_timeout(Duration::from_secs(60)).unwrap();
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let text = String::from_utf8(body.to_vec()).unwrap();
    let paid = blocking::http::once_tx(claim, &tx, |tx| {
        tx.execute("INSERT INTO payment (body) VALUES (?1)", [&text])?;
        if text.contains("broke") {
            return Err(rusqlite::Error::QueryReturnedNoRows);
        }
        let id = tx.last_insert_rowid();
        let response = Response::builder().status(StatusCode::CREATED);
        let response =
            response.header("location", format!("/payments/{id}")).header("set-cookie", "session=1");
        Ok(response.body(format!("paid {id} \u{fffd}")).unwrap())
    });
    match paid {
        Ok(response) => {
            assert!(fate != Fate::DiesBeforeCommit, "killed before the commit");
            tx.commit().unwrap();
            assert!(fate != Fate::DiesAfterCommit, "killed after the commit");
            response.map(Body::from)
        }
        Err(error @ TxError::Work(_)) => (StatusCode::PAYMENT_REQUIRED, error.to_string()).into_response(),
        Err(error) => claim.refusal(&error).unwrap().map(Body::from),
    }
}

#[tokio::test]
async fn the_response_is_stored_by_the_handlers_commit_and_replayed_by_the_layer() {
    let service = Service::new();
    let first = service.pay(Fate::Lives, "k", "{}").await;
    assert_eq!((first.status, first.replayed(), first.header("set-cookie")), (201, false, "session=1"));
    // The handler would die, so it cannot have been called.
    let again = service.pay(Fate::DiesBeforeCommit, "k", "{}").await;
    assert_eq!((again.status, again.replayed()), (201, true));
    assert_eq!((&again.body, again.header("location")), (&first.body, "/payments/1"));
    assert_eq!(again.header("set-cookie"), "", "a cookie belongs to one session");
    let other = service.pay(Fate::Lives, "k", "[]").await;
    assert_eq!(other.code(), "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST");
    assert_eq!(service.payments(), 1);
}

#[tokio::test]
async fn a_crash_before_the_commit_leaves_nothing_and_one_after_it_is_replayed() {
    let service = Service::new();
    for (fate, replayed) in [(Fate::DiesBeforeCommit, false), (Fate::DiesAfterCommit, true)] {
        let key = if replayed { "after" } else { "before" };
        let app = service.app(fate).await;
        let crashed = tokio::spawn(async move { call(&app, payment(key, "{}")).await });
        assert!(crashed.await.is_err(), "it had to die");
        let retry = service.pay(Fate::Lives, key, "{}").await;
        assert_eq!((retry.status, retry.replayed()), (201, replayed), "{key}");
    }
    assert_eq!(service.payments(), 2);
}

#[tokio::test]
async fn what_the_handler_rolls_back_is_not_remembered() {
    let service = Service::new();
    for _ in 0..2 {
        assert_eq!(service.pay(Fate::Lives, "k", "\"broke\"").await.status, 402);
    }
    assert_eq!(service.payments(), 0);
    assert_eq!(service.pay(Fate::Lives, "k", "{}").await.status, 201, "nothing is bound to the key");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn duplicates_at_once_have_one_effect_and_one_answer() {
    let service = Service::new();
    let app = service.app(Fate::Lives).await;
    let calls: Vec<_> = (0..32)
        .map(|n| {
            let app = app.clone();
            tokio::spawn(async move { call(&app, payment(&format!("k{}", n % 4), "{}")).await })
        })
        .collect();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap());
    }
    assert!(answers.iter().all(|got| got.status == 201), "{answers:?}");
    assert_eq!(answers.iter().filter(|got| !got.replayed()).count(), 4);
    assert_eq!(service.payments(), 4);
}

#[tokio::test]
async fn a_claim_in_a_transaction_under_a_layer_that_claims_is_refused() {
    let service = Service::new();
    let path = service.path.clone();
    let handler = move |claim: axum::Extension<ClaimHandle>| async move {
        let mut db = Connection::open(&path).unwrap();
        let tx = db.transaction().unwrap();
        let paid = blocking::http::once_tx(&claim, &tx, |_| Ok::<_, rusqlite::Error>(Response::new("")));
        paid.unwrap_err().to_string()
    };
    let store = semel::store::memory::MemoryStore::new();
    let app = Router::new().route("/payments", post(handler)).layer(layer(store, payments()));
    let got = call(&app, payment("k", "{}")).await;
    assert!(String::from_utf8_lossy(&got.body).contains("Effect::Atomic"), "{got:?}");
}

/// The handler's transaction goes past the store that protects, and is protected all the same.
#[cfg(feature = "seal")]
#[tokio::test]
async fn what_the_handler_commits_is_sealed_like_the_rest() {
    use semel::store::AnyStore;
    use semel::store::protect::{Keys, Protected, Protection, SealKey};

    let service = Service::new();
    let sealed = |name: &str, byte: u8| {
        let key = SealKey::new(name, [byte; 32]).unwrap();
        Protection::none().seal(Keys::new(key))
    };
    let app = async |protection: Protection| {
        let reader = SqliteReader::open(&service.path).await.unwrap();
        service.app_on(Fate::Lives, AnyStore::new(Protected::new(reader, protection)))
    };
    let first = call(&app(sealed("one", 1)).await, payment("k", "{}")).await;
    let again = call(&app(sealed("one", 1)).await, payment("k", "{}")).await;
    assert_eq!((first.status, first.replayed(), again.status, again.replayed()), (201, false, 201, true));
    assert_eq!(again.body, first.body);
    let db = Connection::open(&service.path).unwrap();
    let stored: Vec<u8> = db.query_row("SELECT outcome FROM semel_intent", [], |row| row.get(0)).unwrap();
    assert!(!stored.windows(4).any(|window| window == b"paid"), "in the clear");
    // A caller with another key learns nothing, and nothing runs again.
    let other = call(&app(sealed("two", 2)).await, payment("k", "{}")).await;
    assert_eq!(other.status, 503);
    assert_eq!(service.payments(), 1);
}

/// Reads the payment from its table, as a service would.
struct FromTheTable;

impl Rebuild for FromTheTable {
    fn reference(&self, outcome: &Outcome) -> Option<String> {
        let text = String::from_utf8(outcome.body_bytes()?.to_vec()).ok()?;
        Some(text.strip_prefix("paid ")?.split(' ').next()?.to_owned())
    }

    fn rebuild(&self, kept: Kept) -> Rebuilt<'_> {
        Box::pin(async move { Ok(Outcome::new(kept.code, format!("paid {} \u{fffd}", kept.reference))) })
    }
}

/// Only what names the result reaches the file, and the answer is made again from it.
#[tokio::test]
async fn of_a_minimal_operation_only_the_reference_is_committed() {
    let service = Service::new();
    let rule = || service.rule().minimal(FromTheTable);
    let reader = async || SqliteReader::open(&service.path).await.unwrap();
    let first = call(&service.app_with(Fate::Lives, reader().await, rule()), payment("k", "{}")).await;
    assert_eq!((first.status, first.replayed(), first.header("location")), (201, false, "/payments/1"));
    let db = Connection::open(&service.path).unwrap();
    let stored: Vec<u8> = db.query_row("SELECT outcome FROM semel_intent", [], |row| row.get(0)).unwrap();
    assert!(!stored.windows(4).any(|window| window == b"paid"), "the whole answer is in the file");
    assert!(!stored.windows(8).any(|window| window == b"location"), "its headers are in the file");
    // Found by the layer; and, where the layer cannot read, by the handler's own transaction.
    let blind =
        Faulty::new(
            reader().await,
            |asked| if asked == StoreCall::Get { Fault::Refused } else { Fault::None },
        );
    for again in [
        call(&service.app_with(Fate::DiesBeforeCommit, reader().await, rule()), payment("k", "{}")).await,
        call(&service.app_with(Fate::Lives, blind, rule().store_down(StoreDown::Open)), payment("k", "{}"))
            .await,
    ] {
        assert_eq!((again.status, again.replayed()), (201, true));
        assert_eq!((&again.body, again.header("idempotency-body")), (&first.body, ""));
    }
    assert_eq!(service.payments(), 1);
}
