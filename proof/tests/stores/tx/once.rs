//! `once_tx` on PostgreSQL: what it promises, with duplicates at once, rollbacks, savepoints and bounds.

use std::time::{Duration, Instant};

use semel::tx::driver::DriverErrorKind;
use semel::tx::{Once, TxError, TxReply, once_tx};
use semel::{Outcome, Retention};
use sqlx::{Acquire, PgPool};

use crate::tx::world::{World, asked, book, intent};

/// How long duplicates wait here: longer than a busy machine takes for a commit.
const PATIENCE: Duration = Duration::from_secs(60);

type Paid = Result<TxReply<i64>, TxError<sqlx::Error>>;

async fn pay(pool: &PgPool, key: &str, cents: i64) -> Paid {
    let mut tx = pool.begin().await.unwrap();
    let once = Once::new(&intent(key), asked(cents)).wait(PATIENCE);
    let paid = once.run_tx(&mut tx, async |tx| book(tx, key, cents).await).await;
    match paid {
        Ok(reply) => tx.commit().await.map(|()| reply).map_err(TxError::Work),
        Err(error) => {
            tx.rollback().await.unwrap();
            Err(error)
        }
    }
}

async fn pay_plain(
    client: &mut tokio_postgres::Client,
    key: &str,
    cents: i64,
) -> Result<TxReply<i64>, TxError<tokio_postgres::Error>> {
    let mut tx = client.transaction().await.unwrap();
    let paid = once_tx(&mut tx, &intent(key), asked(cents), async |tx| {
        tx.execute("UPDATE account SET cents = cents + $1 WHERE id = 7", &[&cents]).await?;
        let insert = "INSERT INTO payment (name, cents) VALUES ($1, $2) RETURNING id";
        Ok(tx.query_one(insert, &[&key, &cents]).await?.get(0))
    })
    .await?;
    tx.commit().await.map_err(TxError::Work)?;
    Ok(paid)
}

