//! Sagas that share a transaction: a row that somebody else has locked holds up no other, be it a saga's, a worker's, or
//! one that is being inserted. And what is too large for one packet.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use semel::intent::fingerprint::Recipe;
use semel::saga::sql::{SqlJournal, schema};
use semel::saga::{
    AtomicEnd, AtomicWork, DefinitionId, EntryKind, Journal, NewEntry, NewSaga, Op, RowAnswer, RowEvent,
    Safe, SagaChange, SagaNumber, SagaStarted, StepId, StepResult, StepTx, WorkerId,
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
    match journal.start(new(Key::random(), worker)).await.unwrap() {
        SagaStarted::New { number, .. } => number,
        SagaStarted::Existing(_) => panic!("a saga of a new intent was there"),
    }
}

fn new(key: Key, worker: Option<WorkerId>) -> NewSaga {
    let (scope, operation) = (Scope::tenant("acme").unwrap(), Operation::new("order").unwrap());
    let fingerprint = Recipe::default().value(&7).unwrap();
    let (name, input) = ("order".to_owned(), Bytes::from_static(b"7"));
    let intent = Intent::new(scope, operation, key);
    NewSaga { intent, fingerprint, name, version: 1, input, deadline_ms: None, worker }
}

fn entry(nth: u32, input: Bytes) -> NewEntry {
    let step = StepId { name: "hold".to_owned(), nth };
    let (kind, op, safe) = (EntryKind::Begin, Op::Forward, Safe::Always);
    NewEntry { kind, step, op, attempt: 1, safe, input: Some(input), body: None }
}

