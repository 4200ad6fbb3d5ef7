//! `once` in a transaction of rusqlite, on a file of the application's own.

use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use semel::intent::fingerprint::{Fingerprint, Recipe};
use semel::store::Store;
use semel::tx::driver::DriverErrorKind;
use semel::tx::sqlite::{SqliteReader, migrate, once_tx};
use semel::tx::{Once, TxError, TxReply};
use semel::{Effect, Intent, Key, Operation, Scope, State};

fn intent(key: &str) -> Intent {
    let (scope, operation) = (Scope::tenant("acme").unwrap(), Operation::new("payment.create").unwrap());
    Intent::new(scope, operation, Key::new(key).unwrap())
}

fn asked(cents: i64) -> Fingerprint {
    Recipe::default().value(&cents).unwrap()
}

fn open(path: &Path) -> Connection {
    let db = Connection::open(path).unwrap();
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    db.busy_timeout(Duration::ZERO).unwrap();
    db
}

fn file() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let db = open(&path);
    db.execute_batch("CREATE TABLE payment (id INTEGER PRIMARY KEY, name TEXT NOT NULL)").unwrap();
    assert_eq!(migrate(&db).unwrap(), 0);
    assert_eq!(migrate(&db).unwrap(), 1);
    (directory, path)
}

fn book(tx: &Connection, key: &str) -> rusqlite::Result<i64> {
    tx.execute("INSERT INTO payment (name) VALUES (?1)", [key])?;
    Ok(tx.last_insert_rowid())
}

fn pay(db: &mut Connection, key: &str, cents: i64) -> Result<TxReply<i64>, TxError<rusqlite::Error>> {
    let tx = begin(db, TransactionBehavior::Deferred);
    let paid = once_tx(&tx, &intent(key), asked(cents), |tx| book(tx, key))?;
    tx.commit().map_err(TxError::Work)?;
    Ok(paid)
}

fn begin(db: &mut Connection, behavior: TransactionBehavior) -> Transaction<'_> {
    db.transaction_with_behavior(behavior).unwrap()
}

fn payments(path: &Path) -> i64 {
    open(path).query_row("SELECT count(*) FROM payment", [], |row| row.get(0)).unwrap()
}

#[test]
fn the_first_runs_and_every_retry_gets_its_value() {
    let (_directory, path) = file();
    let mut db = open(&path);
    let first = pay(&mut db, "a", 1).unwrap();
    let again = pay(&mut db, "a", 1).unwrap();
    assert_eq!((first.value, first.replayed, again.value, again.replayed), (1, false, 1, true));
    assert!(matches!(pay(&mut db, "a", 2), Err(TxError::Mismatch)));
    let failed = {
        let tx = begin(&mut db, TransactionBehavior::Immediate);
        once_tx(&tx, &intent("b"), asked(1), |tx| {
            book(tx, "b").unwrap();
            Err::<i64, _>("no")
        })
    };
    assert!(matches!(failed, Err(TxError::Work("no"))));
    assert!(!pay(&mut db, "b", 2).unwrap().replayed);
    assert_eq!(payments(&path), 2);
}

#[test]
fn duplicates_from_many_threads_make_one_row_each() {
    let (_directory, path) = file();
    let (threads, rounds) = (16, 15);
    let together = Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (path, together) = (&path, &together);
            scope.spawn(move || {
                let mut db = open(path);
                together.wait();
                for round in 0..rounds {
                    let key = format!("k{}-{round}", thread / 4);
                    let tx = begin(&mut db, TransactionBehavior::Deferred);
                    let once = Once::new(&intent(&key), asked(1)).wait(Duration::from_secs(60));
                    once.run_now(&tx, |tx| book(tx, &key)).unwrap();
                    tx.commit().unwrap();
                }
            });
        }
    });
    assert_eq!(payments(&path), 60);
    let different = open(&path).query_row("SELECT count(DISTINCT name) FROM payment", [], |row| row.get(0));
    assert_eq!(different, Ok(60i64));
}

#[test]
fn savepoints_leave_nothing_when_rolled_back() {
    let (_directory, path) = file();
    let mut db = open(&path);
    let mut tx = begin(&mut db, TransactionBehavior::Immediate);
    let mut inner = tx.savepoint().unwrap();
    once_tx(&inner, &intent("a"), asked(1), |tx| book(tx, "a")).unwrap();
    inner.rollback().unwrap();
    drop(inner);
    assert!(!once_tx(&tx, &intent("a"), asked(2), |tx| book(tx, "a")).unwrap().replayed);
    assert!(once_tx(&tx, &intent("a"), asked(2), |tx| book(tx, "a")).unwrap().replayed);
    tx.commit().unwrap();
    assert_eq!(payments(&path), 1);
}

