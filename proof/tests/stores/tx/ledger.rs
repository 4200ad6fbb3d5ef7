//! The ledger on PostgreSQL: postings of many tasks over two drivers and all isolation levels, with duplicates and
//! rollbacks, judged by what is in the tables.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use semel::tx::driver::{Dialect, DriverErrorKind, Sql, Tx};
use semel::tx::ledger::{self, Account, AccountId, LedgerError, Posting, PostingId, PostingReceipt};
use semel::tx::reference::{self, ReferenceError};
use semel::tx::upsert::{self, Inserted, Updated};
use semel::{Intent, Key, Operation, Scope};
use sqlx::postgres::PgPool;

use crate::tx::world::World;

const ISOLATION: [&str; 3] = [
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
];

fn intent(key: &str) -> Intent {
    let operation = Operation::new("payment.create").unwrap();
    Intent::new(Scope::tenant("acme").unwrap(), operation, Key::new(key).unwrap())
}

fn two(key: &str, from: &str, to: &str, amount: i64) -> Posting {
    Posting::of(&intent(key)).line(from, -amount).unwrap().line(to, amount).unwrap()
}

/// Four customers who may not be overdrawn and have 1,000 each, a bank and a revenue that may be anything.
async fn open(world: &World) -> PgPool {
    let client = world.connect().await;
    client.batch_execute(ledger::schema(Dialect::Postgres)).await.unwrap();
    client.batch_execute(reference::schema(Dialect::Postgres)).await.unwrap();
    let pool = world.pool(8).await;
    let mut tx = pool.begin().await.unwrap();
    for name in ["bank", "revenue"] {
        ledger::open(&mut tx, &Account::new(name, "EUR").unwrap()).await.unwrap();
    }
    for n in 0..4 {
        let id = format!("customer:{n}");
        ledger::open(&mut tx, &Account::new(&id, "EUR").unwrap().floor(0).unwrap()).await.unwrap();
        ledger::post(&mut tx, &two(&id, "bank", &id, 1_000)).await.unwrap();
    }
    tx.commit().await.unwrap();
    pool
}

async fn imbalances(pool: &PgPool) -> Vec<String> {
    let mut tx = pool.begin().await.unwrap();
    ledger::check(&mut tx).await.unwrap().into_iter().map(|it| it.kind).collect()
}

async fn balance(pool: &PgPool, account: &str) -> i64 {
    let mut tx = pool.begin().await.unwrap();
    ledger::balance(&mut tx, &AccountId::new(account).unwrap()).await.unwrap()
}

/// Operation `n` always wants the same, no matter which caller asks for it.
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

fn again(error: &LedgerError) -> bool {
    matches!(error, LedgerError::Driver(error) if error.kind() == DriverErrorKind::Serialization)
}