/// Until the journal has an answer: MySQL waits for a lock for a second, and says that it is busy.
async fn append(journal: &dyn Journal, number: SagaNumber) -> RowAnswer {
    let entry = entry(0, Bytes::from_static(b"7"));
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

/// A process is frozen while it renews its lease, with its row locked: the others take what is due.
async fn a_frozen_worker_is_passed_over<H>(url: &str, freeze: impl AsyncFnOnce(WorkerId) -> H)
where
    H: AsyncFnOnce(),
{
    let journal = SqlJournal::open(url).await.unwrap();
    let frozen = journal.join(3_600_000).await.unwrap();
    let SagaStarted::New { number: of_frozen, .. } =
        journal.start(new(Key::random(), Some(frozen))).await.unwrap()
    else {
        panic!("a saga of a new intent was there")
    };
    let SagaStarted::New { number: due, .. } = journal.start(new(Key::random(), None)).await.unwrap() else {
        panic!("a saga of a new intent was there")
    };
    let other = journal.join(3_600_000).await.unwrap();
    let thaw = freeze(frozen).await;
    let definitions = [DefinitionId { name: "order".to_owned(), version: 1 }];
    let taken = tokio::time::timeout(PATIENCE, journal.take(other, &definitions, 10)).await;
    let taken: Vec<_> =
        taken.expect("it waits for the worker").unwrap().into_iter().map(|(n, _)| n).collect();
    assert_eq!(taken, [due]);
    // Its lease was over all the time.
    thaw().await;
    let taken = journal.take(other, &definitions, 10).await.unwrap();
    assert_eq!(taken.into_iter().map(|(n, _)| n).collect::<Vec<_>>(), [of_frozen]);
    assert!(!journal.renew(frozen, 3_600_000).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_a_frozen_worker_is_passed_over() {
    let Some(world) = Postgres::with(schema(Dialect::Postgres)).await else { return };
    let pool = world.pool(1).await;
    let freeze = async |worker: WorkerId| {
        let worker = i64::try_from(worker.0).unwrap();
        sqlx::query("UPDATE semel_saga_worker SET lease_until = 1 WHERE id = $1")
            .bind(worker)
            .execute(&pool)
            .await
            .unwrap();
        let mut tx = pool.begin().await.unwrap();
        let lock = sqlx::query("SELECT id FROM semel_saga_worker WHERE id = $1 FOR UPDATE");
        lock.bind(worker).execute(&mut *tx).await.unwrap();
        async move || tx.rollback().await.unwrap()
    };
    a_frozen_worker_is_passed_over(&world.url(), freeze).await;
    pool.close().await;
    world.end().await;
}

async fn a_frozen_worker_on(server: Service) {
    let Some(world) = Mysql::with(server, schema(Dialect::Mysql)).await else { return };
    let freeze = async |worker: WorkerId| {
        let worker = i64::try_from(worker.0).unwrap();
        sqlx::query("UPDATE semel_saga_worker SET lease_until = 1 WHERE id = ?")
            .bind(worker)
            .execute(&world.pool)
            .await
            .unwrap();
        let mut tx = world.pool.begin().await.unwrap();
        let lock = sqlx::query("SELECT id FROM semel_saga_worker WHERE id = ? FOR UPDATE");
        lock.bind(worker).execute(&mut *tx).await.unwrap();
        async move || tx.rollback().await.unwrap()
    };
    a_frozen_worker_is_passed_over(&world.url(), freeze).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_a_frozen_worker_is_passed_over() {
    a_frozen_worker_on(Service::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_a_frozen_worker_is_passed_over() {
    a_frozen_worker_on(Service::Mysql).await;
}

/// Another transaction has inserted some intents and stays open: only their starts wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_an_intent_that_is_being_inserted_holds_up_no_other_saga() {
    let Some(world) = Postgres::with(schema(Dialect::Postgres)).await else { return };
    let pool = world.pool(2).await;
    let journal: Arc<dyn Journal> = Arc::new(SqlJournal::open(&world.url()).await.unwrap());
    let model = started(&*journal).await;
    let mut numbers = Vec::new();
    for _ in 0..20 {
        numbers.push(started(&*journal).await);
    }
    let mut tx = pool.begin().await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await.unwrap();
    // As many as there are batches at the same time, and more.
    let sagas: Vec<_> = (0..4).map(|_| new(Key::random(), None)).collect();
    for saga in &sagas {
        sqlx::query(
            "INSERT INTO semel_saga (id, status, epoch, due_at, signals, cancelled, name, version, scope, operation, \
             key, recipe, digest, input, created_at) SELECT $1, status, epoch, due_at, signals, cancelled, name, \
             version, scope, operation, $2, recipe, digest, input, created_at FROM semel_saga WHERE n = $3",
        )
        .bind(&saga.intent.id().as_bytes()[..])
        .bind(saga.intent.key().as_str())
        .bind(i64::try_from(model.0).unwrap())
        .execute(&mut *tx)
        .await
        .unwrap();
    }
    let mut starts = JoinSet::new();
    let mut others = JoinSet::new();
    for saga in sagas {
        let journal = Arc::clone(&journal);
        starts.spawn(async move { journal.start(saga).await });
    }
    for number in numbers {
        let journal = Arc::clone(&journal);
        others.spawn(async move { append(&*journal, number).await });
    }
    let answers = tokio::time::timeout(PATIENCE, others.join_all()).await.expect("they wait for the insert");
    assert!(answers.iter().all(|answer| *answer == RowAnswer::Done));
    // By itself each start waits as long as any statement.
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid)) \
                   AND clock_timestamp() - query_start > interval '200 ms'";
    let all_wait = async {
        while sqlx::query_scalar::<_, i64>(waiting).bind(pid).fetch_one(&pool).await.unwrap() < 4 {}
    };
    tokio::time::timeout(PATIENCE, all_wait).await.expect("some do not wait");
    assert!(starts.try_join_next().is_none(), "a start was answered before its answer was known");
    tx.commit().await.unwrap();
    for started in starts.join_all().await {
        assert!(matches!(started, Ok(SagaStarted::Existing(_))), "{started:?}");
    }
    pool.close().await;
    world.end().await;
}

/// More than the server reads in one packet (16 MiB on MariaDB), together with small ones.
async fn what_is_too_large_for_one_packet_on(server: Service) {
    let Some(world) = Mysql::with(server, schema(Dialect::Mysql)).await else { return };
    let journal: Arc<dyn Journal> = Arc::new(SqlJournal::open(&world.url()).await.unwrap());
    let large = started(&*journal).await;
    let mut others = JoinSet::new();
    for _ in 0..5 {
        let number = started(&*journal).await;
        let journal = Arc::clone(&journal);
        others.spawn(async move { append(&*journal, number).await });
    }
    let body = Bytes::from(vec![b'7'; 1 << 20]);
    let entries: Vec<_> = (0..10).map(|nth| entry(nth, body.clone())).collect();
    let change =
        SagaChange::new(RowEvent::Append { epoch: 1, undoing: false, heeds_cancel: false }, 0, entries);
    assert_eq!(journal.change(large, change).await.unwrap().answer, RowAnswer::Done);
    assert!(others.join_all().await.iter().all(|answer| *answer == RowAnswer::Done));
    let entries = journal.load(large).await.unwrap().unwrap().entries;
    assert!(entries.len() == 10 && entries.iter().all(|entry| entry.input.as_ref() == Some(&body)));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_what_is_too_large_for_one_packet_is_sent_in_several() {
    what_is_too_large_for_one_packet_on(Service::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_what_is_too_large_for_one_packet_is_sent_in_several() {
    what_is_too_large_for_one_packet_on(Service::Mysql).await;
}

/// Ends with how long its session may be idle, and the session's number; then it may be idle for a second only.
struct ShowsSession;

impl AtomicWork for ShowsSession {
    fn run<'t>(&'t self, tx: &'t mut StepTx<'_>) -> BoxFuture<'t, StepResult<Bytes>> {
        Box::pin(async move {
            let connection = tx.mysql().unwrap();
            let show = "SELECT CONCAT(@@SESSION.wait_timeout, ' ', CONNECTION_ID())";
            let shown: String = sqlx::query_scalar(show).fetch_one(&mut *connection).await.unwrap();
            connection.execute("SET SESSION wait_timeout = 1").await.unwrap();
            Ok(shown.into())
        })
    }
}

/// A frozen process keeps its locks until the server closes its sessions. Who was only idle opens a new one.
async fn idle_sessions_are_closed_and_opened_again_on(server: Service) {
    let Some(world) = Mysql::with(server, schema(Dialect::Mysql)).await else { return };
    let journal = SqlJournal::open(&world.url()).await.unwrap();
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let number = started(&journal).await;
        let change = SagaChange::new(
            RowEvent::Append { epoch: 1, undoing: false, heeds_cancel: false },
            0,
            Vec::new(),
        );
        let done = NewEntry { kind: EntryKind::Done, input: None, ..entry(0, Bytes::new()) };
        let ended = journal.atomic(number, change, done, Arc::new(ShowsSession)).await.unwrap();
        let AtomicEnd::Done { result, .. } = ended else { panic!("{ended:?}") };
        let shown = String::from_utf8(result.to_vec()).unwrap();
        let (idle, session) = shown.split_once(' ').unwrap();
        assert_eq!(idle, "60");
        let there = "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ?";
        let id: i64 = session.parse().unwrap();
        let closed = async {
            while sqlx::query_scalar::<_, i64>(there).bind(id).fetch_one(&world.pool).await.unwrap() > 0 {}
        };
        tokio::time::timeout(PATIENCE, closed).await.expect("the session is not closed");
        sessions.push(id);
    }
    assert_ne!(sessions[0], sessions[1]);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_idle_sessions_are_closed_and_opened_again() {
    idle_sessions_are_closed_and_opened_again_on(Service::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_idle_sessions_are_closed_and_opened_again() {
    idle_sessions_are_closed_and_opened_again_on(Service::Mysql).await;
}
