//! The ledger's statements on MySQL and MariaDB, over a driver of the test's own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use semel::tx::driver::{Dialect, DriverError, DriverErrorKind, Lend, Row, Rows, Sql, Statement, Tx, Value};
use semel::tx::ledger::{self, Account, AccountId, LedgerError, Posting, PostingId, PostingReceipt};
use semel::tx::reference::{self, ReferenceError};
use semel::tx::upsert::{self, Inserted, Updated};
use semel::{Intent, Key, Operation, Scope};
use sqlx::mysql::{MySqlPool, MySqlPoolOptions, MySqlRow};
use sqlx::{AssertSqlSafe, Column, Executor, MySql, Row as _, TypeInfo};
use testkit::services::require;

use super::SERVER;

struct Mysql<'c>(sqlx::Transaction<'c, MySql>);

impl Lend for Mysql<'_> {
    type Lent<'l> = ();
}

impl Tx for Mysql<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    fn lend(&mut self) -> Self::Lent<'_> {}

    async fn run(&mut self, statement: Statement) -> Result<Rows, DriverError> {
        let query =
            statement.values.into_iter().fold(sqlx::query(statement.text), |query, value| match value {
                Value::Int(value) => query.bind(value),
                Value::Bytes(value) => query.bind(value.map(|bytes| bytes.to_vec())),
                Value::Text(value) => query.bind(value),
            });
        if statement.text.starts_with("SELECT") || statement.text.starts_with("--") {
            let found = query.fetch_all(&mut *self.0).await.map_err(explain)?;
            let rows = found.iter().map(read).collect::<Result<_, _>>()?;
            return Ok(Rows { rows, changed: 0 });
        }
        let changed = query.execute(&mut *self.0).await.map_err(explain)?.rows_affected();
        Ok(Rows { rows: Vec::new(), changed })
    }
}

fn read(row: &MySqlRow) -> Result<Row, DriverError> {
    let column = |(at, column): (usize, &sqlx::mysql::MySqlColumn)| {
        Ok(match column.type_info().name() {
            "BIGINT" | "INT" => Value::Int(row.try_get(at).map_err(explain)?),
            "BINARY" | "VARBINARY" | "BLOB" => row
                .try_get::<Option<Vec<u8>>, _>(at)
                .map_err(explain)?
                .map_or(Value::Bytes(None), |it| Value::from(&it[..])),
            _ => Value::Text(row.try_get(at).map_err(explain)?),
        })
    };
    row.columns().iter().enumerate().map(column).collect::<Result<_, _>>().map(Row)
}

fn explain(error: sqlx::Error) -> DriverError {
    let number = match &error {
        sqlx::Error::Database(error) => error.downcast_ref::<sqlx::mysql::MySqlDatabaseError>().number(),
        _ => 0,
    };
    let kind = match number {
        // Deadlock, and MariaDB's "record has changed since last read".
        1213 | 1020 => DriverErrorKind::Serialization,
        1205 => DriverErrorKind::Busy,
        1062 => DriverErrorKind::Unique,
        _ => DriverErrorKind::Other,
    };
    DriverError::of(kind, error)
}

fn intent(key: &str) -> Intent {
    let operation = Operation::new("payment.create").unwrap();
    Intent::new(Scope::tenant("acme").unwrap(), operation, Key::new(key).unwrap())
}

fn two(key: &str, from: &str, to: &str, amount: i64) -> Posting {
    Posting::of(&intent(key)).line(from, -amount).unwrap().line(to, amount).unwrap()
}

async fn begin(pool: &MySqlPool) -> Mysql<'static> {
    Mysql(pool.begin().await.unwrap())
}

/// A database of the test's own, with the tables, two customers of 1,000 each, a bank and a revenue.
async fn open() -> Option<(testkit::services::Lease, MySqlPool)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let lease = require(SERVER)?;
    let name = format!("ledger_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let server = MySqlPool::connect(lease.url()).await.unwrap();
    server.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
    server.close().await;
    let url = format!("{}/{name}", lease.url().rsplit_once('/').unwrap().0);
    let pool = MySqlPoolOptions::new().max_connections(8).connect(&url).await.unwrap();
    for schema in [ledger::schema(Dialect::Mysql), reference::schema(Dialect::Mysql)] {
        pool.execute(schema).await.unwrap();
    }
    let mut tx = begin(&pool).await;
    for name in ["bank", "revenue"] {
        ledger::open(&mut tx, &Account::new(name, "EUR").unwrap()).await.unwrap();
    }
    for n in 0..2 {
        let id = format!("customer:{n}");
        for _ in 0..2 {
            ledger::open(&mut tx, &Account::new(&id, "EUR").unwrap().floor(0).unwrap()).await.unwrap();
        }
        ledger::post(&mut tx, &two(&id, "bank", &id, 1_000)).await.unwrap();
    }
    tx.0.commit().await.unwrap();
    Some((lease, pool))
}

async fn end(pool: MySqlPool) {
    let name: String = sqlx::query_scalar("SELECT database()").fetch_one(&pool).await.unwrap();
    pool.execute(AssertSqlSafe(format!("DROP DATABASE {name}"))).await.unwrap();
    pool.close().await;
}

async fn imbalances(pool: &MySqlPool) -> Vec<String> {
    ledger::check(&mut begin(pool).await).await.unwrap().into_iter().map(|it| it.kind).collect()
}

async fn balance(pool: &MySqlPool, account: &str) -> i64 {
    ledger::balance(&mut begin(pool).await, &AccountId::new(account).unwrap()).await.unwrap()
}