/// One transaction over sqlx, run again when it lost a race; `None` when it was rolled back on purpose or refused.
async fn over_sqlx(
    pool: &PgPool,
    posting: &Posting,
    isolation: &'static str,
    commits: bool,
) -> Option<PostingReceipt> {
    loop {
        let mut tx = pool.begin().await.unwrap();
        sqlx::query(isolation).execute(&mut *tx).await.unwrap();
        match ledger::post(&mut tx, posting).await {
            Ok(receipt) if commits => match tx.commit().await {
                Ok(()) => return Some(receipt),
                // Serializable transactions may be refused at the very end.
                Err(_) => continue,
            },
            Ok(_) | Err(LedgerError::Insufficient { .. }) => return None,
            Err(error) if again(&error) => continue,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn over_tokio_postgres(
    client: &mut tokio_postgres::Client,
    posting: &Posting,
    isolation: &'static str,
    commits: bool,
) -> Option<PostingReceipt> {
    loop {
        let mut tx = client.transaction().await.unwrap();
        tx.batch_execute(isolation).await.unwrap();
        match ledger::post(&mut tx, posting).await {
            Ok(receipt) if commits => match tx.commit().await {
                Ok(()) => return Some(receipt),
                Err(_) => continue,
            },
            Ok(_) | Err(LedgerError::Insufficient { .. }) => return None,
            Err(error) if again(&error) => continue,
            Err(error) => panic!("{error}"),
        }
    }
}

type Receipts = Arc<Mutex<HashMap<PostingId, Vec<PostingReceipt>>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_and_concurrency_keep_the_sum_and_the_floors() {
    let Some(world) = World::new().await else { return };
    let pool = open(&world).await;
    let (by_id, mut tasks) = (Receipts::default(), tokio::task::JoinSet::new());
    for task in 0..8 {
        let (pool, by_id, mut client) = (pool.clone(), Arc::clone(&by_id), world.connect().await);
        tasks.spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            for _ in 0..60 {
                let posting = wanted(random.u64(0..80));
                let isolation = ISOLATION[random.usize(0..3)];
                let commits = random.u8(0..4) > 0;
                let receipt = if random.bool() {
                    over_sqlx(&pool, &posting, isolation, commits).await
                } else {
                    over_tokio_postgres(&mut client, &posting, isolation, commits).await
                };
                if let Some(receipt) = receipt {
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
    assert!(by_id.len() > 10, "{} operations went through", by_id.len());
    // The tables hold the postings that some caller has a receipt for, and no more.
    assert_eq!(world.count("SELECT count(*) FROM semel_posting").await as usize, by_id.len() + 4);
    let repeated = by_id.values().filter(|receipts| receipts.len() > 1).count();
    assert!(repeated > 5, "only {repeated} operations were asked for twice");
    for n in 0..4 {
        assert!(balance(&pool, &format!("customer:{n}")).await >= 0);
    }
    pool.close().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_spend_the_same_money_one_does() {
    let Some(world) = World::new().await else { return };
    let pool = open(&world).await;
    for (round, isolation) in ISOLATION.into_iter().enumerate() {
        let customer = format!("customer:{round}");
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..16 {
            let (pool, customer) = (pool.clone(), customer.clone());
            tasks.spawn(async move {
                let posting = two(&format!("spend-{round}-{n}"), &customer, "revenue", 600);
                over_sqlx(&pool, &posting, isolation, true).await.is_some()
            });
        }
        let spent = tasks.join_all().await.into_iter().filter(|spent| *spent).count();
        assert_eq!((spent, balance(&pool, &customer).await), (1, 400), "{isolation}");
    }
    // The same posting from many at once: all of them get the receipt, one has done it.
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let pool = pool.clone();
        tasks.spawn(async move {
            over_sqlx(&pool, &two("one", "customer:3", "revenue", 900), ISOLATION[0], true).await
        });
    }
    let receipts: Vec<_> = tasks.join_all().await.into_iter().map(Option::unwrap).collect();
    assert_eq!(receipts.iter().filter(|it| !it.already).count(), 1, "{receipts:?}");
    assert_eq!(balance(&pool, "customer:3").await, 100);
    assert_eq!(imbalances(&pool).await, [""; 0]);
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn what_is_refused_leaves_the_transaction_usable() {
    let Some(world) = World::new().await else { return };
    let pool = open(&world).await;
    let mut tx = pool.begin().await.unwrap();
    ledger::open(&mut tx, &Account::new("dollars", "USD").unwrap()).await.unwrap();
    ledger::post(&mut tx, &two("k", "customer:0", "revenue", 300)).await.unwrap();
    for (posting, says) in [
        (two("k", "customer:0", "revenue", 301), "with other lines"),
        (two("a", "customer:0", "revenue", 1_001), "below its floor"),
        (two("a", "customer:0", "dollars", 1), "exchange is two postings"),
        (two("a", "customer:0", "nowhere", 1), "account nowhere does not exist"),
    ] {
        let error = ledger::post(&mut tx, &posting).await.unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
    ledger::post(&mut tx, &two("a", "customer:0", "revenue", 1)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(balance(&pool, "customer:0").await, 699);

    // 64 bits of cents are not wrapped around.
    let mut tx = pool.begin().await.unwrap();
    for n in 0..3 {
        ledger::post(&mut tx, &two(&format!("big-{n}"), "bank", "revenue", i64::MAX / 2)).await.unwrap();
    }
    let revenue = AccountId::new("revenue").unwrap();
    assert!(matches!(ledger::balance(&mut tx, &revenue).await, Err(LedgerError::Overflow)));
    assert!(ledger::check(&mut tx).await.unwrap().is_empty());
    tx.rollback().await.unwrap();
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn a_leg_that_is_missing_is_found() {
    let Some(world) = World::new().await else { return };
    let pool = open(&world).await;
    // A bug as one would plant it: the second line of a posting never arrives.
    let client = world.connect().await;
    client
        .batch_execute(
            "CREATE FUNCTION drop_it() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TRIGGER drop_it BEFORE INSERT ON semel_entry FOR EACH ROW WHEN (NEW.line = 1) EXECUTE FUNCTION drop_it();",
        )
        .await
        .unwrap();
    over_sqlx(&pool, &two("k", "customer:0", "revenue", 300), ISOLATION[0], true).await.unwrap();
    assert_eq!(imbalances(&pool).await, ["posting", "currency"]);
    // For people, by hand.
    let shown = client.query(ledger::IMBALANCES.postgres, &[]).await.unwrap();
    assert_eq!(shown.len(), 2);
    pool.close().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_result_is_booked_under_one_intent_also_when_two_come_at_once() {
    let Some(world) = World::new().await else { return };
    let pool = open(&world).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8 {
        let pool = pool.clone();
        tasks.spawn(async move {
            let mut tx = pool.begin().await.unwrap();
            // Two intents, four attempts each.
            let recorded =
                reference::record(&mut tx, &intent(&format!("k-{}", n % 2)), "stripe", "ch_7").await;
            tx.commit().await.unwrap();
            (n % 2, recorded)
        });
    }
    let ended = tasks.join_all().await;
    let mut winners: Vec<_> = ended.iter().filter(|(_, it)| it.is_ok()).map(|(n, _)| *n).collect();
    winners.dedup();
    assert_eq!((winners.len(), ended.iter().filter(|(_, it)| it.is_ok()).count()), (1, 4));
    let taken = |it: &Result<(), ReferenceError>| matches!(it, Err(ReferenceError::Taken { .. }));
    assert_eq!(ended.iter().filter(|(_, it)| taken(it)).count(), 4);
    let mut tx = pool.begin().await.unwrap();
    let found = reference::find(&mut tx, "stripe", "ch_7").await.unwrap();
    assert_eq!(found, Some(intent(&format!("k-{}", winners[0])).id()));
    drop(tx);
    pool.close().await;
    world.end().await;
}

async fn counts_say_what_happened<X: Tx>(tx: &mut X) {
    let insert = postgres("INSERT INTO t VALUES ($1, 0, 1) ON CONFLICT (id) DO NOTHING RETURNING 1");
    assert_eq!(upsert::insert(tx, &insert, vec![7.into()]).await.unwrap(), Inserted::New);
    assert_eq!(upsert::insert(tx, &insert, vec![7.into()]).await.unwrap(), Inserted::There);
    let update = postgres("UPDATE t SET v = $2, version = version + 1 WHERE id = $1 AND version = $3");
    for (version, says) in [(1, Updated::Done), (1, Updated::Stale), (2, Updated::Done)] {
        let values = vec![7.into(), 5.into(), version.into()];
        assert_eq!(upsert::update(tx, &update, values).await.unwrap(), says);
    }
    let forward = postgres(
        "INSERT INTO t VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET v = excluded.v, version = excluded.version \
         WHERE excluded.version > t.version",
    );
    for (version, says) in [(3, Updated::Stale), (9, Updated::Done), (8, Updated::Stale)] {
        let values = vec![7.into(), 9.into(), version.into()];
        assert_eq!(upsert::update(tx, &forward, values).await.unwrap(), says);
    }
}

fn postgres(text: &'static str) -> Sql {
    Sql { postgres: text, mysql: "", sqlite: "" }
}

#[tokio::test]
async fn a_statement_says_whether_it_was_a_repetition() {
    let Some(world) = World::new().await else { return };
    let mut client = world.connect().await;
    client.batch_execute("CREATE TABLE t (id bigint PRIMARY KEY, v bigint, version bigint)").await.unwrap();
    let pool = world.pool(1).await;
    counts_say_what_happened(&mut pool.begin().await.unwrap()).await;
    counts_say_what_happened(&mut client.transaction().await.unwrap()).await;
    pool.close().await;
    world.end().await;
}
