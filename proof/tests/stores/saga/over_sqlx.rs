//! Atomic steps over a pool of sqlx on PostgreSQL: rows, events and journal are one commit, and a connection goes back to
//! the pool only without a transaction.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use semel::intent::fingerprint::Recipe;
use semel::outbox::{self, Event, append_tx};
use semel::saga::sql::{SqlJournal, schema};
use semel::saga::{
    AtomicEnd, AtomicWork, EntryKind, Journal, NewEntry, NewSaga, Op, RowEvent, Safe, SagaChange, SagaNumber,
    SagaStarted, StepError, StepId, StepResult, StepTx,
};
use semel::store::{ErrorKind, Fate};
use semel::tx::driver::Dialect;
use semel::{Intent, Key, Operation, Scope};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool, Row};
use tokio::sync::Notify;

use crate::outbox::world::Postgres;

/// What a step does after it has written its row and its event.
#[derive(Clone, Copy)]
enum Then {
    Ends,
    Refuses,
    Fails,
    Panics,
    /// It says so, and never ends.
    Hangs,
    /// It commits by itself.
    Commits,
    /// A savepoint of it is never ended.
    ForgetsASavepoint,
    /// The server ends the connection.
    LosesItsConnection,
    /// The server ends the connection while it commits.
    LosesItsConnectionLate,
    /// The server refuses the commit.
    IsRefusedLate,
    /// The settings under which it runs are its result.
    Shows,
}

struct Pay {
    then: Then,
    written: Notify,
}

const SETTINGS: &str = "SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings WHERE name IN \
                        ('transaction_isolation', 'transaction_read_only', 'synchronous_commit', 'statement_timeout', \
                        'lock_timeout', 'idle_in_transaction_session_timeout')";

impl AtomicWork for Pay {
    fn run<'t>(
        &'t self,
        tx: &'t mut StepTx<'_>,
    ) -> Pin<Box<dyn Future<Output = StepResult<Bytes>> + Send + 't>> {
        Box::pin(async move {
            assert!(tx.postgres().is_none(), "it is over sqlx");
            append_tx(tx, &Event::new("payments", "payment.completed", "1").unwrap()).await?;
            let tx = tx.sqlx_postgres().unwrap();
            tx.execute("INSERT INTO payment DEFAULT VALUES").await?;
            self.written.notify_one();
            match self.then {
                Then::Ends => {}
                Then::Refuses => return Err(StepError::refused("no money")),
                Then::Fails => {
                    tx.execute("SELECT 1 / 0").await?;
                }
                Then::Panics => panic!("a step"),
                Then::Hangs => std::future::pending().await,
                Then::Commits => {
                    tx.execute("COMMIT").await?;
                }
                Then::ForgetsASavepoint => {
                    std::mem::forget(tx.begin().await?);
                    return Err(StepError::refused("no money"));
                }
                Then::LosesItsConnection => {
                    tx.execute("SELECT pg_terminate_backend(pg_backend_pid())").await?;
                }
                Then::LosesItsConnectionLate => {
                    tx.execute("INSERT INTO late VALUES ('end')").await?;
                }
                Then::IsRefusedLate => {
                    tx.execute("INSERT INTO late VALUES ('refuse')").await?;
                }
                Then::Shows => {
                    let settings: String = sqlx::query_scalar(SETTINGS).fetch_one(tx).await?;
                    return Ok(settings.into());
                }
            }
            Ok(Bytes::from_static(b"7"))
        })
    }
}

/// The trigger acts when the transaction commits.
const TABLES: &str = "CREATE TABLE payment (n bigserial PRIMARY KEY);
    CREATE TABLE late (what text);
    CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.what = 'end' THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); END IF;
        RAISE EXCEPTION 'refused late' USING ERRCODE = 'integrity_constraint_violation';
    END $$;
    CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION late();";

fn tables() -> String {
    format!("{} {} {TABLES}", schema(Dialect::Postgres), outbox::schema(Dialect::Postgres))
}

struct Scene {
    world: Postgres,
    journal: SqlJournal,
    /// Of the steps: one connection, so that the next one shows what became of it.
    pool: PgPool,
    judge: PgPool,
}

impl Scene {
    async fn new() -> Option<Self> {
        let world = Postgres::with(&tables()).await?;
        let (pool, judge) = (world.pool(1).await, world.pool(1).await);
        // The worst settings that an application could have.
        pool.execute(
            "SET default_transaction_isolation = 'serializable'; SET default_transaction_read_only = on; \
             SET synchronous_commit = off",
        )
        .await
        .unwrap();
        let url = format!("{}&connect_timeout=2s&statement_timeout=8s", world.url());
        let journal = SqlJournal::open(&url).await.unwrap().steps_over(pool.clone()).await.unwrap();
        Some(Self { world, journal, pool, judge })
    }

