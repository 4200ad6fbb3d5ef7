//! Atomic steps: rows, journal and events of one SQLite file, each step one commit.

use std::path::PathBuf;

use semel::outbox::{self, Event};
use semel::saga::sql::{self, SqlJournal};
use semel::saga::{
    At, AtomicStep, Definition, DefinitionError, HasUndo, Refused, Registered, Saga, SagaEnd, SagaFilter,
    SagaResult, Sagas, SagasBuilder, StepError, StepResult, StepSpec, StepTx, StepType,
};
use semel::{Key, Scope};

/// What a step does beside its rows.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Writes,
    /// The first attempt writes and fails.
    FailsOnce,
    Refuses,
    Commits,
    Waits,
    Panics,
    /// It breaks a constraint that is checked at the commit.
    BreaksTheCommit,
}

#[derive(Clone)]
struct App(Does);

/// Creates an order, and cancels it.
struct Create;

impl StepType for Create {
    type Input = String;
    type Output = i64;
    type Undo = HasUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::atomic("create").attempts_max(2)
    }
}

impl AtomicStep<App> for Create {
    async fn run(&self, tx: &mut StepTx<'_>, at: At<'_, App>, sku: &String) -> StepResult<i64> {
        let id = {
            let db = tx.sqlite().ok_or_else(|| StepError::refused("no SQLite"))?;
            db.execute("INSERT INTO orders (sku) VALUES (?1)", [sku])?;
            if at.app.0 == Does::BreaksTheCommit && sku == "bad" {
                db.execute("INSERT INTO items (of_order) VALUES (999)", [])?;
            }
            if at.app.0 == Does::Commits {
                db.execute_batch("COMMIT")?;
            }
            db.last_insert_rowid()
        };
        match at.app.0 {
            Does::FailsOnce if at.attempt == 1 => Err(StepError::unknown("the statement failed")),
            Does::Refuses => Err(StepError::refused("sold out")),
            Does::Waits => {
                tokio::task::yield_now().await;
                Ok(id)
            }
            Does::Panics => panic!("a step panics"),
            _ => Ok(id),
        }
    }

    async fn undo(&self, tx: &mut StepTx<'_>, _: At<'_, App>, _: &String, id: i64) -> StepResult<()> {
        let db = tx.sqlite().ok_or_else(|| StepError::refused("no SQLite"))?;
        db.execute("UPDATE orders SET sku = sku || ' cancelled' WHERE id = ?1", [id])?;
        Ok(())
    }
}

async fn order(saga: Saga<App>, sku: String) -> SagaResult<i64> {
    let id = saga.run(Create, sku.clone()).await?;
    saga.publish(Event::new("orders", "order.created", sku.clone()).expect("a valid event"));
    if sku == "nothing" {
        return Err(Refused::new("no such thing"));
    }
    Ok(id)
}

struct Place {
    _directory: tempfile::TempDir,
    path: PathBuf,
    sagas: Sagas<App>,
    order: Registered<String, i64>,
}

impl Place {
    async fn new(does: Does) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        let url = format!("sqlite:{}", path.display());
        sql::migrate(&url).await.unwrap();
        outbox::migrate(&url).await.unwrap();
        let db = rusqlite::Connection::open(&path).unwrap();
        db.execute_batch(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT NOT NULL);
             CREATE TABLE items (of_order INTEGER REFERENCES orders DEFERRABLE INITIALLY DEFERRED)",
        )
        .unwrap();
        let mut sagas = SagasBuilder::new(SqlJournal::open(&url).await.unwrap(), App(does));
        let order = sagas.register(Definition::new("order", 1, order).atomic(Create)).unwrap();
        Self { _directory: directory, path, sagas: sagas.start(), order }
    }

    async fn once(&self, sku: &str) -> SagaEnd<i64> {
        let (acme, key) = (Scope::tenant("acme").unwrap(), Key::new(sku).unwrap());
        self.sagas.once(&self.order, &acme, &key, &sku.to_owned()).await.unwrap()
    }

    fn column(&self, sql: &str) -> Vec<String> {
        let db = rusqlite::Connection::open(&self.path).unwrap();
        let mut rows = db.prepare(sql).unwrap();
        rows.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }

    fn orders(&self) -> Vec<String> {
        self.column("SELECT sku FROM orders ORDER BY id")
    }

    fn events(&self) -> Vec<String> {
        self.column("SELECT CAST(payload AS TEXT) FROM semel_outbox ORDER BY 1")
    }
}