#[tokio::test]
async fn the_first_runs_and_every_retry_gets_its_value_by_either_driver() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(2).await;
    let mut client = world.connect().await;
    let first = pay(&pool, "a", 42).await.unwrap();
    let again = pay(&pool, "a", 42).await.unwrap();
    let plain = pay_plain(&mut client, "a", 42).await.unwrap();
    assert_eq!((first.replayed, again.replayed, plain.replayed), (false, true, true));
    assert_eq!((again.value, plain.value), (first.value, first.value));
    assert!(!pay_plain(&mut client, "b", 1).await.unwrap().replayed);
    assert!(pay(&pool, "b", 1).await.unwrap().replayed);
    assert_eq!((world.payments("a").await, world.payments("b").await), (1, 1));
    assert_eq!(world.count("SELECT cents FROM account").await, 43);
    // The same key for something else is refused, and leaves nothing.
    assert!(matches!(pay(&pool, "a", 43).await, Err(TxError::Mismatch)));
    assert!(matches!(pay_plain(&mut client, "a", 43).await, Err(TxError::Mismatch)));
    assert_eq!(world.count("SELECT cents FROM account").await, 43);
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn an_outcome_comes_back_byte_for_byte() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(2).await;
    let given = Outcome::new(201, vec![0u8, 159, 255]).header("location", "/payments/1");
    for replayed in [false, true] {
        let mut tx = pool.begin().await.unwrap();
        let work = async |_: &mut sqlx::PgConnection| Ok::<_, sqlx::Error>(given.clone());
        let reply = once_tx(&mut tx, &intent("a"), asked(1), work).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!((reply.value, reply.replayed), (given.clone(), replayed));
    }
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn duplicates_from_64_tasks_make_one_row_each() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(32).await;
    let tasks: Vec<_> = (0..64)
        .map(|task: usize| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut ran = 0;
                for round in 0..20usize {
                    // Eight tasks at a time ask for the same.
                    let key = format!("k{}", task / 8 * 100 + round);
                    ran += usize::from(!pay(&pool, &key, 5).await.unwrap().replayed);
                }
                ran
            })
        })
        .collect();
    let mut ran = 0;
    for task in tasks {
        ran += task.await.unwrap();
    }
    assert_eq!(ran, 160);
    assert_eq!(world.count("SELECT count(*) FROM payment").await, 160);
    assert_eq!(world.count("SELECT count(DISTINCT name) FROM payment").await, 160);
    assert_eq!(world.count("SELECT cents FROM account").await, 800);
    assert_eq!(world.count("SELECT count(*) FROM semel_intent WHERE state = 2").await, 160);
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn what_fails_or_is_rolled_back_leaves_nothing_and_may_run_at_once() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(2).await;
    let mut tx = pool.begin().await.unwrap();
    let failed = once_tx(&mut tx, &intent("a"), asked(1), async |tx| {
        book(tx, "a", 1).await?;
        Err::<i64, _>(sqlx::Error::RowNotFound)
    })
    .await;
    assert!(matches!(failed, Err(TxError::Work(sqlx::Error::RowNotFound))));
    tx.rollback().await.unwrap();
    // The work was fine, and the caller changes its mind.
    let mut tx = pool.begin().await.unwrap();
    once_tx(&mut tx, &intent("a"), asked(1), async |tx| book(tx, "a", 1).await).await.unwrap();
    drop(tx);
    assert_eq!(world.count("SELECT count(*) FROM semel_intent").await, 0);
    // Asked for differently: nothing is remembered of what was rolled back.
    assert!(!pay(&pool, "a", 2).await.unwrap().replayed);
    assert_eq!(world.payments("a").await, 1);
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn a_duplicate_waits_for_the_first_and_gets_its_value() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(8).await;
    let mut first = pool.begin().await.unwrap();
    let paid = once_tx(&mut first, &intent("a"), asked(1), async |tx| book(tx, "a", 1).await).await.unwrap();
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { pay(&pool, "a", 1).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(waiting.iter().all(|call| !call.is_finished()));
    first.commit().await.unwrap();
    for call in waiting {
        assert_eq!(call.await.unwrap().unwrap(), TxReply { value: paid.value, replayed: true });
    }
    assert_eq!(world.payments("a").await, 1);
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn a_duplicate_of_one_that_rolls_back_runs() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(8).await;
    let mut first = pool.begin().await.unwrap();
    once_tx(&mut first, &intent("a"), asked(1), async |tx| book(tx, "a", 1).await).await.unwrap();
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { pay(&pool, "a", 1).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    first.rollback().await.unwrap();
    let mut ran = 0;
    for call in waiting {
        ran += i32::from(!call.await.unwrap().unwrap().replayed);
    }
    assert_eq!((ran, world.payments("a").await), (1, 1));
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn the_bound_answers_in_flight_and_the_transaction_goes_on() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(8).await;
    let mut first = pool.begin().await.unwrap();
    once_tx(&mut first, &intent("a"), asked(1), async |tx| book(tx, "a", 1).await).await.unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(120)] {
        let mut tx = pool.begin().await.unwrap();
        let begun = Instant::now();
        let once = Once::new(&intent("a"), asked(1)).wait(wait);
        let answer = once.run_tx(&mut tx, async |_| Ok::<i64, sqlx::Error>(0)).await;
        assert!(matches!(answer, Err(TxError::InFlight { .. })), "{answer:?}");
        assert!(begun.elapsed() >= wait && begun.elapsed() < Duration::from_secs(10));
        // Whatever else is to be done in it can be: here, the same for another key.
        let b = intent("b");
        let other = once_tx(&mut tx, &b, asked(1), async |tx| {
            sqlx::query("INSERT INTO payment (name, cents) VALUES ('b', 1)").execute(&mut *tx).await?;
            Ok::<_, sqlx::Error>(())
        });
        other.await.unwrap();
        tx.commit().await.unwrap();
    }
    first.commit().await.unwrap();
    assert_eq!((world.payments("a").await, world.payments("b").await), (1, 1));
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn many_duplicates_of_one_process_ask_the_database_one_at_a_time() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(20).await;
    let mut first = pool.begin().await.unwrap();
    once_tx(&mut first, &intent("a"), asked(1), async |tx| book(tx, "a", 1).await).await.unwrap();
    let waiting: Vec<_> = (0..16)
        .map(|_| {
            let (pool, once) =
                (pool.clone(), Once::new(&intent("a"), asked(1)).wait(Duration::from_secs(120)));
            tokio::spawn(async move {
                let mut tx = pool.begin().await.unwrap();
                once.run_tx(&mut tx, async |tx| book(tx, "a", 1).await).await.map(|reply| (reply, tx))
            })
        })
        .collect();
    // Each has looked once; from then on only one of them looks again and again.
    world.until_looked(16).await;
    // To prepare a statement counts as a query too; that is over by then.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let looked = world.looks_of_waiting().await;
    let (mut later, mut asking) = (Vec::new(), 0);
    // On a busy machine also that one may be late.
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        later = world.looks_of_waiting().await;
        asking = later.iter().filter(|look| !looked.contains(look)).count();
        if asking > 0 {
            break;
        }
    }
    assert_eq!(asking, 1, "{looked:?} {later:?}");
    first.commit().await.unwrap();
    for call in waiting {
        let (reply, tx) = call.await.unwrap().unwrap();
        assert!(reply.replayed);
        tx.commit().await.unwrap();
    }
    assert_eq!(world.payments("a").await, 1);
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn a_savepoint_rolled_back_leaves_nothing_and_one_released_stays() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(2).await;
    let mut tx = pool.begin().await.unwrap();
    let mut inner = tx.begin().await.unwrap();
    once_tx(&mut inner, &intent("a"), asked(1), async |tx| book(tx, "a", 1).await).await.unwrap();
    inner.rollback().await.unwrap();
    // In the same transaction it runs again: nothing of it was left, not even the lock.
    let mut inner = tx.begin().await.unwrap();
    let again = once_tx(&mut inner, &intent("a"), asked(2), async |tx| book(tx, "a", 2).await).await.unwrap();
    assert!(!again.replayed);
    inner.commit().await.unwrap();
    // And is replayed, although nothing is committed yet.
    let third = once_tx(&mut tx, &intent("a"), asked(2), async |tx| book(tx, "a", 2).await).await.unwrap();
    assert_eq!(third, TxReply { value: again.value, replayed: true });
    tx.commit().await.unwrap();
    let mut client = world.connect().await;
    let mut tx = client.transaction().await.unwrap();
    let mut inner = tx.savepoint("here").await.unwrap();
    let work = async |tx: &tokio_postgres::Transaction<'_>| {
        tx.execute("INSERT INTO payment (name, cents) VALUES ('b', 1)", &[]).await
    };
    assert!(!once_tx(&mut inner, &intent("b"), asked(1), work).await.unwrap().replayed);
    inner.rollback().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((world.payments("a").await, world.payments("b").await), (1, 0));
    assert_eq!(world.count("SELECT count(*) FROM semel_intent").await, 1);
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn what_is_forgotten_runs_again() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(2).await;
    for _ in 0..2 {
        let mut tx = pool.begin().await.unwrap();
        let once = Once::new(&intent("a"), asked(1)).retention(Retention::Ms(20));
        assert!(!once.run_tx(&mut tx, async |tx| book(tx, "a", 1).await).await.unwrap().replayed);
        tx.commit().await.unwrap();
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    assert_eq!(world.payments("a").await, 2);
    let records = "SELECT count(*) FROM semel_intent WHERE attempts = 1 AND epoch = seq AND epoch > 1";
    assert_eq!(world.count(records).await, 1);
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn a_value_without_a_stored_form_is_an_error_before_the_commit() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(2).await;
    let mut tx = pool.begin().await.unwrap();
    let large = async |_: &mut sqlx::PgConnection| Ok::<_, sqlx::Error>("x".repeat(5 << 20));
    let refused = once_tx(&mut tx, &intent("a"), asked(1), large).await;
    assert!(matches!(refused, Err(TxError::Value { .. })));
    tx.rollback().await.unwrap();
    pay(&pool, "a", 1).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let other = once_tx(&mut tx, &intent("a"), asked(1), async |_| Ok::<_, sqlx::Error>(String::new())).await;
    assert!(matches!(other, Err(TxError::Value { .. })), "a number is no text: {other:?}");
    drop(tx);
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn transactions_in_which_nothing_can_be_done_say_so() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(2).await;
    let work = async |tx: &mut sqlx::PgConnection| book(tx, "a", 1).await;
    let kind = |answer: Paid| match answer {
        Err(TxError::Database(error)) => error.kind(),
        other => panic!("{other:?}"),
    };
    // Read-only: refused before the work; a replay needs no write and is given.
    let mut tx = pool.begin_with("BEGIN READ ONLY").await.unwrap();
    assert_eq!(kind(once_tx(&mut tx, &intent("a"), asked(1), work).await), DriverErrorKind::ReadOnly);
    drop(tx);
    let first = pay(&pool, "a", 1).await.unwrap();
    let mut tx = pool.begin_with("BEGIN READ ONLY").await.unwrap();
    let replay = once_tx(&mut tx, &intent("a"), asked(1), work).await.unwrap();
    assert_eq!(replay, TxReply { value: first.value, replayed: true });
    drop(tx);
    // Aborted.
    let mut tx = pool.begin().await.unwrap();
    sqlx::query("SELECT 1 / 0").execute(&mut *tx).await.unwrap_err();
    assert_eq!(kind(once_tx(&mut tx, &intent("b"), asked(1), work).await), DriverErrorKind::Aborted);
    drop(tx);
    // None at all: every statement would be its own commit.
    let mut connection = pool.acquire().await.unwrap();
    let bare = once_tx(&mut *connection, &intent("b"), asked(1), async |tx| book(tx, "b", 1).await).await;
    assert_eq!(kind(bare), DriverErrorKind::NoTransaction);
    // No tables.
    sqlx::query("SET search_path = pg_catalog").execute(&mut *connection).await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    assert_eq!(kind(once_tx(&mut tx, &intent("b"), asked(1), work).await), DriverErrorKind::NoTables);
    drop(tx);
    drop(connection);
    assert_eq!((world.payments("a").await, world.payments("b").await), (1, 0));
    pool.close().await;
    world.end().await;
}
