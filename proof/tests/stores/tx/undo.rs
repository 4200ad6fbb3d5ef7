//! `undo_once_tx` on PostgreSQL: the step and its undo in both orders, racing, and half way.

use std::time::Duration;

use semel::tx::{Once, TxError, TxReply, UndoOnce, UndoneAs, undo_once_tx};
use semel::{Intent, Key, Operation};
use sqlx::PgPool;

use crate::tx::world::{World, asked, book, intent};

const PATIENCE: Duration = Duration::from_secs(60);

/// The undo of a payment.
fn refund(key: &str) -> Intent {
    let payment = intent(key);
    let key = Key::new(format!("{key}-undo").as_str()).unwrap();
    Intent::new(payment.scope().clone(), Operation::new("payment.cancel").unwrap(), key)
}

async fn pay(pool: &PgPool, key: &str) -> Result<TxReply<i64>, TxError<sqlx::Error>> {
    let mut tx = pool.begin().await.unwrap();
    let once = Once::new(&intent(key), asked(5)).wait(PATIENCE);
    let paid = once.run_tx(&mut tx, async |tx| book(tx, key, 5).await).await;
    match paid {
        Ok(reply) => tx.commit().await.map(|()| reply).map_err(TxError::Work),
        Err(error) => {
            tx.rollback().await.unwrap();
            Err(error)
        }
    }
}

async fn cancel(pool: &PgPool, key: &str) -> Result<TxReply<UndoneAs>, TxError<sqlx::Error>> {
    let mut tx = pool.begin().await.unwrap();
    let undo = UndoOnce::new(&intent(key), &refund(key)).wait(PATIENCE);
    let undone = undo.run_tx(&mut tx, async |tx, id: i64| delete(tx, id).await).await;
    match undone {
        Ok(reply) => tx.commit().await.map(|()| reply).map_err(TxError::Work),
        Err(error) => {
            tx.rollback().await.unwrap();
            Err(error)
        }
    }
}

async fn delete(tx: &mut sqlx::PgConnection, id: i64) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE account SET cents = cents - 5 WHERE id = 7").execute(&mut *tx).await?;
    let deleted = sqlx::query("DELETE FROM payment WHERE id = $1").bind(id).execute(&mut *tx).await?;
    assert_eq!(deleted.rows_affected(), 1);
    Ok(())
}