#[tokio::test]
async fn rows_journal_and_events_are_there_once() {
    let place = Place::new(Does::Writes).await;
    for _ in 0..2 {
        assert_eq!(place.once("book").await, SagaEnd::Completed(1));
    }
    assert_eq!((place.orders(), place.events()), (vec!["book".to_owned()], vec!["book".to_owned()]));
    let shown = place.column("SELECT status || ' ' || current_step || ' ' || steps FROM saga_executions");
    assert!(shown[0].starts_with("completed create#0 [{\"seq\":0,\"step\":\"create#0\""), "{shown:?}");
}

#[tokio::test]
async fn an_undone_saga_publishes_nothing() {
    let place = Place::new(Does::Writes).await;
    assert!(matches!(place.once("nothing").await, SagaEnd::Undone { why, .. } if why == "no such thing"));
    assert_eq!((place.orders(), place.events()), (vec!["nothing cancelled".to_owned()], vec![]));
}

#[tokio::test]
async fn a_step_that_fails_leaves_no_row_and_is_tried_again() {
    let place = Place::new(Does::FailsOnce).await;
    assert_eq!(place.once("book").await, SagaEnd::Completed(1));
    assert_eq!(place.orders(), ["book"]);
}

#[tokio::test]
async fn a_step_that_refuses_leaves_no_row() {
    let place = Place::new(Does::Refuses).await;
    assert!(matches!(place.once("book").await, SagaEnd::Undone { why, .. } if why == "sold out"));
    assert!(place.orders().is_empty());
}

/// Each would take the transaction from others that share it, or the thread.
#[tokio::test]
async fn a_step_that_commits_waits_or_panics_is_stopped_and_leaves_no_row() {
    for (does, why) in [
        (Does::Commits, "not authorized"),
        (Does::Waits, "waited for something other than the database"),
        (Does::Panics, "panicked"),
    ] {
        let place = Place::new(does).await;
        match place.once("book").await {
            SagaEnd::Undone { why: said, .. } => assert!(said.contains(why), "{said}"),
            other => panic!("{other:?}"),
        }
        assert!(place.orders().is_empty(), "{why}");
        // The thread that they share goes on.
        assert_eq!(place.sagas.list(SagaFilter::default()).await.unwrap().len(), 1);
    }
}

#[test]
fn a_step_is_declared_as_what_it_is() {
    struct Wrong;
    impl StepType for Wrong {
        type Input = String;
        type Output = i64;
        type Undo = HasUndo;

        fn spec(&self) -> StepSpec {
            StepSpec::keyed("wrong")
        }
    }
    impl AtomicStep<App> for Wrong {
        async fn run(&self, _: &mut StepTx<'_>, _: At<'_, App>, _: &String) -> StepResult<i64> {
            Ok(1)
        }
    }
    let mut sagas = SagasBuilder::new(semel::saga::memory::MemoryJournal::new(), App(Does::Writes));
    let refused = sagas.register(Definition::new("order", 1, order).atomic(Wrong)).unwrap_err();
    assert_eq!(refused, DefinitionError::Atomic { step: "wrong" });
}

/// One of many that share commits breaks one: it fails, and the others complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_one_breaks_is_no_failure_of_the_others() {
    let place = std::sync::Arc::new(Place::new(Does::BreaksTheCommit).await);
    let once = |name: String| {
        let place = std::sync::Arc::clone(&place);
        tokio::spawn(async move { place.once(&name).await })
    };
    let good: Vec<_> = (0..20).map(|n| once(format!("book {n}"))).collect();
    let bad = once("bad".to_owned());
    for one in good {
        assert!(matches!(one.await.unwrap(), SagaEnd::Completed(_)));
    }
    assert!(matches!(bad.await.unwrap(), SagaEnd::Undone { why, .. } if why.contains("constraint")));
    assert_eq!(place.orders().len(), 20);
}

/// Many sagas share commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sagas_at_once_each_once() {
    let place = Place::new(Does::Writes).await;
    let place = std::sync::Arc::new(place);
    let callers: Vec<_> = (0..64)
        .map(|n| {
            let place = std::sync::Arc::clone(&place);
            tokio::spawn(async move { place.once(&format!("book {}", n % 32)).await })
        })
        .collect();
    for caller in callers {
        assert!(matches!(caller.await.unwrap(), SagaEnd::Completed(_)));
    }
    let mut orders = place.orders();
    orders.sort();
    orders.dedup();
    assert_eq!((orders.len(), place.orders().len(), place.events().len()), (32, 32, 32));
}
