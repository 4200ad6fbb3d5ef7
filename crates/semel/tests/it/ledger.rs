//! The ledger, references and natural idempotency in SQLite transactions, from threads that get in each other's way.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use semel::tx::driver::{Dialect, DriverErrorKind, Sql};
use semel::tx::ledger::{self, Account, AccountId, LedgerError, Posting, PostingId};
use semel::tx::reference::{self, ReferenceError};
use semel::tx::upsert::{Inserted, Updated};
use semel::{Intent, Key, Operation, Scope, blocking};
use tempfile::TempDir;

fn intent(key: &str) -> Intent {
    let operation = Operation::new("payment.create").unwrap();
    Intent::new(Scope::tenant("acme").unwrap(), operation, Key::new(key).unwrap())
}

struct Book(TempDir);

impl Book {
    /// Four customers who may not be overdrawn and have 1,000 each, a bank and a revenue that may be anything.
    fn new() -> Self {
        let book = Self(tempfile::tempdir().unwrap());
        let mut connection = book.connect();
        connection.pragma_update(None, "journal_mode", "WAL").unwrap();
        connection.execute_batch(ledger::schema(Dialect::Sqlite)).unwrap();
        connection.execute_batch(reference::schema(Dialect::Sqlite)).unwrap();
        let tx = connection.transaction().unwrap();
        for name in ["bank", "revenue"] {
            blocking::ledger::open(&tx, &Account::new(name, "EUR").unwrap()).unwrap();
        }
        for n in 0..4 {
            let id = format!("customer:{n}");
            blocking::ledger::open(&tx, &Account::new(&id, "EUR").unwrap().floor(0).unwrap()).unwrap();
            let funding = Posting::of(&intent(&id)).line("bank", -1_000).unwrap().line(&id, 1_000).unwrap();
            blocking::ledger::post(&tx, &funding).unwrap();
        }
        tx.commit().unwrap();
        book
    }

    fn connect(&self) -> Connection {
        let connection = Connection::open(self.0.path().join("book.db")).unwrap();
        connection.busy_timeout(Duration::from_secs(20)).unwrap();
        connection
    }

    fn imbalances(&self) -> Vec<String> {
        let mut connection = self.connect();
        let tx = connection.transaction().unwrap();
        blocking::ledger::check(&tx).unwrap().into_iter().map(|it| it.kind).collect()
    }
}

fn balance(connection: &mut Connection, account: &str) -> i64 {
    blocking::ledger::balance(&connection.transaction().unwrap(), &AccountId::new(account).unwrap()).unwrap()
}

fn two(key: &str, from: &str, to: &str, amount: i64) -> Posting {
    Posting::of(&intent(key)).line(from, -amount).unwrap().line(to, amount).unwrap()
}

#[test]
fn the_same_operation_is_posted_once_and_with_other_lines_refused() {
    let book = Book::new();
    let mut connection = book.connect();
    let tx = connection.transaction().unwrap();
    let first = blocking::ledger::post(&tx, &two("k", "customer:0", "revenue", 300)).unwrap();
    assert!(!first.already && first.posted_at_ms > 1_600_000_000_000);
    let again = blocking::ledger::post(&tx, &two("k", "customer:0", "revenue", 300)).unwrap();
    assert!(again.already && again.posted_at_ms == first.posted_at_ms && again.id == first.id);
    for other in [
        two("k", "customer:0", "revenue", 301),
        two("k", "customer:1", "revenue", 300),
        // What is there counts before what is wrong with this one.
        two("k", "customer:0", "revenue", 5_000),
        two("k", "customer:0", "nowhere", 300),
    ] {
        assert!(matches!(blocking::ledger::post(&tx, &other), Err(LedgerError::Mismatch)));
    }
    // Another step of the same intent is another posting.
    let fee = Posting::step(&intent("k"), "fee").line("customer:0", -5).unwrap().line("revenue", 5).unwrap();
    assert!(!blocking::ledger::post(&tx, &fee).unwrap().already);
    tx.commit().unwrap();
    assert_eq!(balance(&mut connection, "customer:0"), 695);
    assert_eq!(book.imbalances(), [""; 0]);
}

