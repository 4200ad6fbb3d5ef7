//! Sagas that share a transaction: a row that somebody else has locked holds up no other.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel::intent::fingerprint::Recipe;
use semel::saga::sql::{SqlJournal, schema};
use semel::saga::{
    EntryKind, Journal, NewEntry, NewSaga, Op, RowAnswer, RowEvent, Safe, SagaChange, SagaNumber,
    SagaStarted, StepId,
};
use semel::store::ErrorKind;
use semel::tx::driver::Dialect;
use semel::{Intent, Key, Operation, Scope};
use sqlx::Executor;
use testkit::services::Service;
use tokio::task::JoinSet;

use crate::outbox::world::{Mysql, Postgres};

/// Nothing here takes this long on a machine that works.
const PATIENCE: Duration = Duration::from_secs(60);

async fn started(journal: &dyn Journal) -> SagaNumber {
    let worker = Some(journal.join(3_600_000).await.unwrap());
    let (scope, operation) = (Scope::tenant("acme").unwrap(), Operation::new("order").unwrap());
    let fingerprint = Recipe::default().value(&7).unwrap();
    let (name, input) = ("order".to_owned(), Bytes::from_static(b"7"));
    let intent = Intent::new(scope, operation, Key::random());
    let new = NewSaga { intent, fingerprint, name, version: 1, input, deadline_ms: None, worker };
    match journal.start(new).await.unwrap() {
        SagaStarted::New { number, .. } => number,
        SagaStarted::Existing(_) => panic!("a saga of a new intent was there"),
    }
}

/// Until the journal has an answer: MySQL waits for a lock for a second, and says that it is busy.
async fn append(journal: &dyn Journal, number: SagaNumber) -> RowAnswer {
    let step = StepId { name: "hold".to_owned(), nth: 0 };
    let (kind, op, safe) = (EntryKind::Begin, Op::Forward, Safe::Always);
    let entry =
        NewEntry { kind, step, op, attempt: 1, safe, input: Some(Bytes::from_static(b"7")), body: None };
    loop {
        let change = SagaChange::new(
            RowEvent::Append { epoch: 1, undoing: false, heeds_cancel: false },
            0,
            vec![entry.clone()],
        );
        match journal.change(number, change).await {
            Ok(changed) => return changed.answer,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
        }
    }
}

/// Law 7: an open atomic step, or a person's transaction, has a row locked for as long as it likes.
async fn a_locked_row_holds_up_no_other<'h, H, F>(url: &str, hold: impl FnOnce(SagaNumber) -> F)
where
    F: Future<Output = H>,
    H: AsyncFnOnce() + 'h,
{
    let journal: Arc<dyn Journal> = Arc::new(SqlJournal::open(url).await.unwrap());
    let held = started(&*journal).await;
    let release = hold(held).await;
    let mut others = JoinSet::new();
    for _ in 0..50 {
        let number = started(&*journal).await;
        let journal = Arc::clone(&journal);
        others.spawn(async move { append(&*journal, number).await });
    }
    let of_held = tokio::spawn({
        let journal = Arc::clone(&journal);
        async move { append(&*journal, held).await }
    });
    let answers =
        tokio::time::timeout(PATIENCE, others.join_all()).await.expect("they wait for the locked row");
    assert!(answers.iter().all(|answer| *answer == RowAnswer::Done));
    assert!(!of_held.is_finished(), "a locked row was written");
    release().await;
    assert_eq!(of_held.await.unwrap(), RowAnswer::Done);
    assert_eq!(journal.load(held).await.unwrap().unwrap().entries.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_a_locked_row_holds_up_no_other() {
    let Some(world) = Postgres::with(schema(Dialect::Postgres)).await else { return };
    let pool = world.pool(1).await;
    let hold = async |number: SagaNumber| {
        let mut tx = pool.begin().await.unwrap();
        let number = i64::try_from(number.0).unwrap();
        sqlx::query("SELECT n FROM semel_saga WHERE n = $1 FOR UPDATE")
            .bind(number)
            .execute(&mut *tx)
            .await
            .unwrap();
        async move || tx.rollback().await.unwrap()
    };
    a_locked_row_holds_up_no_other(&world.url(), hold).await;
    pool.close().await;
    world.end().await;
}

async fn on(server: Service) {
    let Some(world) = Mysql::with(server, schema(Dialect::Mysql)).await else { return };
    let hold = async |number: SagaNumber| {
        let mut tx = world.pool.begin().await.unwrap();
        tx.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
        let number = i64::try_from(number.0).unwrap();
        sqlx::query("SELECT n FROM semel_saga WHERE n = ? FOR UPDATE")
            .bind(number)
            .execute(&mut *tx)
            .await
            .unwrap();
        async move || tx.rollback().await.unwrap()
    };
    a_locked_row_holds_up_no_other(&world.url(), hold).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_a_locked_row_holds_up_no_other() {
    on(Service::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_a_locked_row_holds_up_no_other() {
    on(Service::Mysql).await;
}