    async fn saga(&self, key: &str) -> SagaNumber {
        let operation = Operation::new("order").unwrap();
        let new = NewSaga {
            intent: Intent::new(Scope::tenant("acme").unwrap(), operation, Key::new(key).unwrap()),
            fingerprint: Recipe::default().value(&1).unwrap(),
            name: "order".to_owned(),
            version: 1,
            input: "1".into(),
            deadline_ms: None,
            worker: Some(self.journal.join(600_000).await.unwrap()),
        };
        match self.journal.start(new).await.unwrap() {
            SagaStarted::New { number, .. } => number,
            SagaStarted::Existing(_) => panic!("it is new"),
        }
    }

    async fn pay(&self, number: SagaNumber, work: &Arc<Pay>) -> Result<AtomicEnd, semel::store::StoreError> {
        let entry = NewEntry {
            kind: EntryKind::Done,
            step: StepId { name: "pay".to_owned(), nth: 0 },
            op: Op::Forward,
            attempt: 1,
            safe: Safe::Always,
            input: None,
            body: None,
        };
        let change = SagaChange::new(
            RowEvent::Append { epoch: 1, undoing: false, heeds_cancel: false },
            0,
            Vec::new(),
        );
        self.journal.atomic(number, change, entry, work.clone()).await
    }

    /// Payments, events, and entries of the saga: what others see.
    async fn seen(&self, number: SagaNumber) -> (i64, i64, usize) {
        let count = "SELECT (SELECT count(*) FROM payment), (SELECT count(*) FROM semel_outbox)";
        let (payments, events) = sqlx::query_as(count).fetch_one(&self.judge).await.unwrap();
        (payments, events, self.journal.load(number).await.unwrap().unwrap().entries.len())
    }

    /// The backend of the pool's connection, which has no transaction.
    async fn backend(&self) -> i32 {
        let mut connection = self.pool.acquire().await.unwrap();
        assert!(!connection.is_in_transaction());
        // A text without values is one message, whose time is that of its transaction if it begins one.
        let asked = "SELECT pg_backend_pid(), now() = statement_timestamp()";
        let row = connection.fetch_one(asked).await.unwrap();
        assert!(row.get::<bool, _>(1), "its transaction was open before");
        row.get(0)
    }

    async fn end(self) {
        self.pool.close().await;
        self.judge.close().await;
        self.world.end().await;
    }
}

