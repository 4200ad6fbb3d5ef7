//! `once` in a transaction of rusqlite, on a file of the application's own.

use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use semel::blocking::{self, once_tx};
use semel::intent::fingerprint::{Fingerprint, Recipe};
use semel::recover::{SweepLimits, Sweeper, Swept};
use semel::store::{Filter, Store};
use semel::tx::driver::DriverErrorKind;
use semel::tx::sqlite::{SqliteReader, migrate, sweep};
use semel::tx::{Once, Phases, Started, TxError, TxReply};
use semel::{Effect, Guard, Intent, Key, Operation, Retention, Scope, State};

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

/// The tables of 0.1.0, and of a next release, which adds a column to each.
#[test]
fn tables_of_the_release_before_and_after_are_used() {
    let directory = tempfile::tempdir().unwrap();
    let mut db = open(&directory.path().join("app.db"));
    db.execute_batch("CREATE TABLE payment (id INTEGER PRIMARY KEY, name TEXT NOT NULL)").unwrap();
    db.execute_batch(include_str!("../../../../proof/fixtures/v0.1.0/tx.sqlite.sql")).unwrap();
    migrate(&db).unwrap();
    assert!(!pay(&mut db, "before", 1).unwrap().replayed);
    db.execute_batch(
        "ALTER TABLE semel_tx ADD COLUMN added_later INTEGER;
         ALTER TABLE semel_intent ADD COLUMN added_later INTEGER;
         ALTER TABLE semel_phase ADD COLUMN added_later INTEGER;
         UPDATE semel_tx SET version = version + 1",
    )
    .unwrap();
    migrate(&db).unwrap();
    assert!(pay(&mut db, "before", 1).unwrap().replayed);
    assert!(!pay(&mut db, "after", 1).unwrap().replayed);
    db.execute_batch("UPDATE semel_tx SET version = version + 1").unwrap();
    assert!(migrate(&db).unwrap_err().to_string().contains("newer semel"));
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
                    blocking::run_tx(once, &tx, |tx| book(tx, &key)).unwrap();
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
    let busy = blocking::run_tx(once(), &tx, |tx| book(tx, "a"));
    assert!(matches!(busy, Err(TxError::Busy { .. })), "{busy:?}");
    assert!(begun.elapsed() >= Duration::from_millis(50));
    drop(held);
    // The transaction is as good as before.
    assert!(!blocking::run_tx(once(), &tx, |tx| book(tx, "a")).unwrap().replayed);
    tx.commit().unwrap();
    assert_eq!(payments(&path), 1);
}

#[test]
fn a_deferred_transaction_that_was_overtaken_gets_retry() {
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
    assert!(reader.list(Filter::default()).await.unwrap_err().to_string().contains("only reads"));
    let nowhere = SqliteReader::open(path.with_extension("none")).await.unwrap_err();
    assert!(nowhere.to_string().contains("cannot be read"), "{nowhere}");
}

fn remember(db: &mut Connection, key: &str, retention: Retention) {
    let tx = begin(db, TransactionBehavior::Immediate);
    let once = Once::new(&intent(key), asked(1)).retention(retention);
    blocking::run_tx(once, &tx, |tx| book(tx, key)).unwrap();
    tx.commit().unwrap();
}