#[test]
fn what_is_refused_leaves_the_transaction_as_it_was() {
    let book = Book::new();
    let mut connection = book.connect();
    let tx = connection.transaction().unwrap();
    blocking::ledger::open(&tx, &Account::new("dollars", "USD").unwrap()).unwrap();
    let changes = tx.total_changes();
    let refused = [
        (two("a", "customer:0", "revenue", 1_001), "would fall below its floor"),
        (two("a", "customer:0", "nowhere", 1), "account nowhere does not exist"),
        (two("a", "customer:0", "dollars", 1), "exchange is two postings"),
        (Posting::of(&intent("a")).line("bank", 1).unwrap(), "at least two lines"),
        (
            Posting::of(&intent("a")).line("bank", 1).unwrap().line("revenue", 1).unwrap(),
            "sum up to 2 instead of 0",
        ),
        (
            Posting::of(&intent("a"))
                .line("bank", i64::MAX)
                .unwrap()
                .line("bank", i64::MAX)
                .unwrap()
                .line("revenue", -i64::MAX)
                .unwrap()
                .line("customer:1", -i64::MAX)
                .unwrap(),
            "64 bits",
        ),
    ];
    for (posting, says) in refused {
        let error = blocking::ledger::post(&tx, &posting).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
    let other = Account::new("dollars", "EUR").unwrap();
    assert!(matches!(blocking::ledger::open(&tx, &other), Err(LedgerError::AccountDiffers(_))));
    assert_eq!(tx.total_changes(), changes, "something was written");
    assert!(!blocking::ledger::post(&tx, &two("a", "customer:0", "revenue", 1_000)).unwrap().already);
    tx.commit().unwrap();
    assert_eq!(book.imbalances(), [""; 0]);
    // Names, zeros, floors and too many lines are refused before anything is asked.
    assert!(Account::new("with space", "EUR").is_err() && Account::new("a", "eur").is_err());
    assert!(Account::new("a", "EUR").unwrap().floor(1).is_err());
    assert!(Posting::of(&intent("a")).line("a", 0).is_err());
    let full =
        (0..ledger::LINES_MAX).try_fold(Posting::of(&intent("a")), |it, _| it.line("bank", 1)).unwrap();
    assert!(matches!(full.line("bank", 1), Err(LedgerError::TooManyLines)));
    let no_transaction = blocking::ledger::post(&connection, &two("b", "bank", "revenue", 1)).unwrap_err();
    assert!(
        matches!(&no_transaction, LedgerError::Driver(error) if error.kind() == DriverErrorKind::NoTransaction)
    );
}

#[test]
fn sums_beyond_64_bits_are_errors_and_not_wrapped() {
    let book = Book::new();
    let mut connection = book.connect();
    let tx = connection.transaction().unwrap();
    for n in 0..3 {
        blocking::ledger::post(&tx, &two(&format!("k{n}"), "bank", "revenue", i64::MAX / 2)).unwrap();
    }
    let revenue = AccountId::new("revenue").unwrap();
    assert!(matches!(blocking::ledger::balance(&tx, &revenue), Err(LedgerError::Overflow)));
    blocking::ledger::post(&tx, &two("k3", "revenue", "bank", i64::MAX / 2)).unwrap();
    assert_eq!(blocking::ledger::balance(&tx, &revenue).unwrap(), i64::MAX / 2 * 2);
    assert!(blocking::ledger::check(&tx).unwrap().is_empty());
}

/// Operation `n` always wants the same, from every caller.
fn wanted(n: u64) -> Posting {
    let mut random = fastrand::Rng::with_seed(n);
    let amount = random.i64(1..400);
    let from = format!("customer:{}", random.u8(0..4));
    let to = match random.u8(0..5) {
        4 => "revenue".to_owned(),
        n => format!("customer:{n}"),
    };
    let posting = Posting::of(&intent(&format!("op-{n}")));
    let posting = posting.line(&from, -amount - 1).unwrap().line(&to, amount).unwrap();
    posting.line("revenue", 1).unwrap()
}

#[test]
fn duplicates_from_many_threads_keep_the_sum_and_the_floors() {
    let book = Book::new();
    // What committed transactions got: the receipts of one operation are all the same, and one is the first.
    let receipts_by_id: Mutex<HashMap<PostingId, Vec<(i64, bool)>>> = Mutex::default();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (book, receipts_by_id) = (&book, &receipts_by_id);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let mut connection = book.connect();
                for _ in 0..60 {
                    let posting = wanted(random.u64(0..40));
                    let immediate = random.bool();
                    let commits = random.u8(0..4) > 0;
                    loop {
                        let behavior = if immediate {
                            TransactionBehavior::Immediate
                        } else {
                            TransactionBehavior::Deferred
                        };
                        let tx = connection.transaction_with_behavior(behavior).unwrap();
                        match blocking::ledger::post(&tx, &posting) {
                            Ok(receipt) if commits && tx.commit().is_ok() => {
                                let seen = (receipt.posted_at_ms, receipt.already);
                                receipts_by_id.lock().unwrap().entry(receipt.id).or_default().push(seen);
                            }
                            Ok(_) | Err(LedgerError::Insufficient { .. }) => {}
                            Err(LedgerError::Driver(error))
                                if matches!(
                                    error.kind(),
                                    DriverErrorKind::Serialization | DriverErrorKind::Busy
                                ) =>
                            {
                                continue;
                            }
                            Err(error) => panic!("{error}"),
                        }
                        break;
                    }
                }
            });
        }
    });
    assert_eq!(book.imbalances(), [""; 0]);
    let receipts_by_id = receipts_by_id.into_inner().unwrap();
    for (id, receipts) in &receipts_by_id {
        assert_eq!(receipts.iter().filter(|(_, already)| !already).count(), 1, "{id}: {receipts:?}");
        assert!(receipts.iter().all(|(at, _)| *at == receipts[0].0), "{id}: {receipts:?}");
    }
    let mut connection = book.connect();
    let posted: i64 =
        connection.query_row("SELECT count(*) FROM semel_posting", [], |row| row.get(0)).unwrap();
    assert_eq!(posted as usize, receipts_by_id.len() + 4, "postings without a receipt");
    assert!(receipts_by_id.len() > 10, "{} operations went through", receipts_by_id.len());
    for n in 0..4 {
        assert!(balance(&mut connection, &format!("customer:{n}")) >= 0);
    }
}