fn work(then: Then) -> Arc<Pay> {
    Arc::new(Pay { then, written: Notify::new() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_and_its_entry_are_one_commit() {
    let Some(scene) = Scene::new().await else { return };
    let number = scene.saga("one").await;
    let first = scene.backend().await;
    for then in [Then::Refuses, Then::Fails, Then::Commits] {
        // What a step commits by itself stays: its own fault, but it is not taken for done.
        let own_fault = i64::from(matches!(then, Then::Commits));
        assert!(matches!(scene.pay(number, &work(then)).await, Ok(AtomicEnd::Failed(_))));
        assert_eq!(scene.seen(number).await, (own_fault, own_fault, 0));
        assert_eq!(scene.backend().await, first, "rolled back, and used again");
    }
    scene.judge.execute("DELETE FROM payment; DELETE FROM semel_outbox").await.unwrap();
    for _ in 0..2 {
        let end = scene.pay(number, &work(Then::Ends)).await;
        assert!(matches!(end, Ok(AtomicEnd::Done { ref result, .. }) if &result[..] == b"7"), "{end:?}");
        assert_eq!(scene.seen(number).await, (1, 1, 1));
        assert_eq!(scene.backend().await, first);
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_transaction_may_be_open_is_closed() {
    let Some(scene) = Scene::new().await else { return };
    let number = scene.saga("closed").await;
    let mut before = scene.backend().await;
    for then in [Then::Hangs, Then::Panics, Then::ForgetsASavepoint, Then::LosesItsConnection] {
        let pay = work(then);
        match then {
            Then::Hangs => tokio::select! {
                _ = scene.pay(number, &pay) => panic!("it hangs"),
                () = pay.written.notified() => {}
            },
            Then::Panics => {
                let pays = std::panic::AssertUnwindSafe(scene.pay(number, &pay));
                assert!(futures_util::FutureExt::catch_unwind(pays).await.is_err());
            }
            _ => assert!(matches!(scene.pay(number, &pay).await, Ok(AtomicEnd::Failed(_)))),
        }
        let after = scene.backend().await;
        assert_ne!(after, before, "the connection was used again");
        assert_eq!(scene.seen(number).await, (0, 0, 0));
        before = after;
    }
    // The next try waits until the server has let go of the saga's row.
    assert!(matches!(scene.pay(number, &work(Then::Ends)).await, Ok(AtomicEnd::Done { .. })));
    assert_eq!(scene.seen(number).await, (1, 1, 1));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_without_an_answer_is_in_doubt() {
    let Some(scene) = Scene::new().await else { return };
    let number = scene.saga("doubt").await;
    let before = scene.backend().await;
    let error = scene.pay(number, &work(Then::LosesItsConnectionLate)).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::InDoubt), "{error}");
    let after = scene.backend().await;
    assert_ne!(after, before);
    // The server's own answer is not in doubt.
    let error = scene.pay(number, &work(Then::IsRefusedLate)).await.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Misconfigured, Fate::NotApplied), "{error}");
    assert_eq!(scene.seen(number).await, (0, 0, 0));
    scene.end().await;
}

/// Whatever the application's connections are set to; and what it has set is there again afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_has_the_limits_of_the_journal() {
    let Some(scene) = Scene::new().await else { return };
    let number = scene.saga("limits").await;
    let end = scene.pay(number, &work(Then::Shows)).await;
    let Ok(AtomicEnd::Done { result, .. }) = end else { panic!("{end:?}") };
    assert_eq!(
        std::str::from_utf8(&result).unwrap(),
        "idle_in_transaction_session_timeout=60000 lock_timeout=8000 statement_timeout=8000 synchronous_commit=on \
         transaction_isolation=read committed transaction_read_only=off"
    );
    let after: String = sqlx::query_scalar(SETTINGS).fetch_one(&scene.pool).await.unwrap();
    assert_eq!(
        after,
        "idle_in_transaction_session_timeout=0 lock_timeout=0 statement_timeout=0 synchronous_commit=off \
         transaction_isolation=serializable transaction_read_only=on"
    );
    // The wait for a connection is bounded.
    let held = scene.pool.acquire().await.unwrap();
    let error = scene.pay(number, &work(Then::Ends)).await.unwrap_err();
    assert!(error.fate() == Fate::NotApplied && error.to_string().contains("max_connections"), "{error}");
    drop(held);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_another_database_is_refused() {
    let Some(scene) = Scene::new().await else { return };
    let other = Postgres::with(&tables()).await.unwrap();
    let empty = Postgres::with("").await.unwrap();
    let journal = SqlJournal::open(&scene.world.url()).await.unwrap();
    let refused = async |journal: &SqlJournal, pool: PgPool| {
        let error = journal.clone().steps_over(pool).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        error.to_string()
    };
    let another = refused(&journal, other.pool(1).await).await;
    assert!(
        another.contains("another database, server or schema") && another.contains("search_path"),
        "{another}"
    );
    let none = refused(&journal, empty.pool(1).await).await;
    assert!(none.contains("does not find the table semel_saga"), "{none}");
    // The same name and the same path, in another database.
    let options = scene.pool.connect_options().as_ref().clone().database("template1");
    let elsewhere = refused(&journal, PgPool::connect_lazy_with(options)).await;
    assert!(elsewhere.contains("template1"), "{elsewhere}");
    let directory = testkit::scratch::directory();
    let url = format!("sqlite:{}", directory.path().join("app.db").display());
    semel::saga::sql::migrate(&url).await.unwrap();
    let sqlite = refused(&SqlJournal::open(&url).await.unwrap(), scene.pool.clone()).await;
    assert!(sqlite.contains("not on PostgreSQL"), "{sqlite}");

    // A connection that comes to see other tables later is refused, too: there is a saga of this number.
    let number = scene.saga("moved").await;
    let moved = async |connection: &mut PgConnection, url: &str| {
        let path = url.rsplit_once("?schema=").unwrap().1;
        connection.execute(AssertSqlSafe(format!("SET search_path = {path}"))).await.unwrap();
    };
    moved(&mut *scene.pool.acquire().await.unwrap(), &other.url()).await;
    let error = scene.pay(number, &work(Then::Ends)).await.unwrap_err();
    assert!(error.fate() == Fate::NotApplied && error.to_string().contains("another table"), "{error}");
    assert_eq!(scene.seen(number).await, (0, 0, 0));
    other.end().await;
    empty.end().await;
    scene.end().await;
}