#[test]
fn the_one_writer_is_waited_for_within_the_bound() {
    let (_directory, path) = file();
    let (mut holder, mut db) = (open(&path), open(&path));
    let held = begin(&mut holder, TransactionBehavior::Immediate);
    let tx = begin(&mut db, TransactionBehavior::Deferred);
    let begun = Instant::now();
    let once = || Once::new(&intent("a"), asked(1)).wait(Duration::from_millis(50));
    let busy = once().run_now(&tx, |tx| book(tx, "a"));
    assert!(matches!(busy, Err(TxError::Busy { .. })), "{busy:?}");
    assert!(begun.elapsed() >= Duration::from_millis(50));
    drop(held);
    // The transaction is as good as before.
    assert!(!once().run_now(&tx, |tx| book(tx, "a")).unwrap().replayed);
    tx.commit().unwrap();
    assert_eq!(payments(&path), 1);
}

#[test]
fn a_deferred_transaction_that_was_overtaken_is_told_to_retry() {
    let (_directory, path) = file();
    let (mut first, mut db) = (open(&path), open(&path));
    let tx = begin(&mut db, TransactionBehavior::Deferred);
    // It has read, and somebody has written since.
    tx.query_row("SELECT count(*) FROM payment", [], |_| Ok(())).unwrap();
    pay(&mut first, "a", 1).unwrap();
    let late = once_tx(&tx, &intent("a"), asked(1), |tx| book(tx, "a"));
    assert!(matches!(late, Err(TxError::Retry(_))), "{late:?}");
    drop(tx);
    assert!(pay(&mut db, "a", 1).unwrap().replayed);
    // An immediate one cannot be overtaken.
    let tx = begin(&mut db, TransactionBehavior::Immediate);
    tx.query_row("SELECT count(*) FROM payment", [], |_| Ok(())).unwrap();
    assert!(once_tx(&tx, &intent("a"), asked(1), |tx| book(tx, "a")).unwrap().replayed);
    drop(tx);
    assert_eq!(payments(&path), 1);
}

#[test]
fn a_replay_writes_nothing() {
    let (_directory, path) = file();
    let mut db = open(&path);
    pay(&mut db, "a", 1).unwrap();
    db.pragma_update(None, "wal_checkpoint", "TRUNCATE").unwrap();
    let log = path.with_extension("db-wal");
    assert_eq!(std::fs::metadata(&log).unwrap().len(), 0);
    assert!(pay(&mut db, "a", 1).unwrap().replayed);
    assert_eq!(std::fs::metadata(&log).unwrap().len(), 0);
}

#[test]
fn where_nothing_can_be_remembered_nothing_runs() {
    let (_directory, path) = file();
    let db = open(&path);
    let kind = |answer: Result<TxReply<i64>, TxError<rusqlite::Error>>| match answer {
        Err(TxError::Database(error)) => error.kind(),
        other => panic!("{other:?}"),
    };
    let work = |tx: &Connection| book(tx, "a");
    assert_eq!(kind(once_tx(&db, &intent("a"), asked(1), work)), DriverErrorKind::NoTransaction);
    db.pragma_update(None, "query_only", true).unwrap();
    db.execute_batch("BEGIN").unwrap();
    assert_eq!(kind(once_tx(&db, &intent("a"), asked(1), work)), DriverErrorKind::ReadOnly);
    db.execute_batch("ROLLBACK").unwrap();
    let other = Connection::open_in_memory().unwrap();
    other.execute_batch("BEGIN").unwrap();
    assert_eq!(kind(once_tx(&other, &intent("a"), asked(1), work)), DriverErrorKind::NoTables);
    assert_eq!(payments(&path), 0);
}

#[tokio::test]
async fn the_reader_sees_what_was_committed_and_claims_nothing() {
    let (_directory, path) = file();
    let reader = SqliteReader::open(&path).await.unwrap();
    let id = intent("a").id();
    assert!(reader.get(id).await.unwrap().is_none());
    let mut db = open(&path);
    let tx = begin(&mut db, TransactionBehavior::Immediate);
    once_tx(&tx, &intent("a"), asked(1), |tx| book(tx, "a")).unwrap();
    assert!(reader.get(id).await.unwrap().is_none());
    tx.commit().unwrap();
    let record = reader.get(id).await.unwrap().unwrap();
    assert_eq!(
        (record.intent, record.head.state, record.head.effect),
        (intent("a"), State::Completed, Effect::Atomic)
    );
    assert_eq!(record.outcome.unwrap().body_bytes().unwrap().as_ref(), b"1");
    assert_eq!(record.head.fingerprint, asked(1));
    assert!(reader.now().await.unwrap() >= record.changed_at);
    assert!(reader.sweep(1).await.unwrap_err().to_string().contains("only reads"));
    let nowhere = SqliteReader::open(path.with_extension("none")).await.unwrap_err();
    assert!(nowhere.to_string().contains("cannot be read"), "{nowhere}");
}
