//! `undo_once_tx` on MySQL and MariaDB: the step and its undo in both orders, racing, and half way.

use std::time::Duration;

use semel::tx::{Once, TxError, TxReply, UndoOnce, UndoneAs};
use semel::{Intent, Key, Operation};
use sqlx::mysql::MySqlPool;
use sqlx::{MySqlConnection, Transaction};

use super::SERVER;
use crate::tx::mysql_world::{World, book, intent};
use crate::tx::world::asked;

const PATIENCE: Duration = Duration::from_secs(60);

/// The undo of a payment.
fn refund(key: &str) -> Intent {
    let payment = intent(key);
    let key = Key::new(format!("{key}-undo").as_str()).unwrap();
    Intent::new(payment.scope().clone(), Operation::new("payment.cancel").unwrap(), key)
}

/// Whether it is to be run again: what a deadlock, or a conflict, asks for.
async fn ended<T, E: std::error::Error>(
    tx: Transaction<'_, sqlx::MySql>,
    result: Result<T, TxError<E>>,
) -> Result<Option<T>, TxError<E>> {
    match result {
        Ok(value) => {
            tx.commit().await.unwrap();
            Ok(Some(value))
        }
        Err(error) => {
            tx.rollback().await.unwrap();
            if error.may_retry() { Ok(None) } else { Err(error) }
        }
    }
}

async fn pay(pool: &MySqlPool, key: &str) -> Result<TxReply<i64>, TxError<sqlx::Error>> {
    for _ in 0..100 {
        let mut tx = pool.begin().await.unwrap();
        let once = Once::new(&intent(key), asked(5)).wait(PATIENCE);
        let paid = once.run_tx(&mut tx, async |tx| book(tx, key, 5).await).await;
        if let Some(paid) = ended(tx, paid).await? {
            return Ok(paid);
        }
    }
    panic!("it is never paid")
}

async fn cancel(pool: &MySqlPool, key: &str) -> Result<TxReply<UndoneAs>, TxError<sqlx::Error>> {
    for _ in 0..100 {
        let mut tx = pool.begin().await.unwrap();
        let undo = UndoOnce::new(&intent(key), &refund(key)).wait(PATIENCE);
        let undone = undo.run_tx(&mut tx, async |tx, id: i64| delete(tx, id).await).await;
        if let Some(undone) = ended(tx, undone).await? {
            return Ok(undone);
        }
    }
    panic!("it is never undone")
}

async fn delete(tx: &mut MySqlConnection, id: i64) -> Result<(), sqlx::Error> {
    let deleted = sqlx::query("DELETE FROM payment WHERE id = ?").bind(id).execute(&mut *tx).await?;
    assert_eq!(deleted.rows_affected(), 1);
    Ok(())
}

#[tokio::test]
async fn in_both_orders_nothing_is_left_and_a_late_step_is_refused() {
    let Some(world) = World::new(SERVER).await else { return };
    pay(&world.pool, "a").await.unwrap();
    assert_eq!(cancel(&world.pool, "a").await.unwrap(), TxReply { value: UndoneAs::Undone, replayed: false });
    assert_eq!(cancel(&world.pool, "a").await.unwrap(), TxReply { value: UndoneAs::Undone, replayed: true });
    let early = cancel(&world.pool, "b").await.unwrap();
    assert_eq!(early, TxReply { value: UndoneAs::NeverHappened, replayed: false });
    for key in ["a", "b"] {
        assert!(matches!(pay(&world.pool, key).await, Err(TxError::Refused(_))), "{key}");
        assert_eq!(world.payments(key).await, 0);
    }
    let kept = "SELECT COUNT(*) FROM semel_intent WHERE state = 3 AND expires_at IS NULL";
    assert_eq!(world.count(kept).await, 2, "refused for ever");
    world.end().await;
}

#[tokio::test]
async fn an_undo_that_fails_leaves_the_step_as_it_was() {
    let Some(world) = World::new(SERVER).await else { return };
    pay(&world.pool, "a").await.unwrap();
    let mut tx = world.begin().await;
    let undo = UndoOnce::new(&intent("a"), &refund("a"));
    let failed = undo.run_tx(&mut tx, async |_: &mut MySqlConnection, _: i64| Err("closed")).await;
    assert!(matches!(failed, Err(TxError::Work("closed"))));
    // The caller takes the error for an answer, and commits.
    tx.commit().await.unwrap();
    assert_eq!(world.count("SELECT COUNT(*) FROM semel_intent").await, 1);
    assert!(pay(&world.pool, "a").await.unwrap().replayed);
    assert_eq!(cancel(&world.pool, "a").await.unwrap().value, UndoneAs::Undone);
    assert_eq!(world.payments("a").await, 0);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_waits_for_the_other() {
    let Some(world) = World::new(SERVER).await else { return };
    for (key, commits) in [("a", true), ("b", false)] {
        let mut tx = world.begin().await;
        let once = Once::new(&intent(key), asked(5));
        once.run_tx(&mut tx, async |tx| book(tx, key, 5).await).await.unwrap();
        let pool = world.pool.clone();
        let undo = tokio::spawn(async move { cancel(&pool, key).await.unwrap().value });
        world.until_waiting(1).await;
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let expected = if commits { UndoneAs::Undone } else { UndoneAs::NeverHappened };
        assert_eq!(undo.await.unwrap(), expected);
        assert_eq!(world.payments(key).await, 0);
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_they_leave_nothing_in_either_order() {
    let Some(world) = World::new(SERVER).await else { return };
    let (rounds, mut happened) = (40, 0);
    for key in (0..rounds).map(|round| format!("k{round}")) {
        let step = tokio::spawn({
            let (pool, key) = (world.pool.clone(), key.clone());
            async move {
                match pay(&pool, &key).await {
                    Ok(_) | Err(TxError::Refused(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let undos: Vec<_> = (0..2)
            .map(|_| {
                let (pool, key) = (world.pool.clone(), key.clone());
                tokio::spawn(async move { cancel(&pool, &key).await.unwrap() })
            })
            .collect();
        step.await.unwrap();
        for undo in undos {
            let undone = undo.await.unwrap();
            happened += usize::from(undone.value == UndoneAs::Undone && !undone.replayed);
        }
        assert_eq!(world.payments(&key).await, 0, "{key}");
    }
    println!("figures: {happened} of {rounds} steps came first");
    world.end().await;
}