#[test]
fn the_check_finds_what_does_not_sum_up() {
    for (damage, kinds) in [
        // One leg is missing.
        (
            "DELETE FROM semel_entry WHERE rowid = (SELECT max(rowid) FROM semel_entry)",
            &["posting", "running", "currency"][..],
        ),
        // A second posting of the same, past the unique name.
        (
            "INSERT INTO semel_entry SELECT operation, line + 2, account, amount FROM semel_entry WHERE account LIKE 'customer%'",
            &[
                "posting", "posting", "posting", "posting", "running", "running", "running", "running",
                "currency",
            ],
        ),
        ("UPDATE semel_account SET running = -1 WHERE id = 'customer:2'", &["running", "floor"]),
        (
            "UPDATE semel_account SET currency = 'USD' WHERE id = 'customer:2'",
            &["currencies", "currency", "currency"],
        ),
        ("PRAGMA foreign_keys = OFF; DELETE FROM semel_posting WHERE rowid = 1", &["orphan", "orphan"]),
    ] {
        let book = Book::new();
        book.connect().execute_batch(damage).unwrap();
        assert_eq!(book.imbalances(), kinds, "{damage}");
    }
}

#[test]
fn one_result_is_booked_under_one_intent() {
    let book = Book::new();
    let mut connection = book.connect();
    let tx = connection.transaction().unwrap();
    let (mine, yours) = (intent("mine"), intent("yours"));
    for _ in 0..2 {
        blocking::reference::record(&tx, &mine, "stripe", "ch_secret").unwrap();
    }
    blocking::reference::record(&tx, &mine, "stripe", "ch_8").unwrap();
    blocking::reference::record(&tx, &yours, "paypal", "ch_secret").unwrap();
    blocking::reference::record(&tx, &yours, "stripe", "CH_SECRET").unwrap();
    let taken = blocking::reference::record(&tx, &yours, "stripe", "ch_secret").unwrap_err();
    assert!(matches!(&taken, ReferenceError::Taken { provider } if provider == "stripe"), "{taken:?}");
    let says = format!("{taken} {taken:?}");
    assert!(!says.contains("ch_secret") && !says.contains("mine"), "{says}");
    assert_eq!(blocking::reference::find(&tx, "stripe", "ch_secret").unwrap(), Some(mine.id()));
    assert_eq!(blocking::reference::find(&tx, "stripe", "ch_none").unwrap(), None);
    for (provider, name) in [("", "a"), ("a b", "a"), ("a", ""), ("a", "x\n"), ("a", &"x".repeat(256))] {
        assert!(blocking::reference::record(&tx, &mine, provider, name).is_err());
    }
}

#[test]
fn a_statement_says_whether_it_was_a_repetition() {
    let mut connection = Connection::open_in_memory().unwrap();
    connection.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER, version INTEGER)").unwrap();
    let tx = connection.transaction().unwrap();
    let insert = sqlite("INSERT INTO t VALUES (?1, 0, 1) ON CONFLICT (id) DO NOTHING RETURNING 1");
    assert_eq!(blocking::upsert::insert(&tx, &insert, vec![7.into()]).unwrap(), Inserted::New);
    assert_eq!(blocking::upsert::insert(&tx, &insert, vec![7.into()]).unwrap(), Inserted::There);
    let update = sqlite("UPDATE t SET v = ?2, version = version + 1 WHERE id = ?1 AND version = ?3");
    let set = |version: i64| {
        blocking::upsert::update(&tx, &update, vec![7.into(), 5.into(), version.into()]).unwrap()
    };
    assert_eq!((set(1), set(1), set(2)), (Updated::Done, Updated::Stale, Updated::Done));
    let forward = sqlite(
        "INSERT INTO t VALUES (?1, ?2, ?3) ON CONFLICT (id) DO UPDATE SET v = excluded.v, version = excluded.version \
         WHERE excluded.version > t.version",
    );
    let put = |version: i64| {
        blocking::upsert::update(&tx, &forward, vec![7.into(), 9.into(), version.into()]).unwrap()
    };
    assert_eq!(
        (put(3), put(9), put(8), put(9)),
        (Updated::Stale, Updated::Done, Updated::Stale, Updated::Stale)
    );
    blocking::upsert::insert(&tx, &insert, vec![8.into()]).unwrap();
    let careless = sqlite("UPDATE t SET v = 1");
    assert!(blocking::upsert::update(&tx, &careless, vec![]).unwrap_err().to_string().contains("2 rows"));
}

fn sqlite(text: &'static str) -> Sql {
    Sql { postgres: "", mysql: "", sqlite: text }
}
