//! `undo_once_tx` on SQLite: the barrier of a participant, whatever order step and undo come in.

use std::sync::Barrier;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use semel::blocking::{once_tx, run_undo_tx, undo_once_tx};
use semel::intent::fingerprint::{Fingerprint, Recipe};
use semel::tx::sqlite::{SqliteReader, migrate};
use semel::tx::{Once, Phases, Started, TxError, TxReply, UndoOnce, UndoneAs};
use semel::{Intent, Key, Operation, Outcome, Retention, Scope};

fn intent(operation: &str, key: &str) -> Intent {
    let (scope, operation) = (Scope::tenant("acme").unwrap(), Operation::new(operation).unwrap());
    Intent::new(scope, operation, Key::new(key).unwrap())
}

fn step(key: &str) -> Intent {
    intent("stock.hold", key)
}

fn undo(key: &str) -> Intent {
    intent("stock.release", &format!("{key}-undo"))
}

fn asked() -> Fingerprint {
    Recipe::default().value(&"book").unwrap()
}

struct Depot {
    _directory: tempfile::TempDir,
    path: std::path::PathBuf,
}

impl Depot {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        let depot = Self { _directory: directory, path };
        let db = depot.open();
        db.execute_batch(
            "CREATE TABLE hold (id INTEGER PRIMARY KEY, key TEXT NOT NULL);
             CREATE TABLE released (hold INTEGER NOT NULL)",
        )
        .unwrap();
        migrate(&db).unwrap();
        depot
    }

    fn open(&self) -> Connection {
        let db = Connection::open(&self.path).unwrap();
        db.pragma_update(None, "journal_mode", "wal").unwrap();
        db.busy_timeout(Duration::from_secs(60)).unwrap();
        db
    }

    fn count(&self, query: &str) -> i64 {
        self.open().query_row(query, [], |row| row.get(0)).unwrap()
    }

    fn holds(&self) -> i64 {
        self.count("SELECT count(*) FROM hold")
    }

    fn releases(&self) -> i64 {
        self.count("SELECT count(*) FROM released")
    }

    fn hold(&self, key: &str) -> Result<TxReply<i64>, TxError<rusqlite::Error>> {
        let mut db = self.open();
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let held = once_tx(&tx, &step(key), asked(), |tx| insert(tx, key))?;
        tx.commit().map_err(TxError::Work)?;
        Ok(held)
    }

    fn release(&self, key: &str) -> Result<TxReply<UndoneAs>, TxError<rusqlite::Error>> {
        self.release_with(UndoOnce::new(&step(key), &undo(key)))
    }

    fn release_with(&self, undo: UndoOnce) -> Result<TxReply<UndoneAs>, TxError<rusqlite::Error>> {
        let mut db = self.open();
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let undone = run_undo_tx(undo, &tx, delete)?;
        tx.commit().map_err(TxError::Work)?;
        Ok(undone)
    }
}

fn insert(tx: &Connection, key: &str) -> rusqlite::Result<i64> {
    tx.execute("INSERT INTO hold (key) VALUES (?1)", [key])?;
    Ok(tx.last_insert_rowid())
}

fn delete(tx: &Connection, hold: i64) -> rusqlite::Result<()> {
    assert_eq!(tx.execute("DELETE FROM hold WHERE id = ?1", [hold])?, 1);
    tx.execute("INSERT INTO released (hold) VALUES (?1)", [hold]).map(drop)
}

const fn first(value: UndoneAs) -> TxReply<UndoneAs> {
    TxReply { value, replayed: false }
}

const fn again(value: UndoneAs) -> TxReply<UndoneAs> {
    TxReply { value, replayed: true }
}

#[test]
fn a_step_that_happened_is_undone_once_and_never_happens_again() {
    let depot = Depot::new();
    depot.hold("a").unwrap();
    assert_eq!(depot.release("a").unwrap(), first(UndoneAs::Undone));
    assert_eq!(depot.release("a").unwrap(), again(UndoneAs::Undone));
    assert!(matches!(depot.hold("a"), Err(TxError::Refused(_))), "a late copy of the step");
    assert_eq!((depot.holds(), depot.releases()), (0, 1));
}