fn count(db: &Connection, table: &str) -> i64 {
    db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

#[test]
fn a_sweep_forgets_what_has_expired_and_what_phases_left_of_it() {
    let (_directory, path) = file();
    let mut db = open(&path);
    for n in 0..7 {
        remember(&mut db, &format!("gone-{n}"), Retention::Ms(0));
    }
    remember(&mut db, "kept", Retention::DAY);
    remember(&mut db, "for ever", Retention::Forever);
    // Two operations half way through; one is ended from outside and has expired since.
    for key in ["ended", "under way"] {
        let tx = begin(&mut db, TransactionBehavior::Immediate);
        let phases = Phases::new(&intent(key), asked(1), &["reserve", "charge"]).unwrap();
        let Started::Run(mut run) = blocking::start_tx::<i64>(&phases, &tx).unwrap() else { panic!() };
        blocking::phase_tx(&mut run, &tx, "reserve", |tx| book(tx, key)).unwrap();
        tx.commit().unwrap();
    }
    let ended = "UPDATE semel_intent SET state = 2, expires_at = 1 WHERE key = 'ended'";
    assert_eq!(db.execute(ended, []).unwrap(), 1);
    assert_eq!((count(&db, "semel_intent"), count(&db, "semel_phase")), (11, 2));

    assert_eq!(sweep(&db, 0).unwrap(), 0);
    assert_eq!(sweep(&db, 3).unwrap(), 3);
    // The longest expired went first.
    assert_eq!((count(&db, "semel_intent"), count(&db, "semel_phase")), (8, 1));
    // Part of a transaction: rolled back with it.
    let tx = begin(&mut db, TransactionBehavior::Deferred);
    assert_eq!(sweep(&tx, 100).unwrap(), 5);
    tx.rollback().unwrap();
    assert_eq!(sweep(&db, 100).unwrap(), 5);
    assert_eq!(sweep(&db, 100).unwrap(), 0);
    assert_eq!((count(&db, "semel_intent"), count(&db, "semel_phase")), (3, 1));
    assert!(pay(&mut db, "kept", 1).unwrap().replayed);
    assert!(pay(&mut db, "for ever", 1).unwrap().replayed);
    assert!(!pay(&mut db, "gone-0", 1).unwrap().replayed, "forgotten");
    // Another writer: an error, and nothing is left open.
    let mut writer = open(&path);
    let busy = begin(&mut writer, TransactionBehavior::Immediate);
    assert_eq!(sweep(&db, 100).unwrap_err().kind(), DriverErrorKind::Busy);
    assert!(db.is_autocommit());
    drop(busy);
    let none = Connection::open_in_memory().unwrap();
    assert_eq!(sweep(&none, 1).unwrap_err().kind(), DriverErrorKind::NoTables);
    assert!(none.is_autocommit());
}

#[tokio::test]
async fn a_sweeper_works_on_the_applications_file() {
    let (_directory, path) = file();
    let mut db = open(&path);
    let tx = begin(&mut db, TransactionBehavior::Immediate);
    for n in 0..1_203 {
        let once = Once::new(&intent(&n.to_string()), asked(1)).retention(Retention::Ms(0));
        blocking::run_tx(once, &tx, |_| Ok::<i64, rusqlite::Error>(n)).unwrap();
    }
    tx.commit().unwrap();
    remember(&mut db, "kept", Retention::DAY);
    let guard = Guard::new(SqliteReader::open(&path).await.unwrap());
    let mut limits = SweepLimits::default();
    (limits.batch_records, limits.run_records_max) = (700, 1_000);
    let sweeper = Sweeper::new(&guard).limits(limits);
    assert_eq!(sweeper.run_once().await.unwrap(), Swept { records: 1_000, more: true });
    assert_eq!(sweeper.run_once().await.unwrap(), Swept { records: 203, more: false });
    assert_eq!(count(&db, "semel_intent"), 1);
}

/// The keys of remote calls are remembered for a while only: a start that might repeat one later is uncertain.
#[tokio::test]
async fn phases_do_not_go_on_once_a_remote_key_may_be_forgotten() {
    let (_directory, path) = file();
    let mut db = open(&path);
    let names = ["reserve", "charge"];
    let phases = Phases::new(&intent("k"), asked(1), &names).unwrap().safe_for(Duration::from_secs(3_600));
    let reader = SqliteReader::open(&path).await.unwrap();
    let mut first = None;
    for n in 0..3 {
        let tx = begin(&mut db, TransactionBehavior::Immediate);
        let Started::Run(mut run) = blocking::start_tx::<i64>(&phases, &tx).unwrap() else { panic!() };
        let reserved = blocking::phase_tx(&mut run, &tx, "reserve", |tx| book(tx, "k")).unwrap();
        tx.commit().unwrap();
        assert_eq!(reserved.replayed, n > 0);
        let head = reader.get(intent("k").id()).await.unwrap().unwrap().head;
        assert_eq!((head.state, head.effect, head.expires_at), (State::InProgress, Effect::Keyed, None));
        assert_eq!(head.safe_until, *first.get_or_insert(head.safe_until), "a takeover does not move it");
        assert!(head.safe_until.is_some());
        db.execute("UPDATE semel_intent SET lease_until = 1", []).unwrap();
    }
    db.execute("UPDATE semel_intent SET expires_at = 2", []).unwrap();
    let tx = begin(&mut db, TransactionBehavior::Immediate);
    let refused = blocking::start_tx::<i64>(&phases, &tx).unwrap_err();
    assert!(matches!(refused, TxError::Uncertain { .. }), "{refused}");
    drop(tx);
    assert_eq!(sweep(&db, 100).unwrap(), 0, "it is not swept");
}