#[tokio::test]
async fn in_both_orders_nothing_is_left_and_a_late_step_is_refused() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(2).await;
    pay(&pool, "a").await.unwrap();
    assert_eq!(cancel(&pool, "a").await.unwrap(), TxReply { value: UndoneAs::Undone, replayed: false });
    assert_eq!(cancel(&pool, "a").await.unwrap(), TxReply { value: UndoneAs::Undone, replayed: true });
    let early = cancel(&pool, "b").await.unwrap();
    assert_eq!(early, TxReply { value: UndoneAs::NeverHappened, replayed: false });
    for key in ["a", "b"] {
        assert!(matches!(pay(&pool, key).await, Err(TxError::Refused(_))), "{key}");
        assert_eq!(world.payments(key).await, 0);
    }
    assert_eq!(world.count("SELECT cents::bigint FROM account").await, 0);
    let kept = "SELECT count(*) FROM semel_intent WHERE state = 3 AND expires_at IS NULL";
    assert_eq!(world.count(kept).await, 2, "refused for ever");
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn over_tokio_postgres_too() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(1).await;
    let mut client = world.connect().await;
    pay(&pool, "a").await.unwrap();
    for (key, value) in [("a", UndoneAs::Undone), ("b", UndoneAs::NeverHappened)] {
        let mut tx = client.transaction().await.unwrap();
        let (step, undo) = (intent(key), refund(key));
        let undone = undo_once_tx(&mut tx, &step, &undo, async |tx, id: i64| {
            tx.execute("DELETE FROM payment WHERE id = $1", &[&id]).await.map(drop)
        })
        .await
        .unwrap();
        assert_eq!(undone.value, value);
        tx.commit().await.unwrap();
        assert!(matches!(pay(&pool, key).await, Err(TxError::Refused(_))), "{key}");
        assert_eq!(world.payments(key).await, 0);
    }
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn one_waits_for_the_other() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(3).await;
    // The step is at work: its undo waits for its commit, or its rollback.
    for (key, commits) in [("a", true), ("b", false)] {
        let mut tx = pool.begin().await.unwrap();
        let once = Once::new(&intent(key), asked(5));
        once.run_tx(&mut tx, async |tx| book(tx, key, 5).await).await.unwrap();
        let undo = tokio::spawn({
            let pool = pool.clone();
            let (step, undo) = (intent(key), refund(key));
            async move {
                let mut tx = pool.begin().await.unwrap();
                let undo = UndoOnce::new(&step, &undo).wait(PATIENCE);
                let undone = undo.run_tx(&mut tx, async |tx, id: i64| delete(tx, id).await).await.unwrap();
                tx.commit().await.unwrap();
                undone.value
            }
        });
        world.until_looked(1).await;
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let expected = if commits { UndoneAs::Undone } else { UndoneAs::NeverHappened };
        assert_eq!(undo.await.unwrap(), expected);
        assert_eq!(world.payments(key).await, 0);
    }
    // The undo is at work: the step waits, and is refused.
    let mut tx = pool.begin().await.unwrap();
    let undo = UndoOnce::new(&intent("c"), &refund("c"));
    undo.run_tx(&mut tx, async |tx, id: i64| delete(tx, id).await).await.unwrap();
    let none = Once::new(&intent("c"), asked(5)).wait(Duration::ZERO);
    let mut other = pool.begin().await.unwrap();
    let refused = none.run_tx(&mut other, async |tx| book(tx, "c", 5).await).await;
    assert!(matches!(refused, Err(TxError::InFlight { .. })));
    other.rollback().await.unwrap();
    tx.commit().await.unwrap();
    assert!(matches!(pay(&pool, "c").await, Err(TxError::Refused(_))));
    assert_eq!(world.payments("c").await, 0);
    pool.close().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_they_leave_nothing_in_either_order() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(8).await;
    // The intents are named by this test's thread, and the tasks run on others.
    let named: Vec<_> =
        (0..40).map(|round| format!("k{round}")).map(|key| (intent(&key), refund(&key), key)).collect();
    let mut happened = 0;
    for (step, undo, key) in &named {
        let pay = tokio::spawn({
            let (pool, step, key) = (pool.clone(), step.clone(), key.clone());
            async move {
                let mut tx = pool.begin().await.unwrap();
                let once = Once::new(&step, asked(5)).wait(PATIENCE);
                let paid = once.run_tx(&mut tx, async |tx| book(tx, &key, 5).await).await;
                match paid {
                    Ok(_) => tx.commit().await.unwrap(),
                    Err(TxError::Refused(_)) => tx.rollback().await.unwrap(),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let undos: Vec<_> = (0..2)
            .map(|_| {
                let (pool, step, undo) = (pool.clone(), step.clone(), undo.clone());
                tokio::spawn(async move {
                    let mut tx = pool.begin().await.unwrap();
                    let undo = UndoOnce::new(&step, &undo).wait(PATIENCE);
                    let undone =
                        undo.run_tx(&mut tx, async |tx, id: i64| delete(tx, id).await).await.unwrap();
                    tx.commit().await.unwrap();
                    undone
                })
            })
            .collect();
        pay.await.unwrap();
        for undo in undos {
            let undone = undo.await.unwrap();
            happened += usize::from(undone.value == UndoneAs::Undone && !undone.replayed);
        }
        assert_eq!(world.payments(key).await, 0, "{key}");
    }
    println!("figures: {happened} of {} steps came first", named.len());
    assert_eq!(world.count("SELECT cents::bigint FROM account").await, 0);
    pool.close().await;
    world.end().await;
}