#[test]
fn a_step_that_comes_after_its_undo_is_refused_for_ever() {
    let depot = Depot::new();
    assert_eq!(depot.release("a").unwrap(), first(UndoneAs::NeverHappened));
    for _ in 0..2 {
        let Err(TxError::Refused(failure)) = depot.hold("a") else {
            panic!("the step came late and happened")
        };
        assert_eq!(failure.code, 410);
    }
    assert_eq!(depot.release("a").unwrap(), again(UndoneAs::NeverHappened));
    assert_eq!((depot.holds(), depot.releases()), (0, 0));
    assert_eq!(depot.count("SELECT count(*) FROM semel_intent WHERE state = 3 AND expires_at IS NULL"), 1);
    // Whatever the step asks for: the undo does not know it.
    let other = Recipe::default().value(&"another").unwrap();
    let mut db = depot.open();
    let tx = db.transaction().unwrap();
    let late = once_tx(&tx, &step("a"), other, |tx| insert(tx, "a"));
    assert!(matches!(late, Err(TxError::Refused(_))));
    // An answer of its own kind gets the refusal as one.
    let mut tx = &*tx;
    let late = Once::new(&step("a"), asked()).wait(Duration::ZERO);
    let late = ready(late.run_tx(&mut tx, async |_| Ok::<_, ()>(Outcome::new(201, "held"))));
    assert_eq!(late.unwrap().value.code, 410);
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn an_undo_that_comes_again_after_its_own_retention_undoes_nothing_twice() {
    let depot = Depot::new();
    depot.hold("a").unwrap();
    let short = || UndoOnce::new(&step("a"), &undo("a")).retention(Retention::Ms(0));
    assert_eq!(depot.release_with(short()).unwrap(), first(UndoneAs::Undone));
    assert_eq!(depot.release_with(short()).unwrap(), first(UndoneAs::NeverHappened));
    assert_eq!((depot.holds(), depot.releases()), (0, 1));
}

#[test]
fn a_step_whose_retention_is_over_still_happened() {
    let depot = Depot::new();
    {
        let mut db = depot.open();
        let tx = db.transaction().unwrap();
        let once = Once::new(&step("a"), asked()).retention(Retention::Ms(0));
        semel::blocking::run_tx(once, &tx, |tx| insert(tx, "a")).unwrap();
        tx.commit().unwrap();
    }
    assert_eq!(depot.release("a").unwrap(), first(UndoneAs::Undone));
    assert_eq!((depot.holds(), depot.releases()), (0, 1));
    assert!(matches!(depot.hold("a"), Err(TxError::Refused(_))));
}

#[test]
fn an_undo_that_fails_or_is_rolled_back_leaves_everything_as_it_was() {
    let depot = Depot::new();
    depot.hold("a").unwrap();
    let mut db = depot.open();
    let tx = db.transaction().unwrap();
    let failed = undo_once_tx(&tx, &step("a"), &undo("a"), |_, _: i64| Err("the depot is closed"));
    assert!(matches!(failed, Err(TxError::Work("the depot is closed"))));
    // The caller takes the error for an answer, and commits.
    tx.commit().unwrap();
    assert!(depot.hold("a").unwrap().replayed);
    {
        let tx = db.transaction().unwrap();
        undo_once_tx(&tx, &step("a"), &undo("a"), delete).unwrap();
        tx.rollback().unwrap();
    }
    assert_eq!((depot.holds(), depot.releases()), (1, 0));
    assert_eq!(depot.release("a").unwrap(), first(UndoneAs::Undone));
    // A value of another type than the step's is a bug, and undoes nothing.
    depot.hold("b").unwrap();
    let tx = db.transaction().unwrap();
    let wrong = undo_once_tx(&tx, &step("b"), &undo("b"), |_, _: Vec<String>| Ok::<_, ()>(()));
    assert!(matches!(wrong, Err(TxError::Value { .. })));
    tx.commit().unwrap();
    assert!(depot.hold("b").unwrap().replayed);
}

#[test]
fn the_key_of_an_undo_belongs_to_one_step() {
    let depot = Depot::new();
    depot.hold("a").unwrap();
    depot.hold("b").unwrap();
    assert_eq!(depot.release("a").unwrap(), first(UndoneAs::Undone));
    let other = depot.release_with(UndoOnce::new(&step("b"), &undo("a")));
    assert!(matches!(other, Err(TxError::Mismatch)));
    assert_eq!(depot.holds(), 1);
}

#[test]
fn what_is_at_work_or_in_doubt_is_not_refused_over() {
    let depot = Depot::new();
    let mut db = depot.open();
    let phases =
        |lease: u64| Phases::new(&step("a"), asked(), &["one"]).unwrap().lease(Duration::from_millis(lease));
    for (lease, in_doubt) in [(60_000, false), (0, true)] {
        let tx = db.transaction().unwrap();
        if let Started::Replay(()) = semel::blocking::start_tx(&phases(lease), &tx).unwrap() {
            panic!("it has not ended")
        }
        tx.commit().unwrap();
        if in_doubt {
            db.execute("UPDATE semel_intent SET lease_until = 0", []).unwrap();
        }
        let undone = depot.release_with(UndoOnce::new(&step("a"), &undo("a")).wait(Duration::ZERO));
        match undone {
            Err(TxError::InFlight { .. }) if !in_doubt => {}
            Err(TxError::Uncertain { id }) if in_doubt => assert_eq!(id, step("a").id()),
            other => panic!("{other:?}"),
        }
        assert_eq!(depot.count("SELECT count(*) FROM semel_intent"), 1, "the undo left nothing");
        db.execute("DELETE FROM semel_intent", []).unwrap();
        db.execute("DELETE FROM semel_phase", []).unwrap();
    }
}

#[test]
fn racing_they_leave_nothing_in_either_order() {
    let depot = Depot::new();
    let rounds = 40;
    let together = Barrier::new(3);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..rounds {
                    together.wait();
                    depot.release(&format!("k{round}")).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for round in 0..rounds {
                together.wait();
                match depot.hold(&format!("k{round}")) {
                    Ok(_) | Err(TxError::Refused(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
    });
    assert_eq!(depot.holds(), 0);
    assert!(depot.releases() <= rounds);
    for round in 0..rounds {
        assert!(matches!(depot.hold(&format!("k{round}")), Err(TxError::Refused(_))));
    }
}

#[tokio::test]
async fn a_reader_shows_the_refusal() {
    use semel::store::Store;
    let depot = Depot::new();
    depot.release("a").unwrap();
    let record = SqliteReader::open(&depot.path).await.unwrap().get(step("a").id()).await.unwrap().unwrap();
    assert_eq!(record.head.state, semel::State::FailedFinal);
    assert_eq!(record.intent, step("a"));
}