/// One transaction, run again when it lost a race; `None` when it was rolled back on purpose or refused.
async fn posted(pool: &MySqlPool, posting: &Posting, commits: bool) -> Option<PostingReceipt> {
    loop {
        let mut tx = begin(pool).await;
        // The default isolation is REPEATABLE READ; a snapshot is taken here, before anything is locked.
        tx.run(Statement { text: "SELECT count(*) FROM semel_entry", values: vec![] }).await.unwrap();
        match ledger::post(&mut tx, posting).await {
            Ok(receipt) if commits => {
                tx.0.commit().await.unwrap();
                return Some(receipt);
            }
            Ok(_) | Err(LedgerError::Insufficient { .. }) => return None,
            Err(LedgerError::Driver(error))
                if matches!(error.kind(), DriverErrorKind::Serialization | DriverErrorKind::Busy) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_and_concurrency_keep_the_sum_and_the_floors() {
    let Some((_lease, pool)) = open().await else { return };
    let by_id: Arc<Mutex<HashMap<PostingId, Vec<PostingReceipt>>>> = Arc::default();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..6 {
        let (pool, by_id) = (pool.clone(), Arc::clone(&by_id));
        tasks.spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            for _ in 0..40 {
                let n = random.i64(0..30);
                let (from, to) =
                    if n % 2 == 0 { ("customer:0", "customer:1") } else { ("customer:1", "customer:0") };
                let to = if n % 5 == 0 { "revenue" } else { to };
                let posting = two(&format!("op-{n}"), from, to, 20 + n * 17);
                if let Some(receipt) = posted(&pool, &posting, random.u8(0..4) > 0).await {
                    by_id.lock().unwrap().entry(receipt.id).or_default().push(receipt);
                }
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(imbalances(&pool).await, [""; 0]);
    let by_id = by_id.lock().unwrap().clone();
    for (id, receipts) in &by_id {
        assert_eq!(receipts.iter().filter(|it| !it.already).count(), 1, "{id}: {receipts:?}");
        assert!(receipts.iter().all(|it| it.posted_at_ms == receipts[0].posted_at_ms), "{id}: {receipts:?}");
    }
    assert!(by_id.len() > 8, "{}", by_id.len());
    let there: i64 = sqlx::query_scalar("SELECT count(*) FROM semel_posting").fetch_one(&pool).await.unwrap();
    assert_eq!(there as usize, by_id.len() + 2);
    for n in 0..2 {
        assert!(balance(&pool, &format!("customer:{n}")).await >= 0);
    }
    end(pool).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_references_and_counts() {
    let Some((_lease, pool)) = open().await else { return };
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..12 {
        let pool = pool.clone();
        tasks.spawn(async move {
            posted(&pool, &two(&format!("spend-{n}"), "customer:0", "revenue", 600), true).await.is_some()
        });
    }
    let spent = tasks.join_all().await.into_iter().filter(|spent| *spent).count();
    assert_eq!((spent, balance(&pool, "customer:0").await), (1, 400));

    let mut tx = begin(&pool).await;
    ledger::open(&mut tx, &Account::new("dollars", "USD").unwrap()).await.unwrap();
    for (posting, says) in [
        (two("customer:1", "bank", "customer:1", 999), "with other lines"),
        (two("a", "customer:0", "revenue", 1_001), "below its floor"),
        (two("a", "customer:0", "dollars", 1), "exchange is two postings"),
        (two("a", "customer:0", "nowhere", 1), "account nowhere does not exist"),
    ] {
        let error = ledger::post(&mut tx, &posting).await.unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
    for _ in 0..2 {
        reference::record(&mut tx, &intent("mine"), "stripe", "ch_7").await.unwrap();
    }
    reference::record(&mut tx, &intent("yours"), "stripe", "CH_7").await.unwrap();
    let taken = reference::record(&mut tx, &intent("yours"), "stripe", "ch_7").await;
    assert!(matches!(taken, Err(ReferenceError::Taken { .. })), "{taken:?}");
    assert_eq!(reference::find(&mut tx, "stripe", "ch_7").await.unwrap(), Some(intent("mine").id()));
    for n in 0..3 {
        ledger::post(&mut tx, &two(&format!("big-{n}"), "bank", "revenue", i64::MAX / 2)).await.unwrap();
    }
    let revenue = AccountId::new("revenue").unwrap();
    assert!(matches!(ledger::balance(&mut tx, &revenue).await, Err(LedgerError::Overflow)));
    assert!(ledger::check(&mut tx).await.unwrap().is_empty());
    drop(tx);

    pool.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT, version BIGINT)").await.unwrap();
    let mut tx = begin(&pool).await;
    let sql = |mysql| Sql { postgres: "", mysql, sqlite: "" };
    let insert = sql("INSERT IGNORE INTO t VALUES (?, 0, 1)");
    assert_eq!(upsert::insert(&mut tx, &insert, vec![7.into()]).await.unwrap(), Inserted::New);
    assert_eq!(upsert::insert(&mut tx, &insert, vec![7.into()]).await.unwrap(), Inserted::There);
    let update = sql("UPDATE t SET v = ?, version = version + 1 WHERE id = ? AND version = ?");
    for (version, says) in [(1, Updated::Done), (1, Updated::Stale), (2, Updated::Done)] {
        let values = vec![5.into(), 7.into(), version.into()];
        assert_eq!(upsert::update(&mut tx, &update, values).await.unwrap(), says);
    }
    drop(tx);
    end(pool).await;
}
