//! Scenes in which the usual cursors go wrong, and ours does not.

use semel::relay::OutboxReader;

use crate::relay::world::{Postgres, drained, insert};
use proof::planted::{By, Naive};

/// The lower number commits after the higher one was published.
async fn late_commit(world: &Postgres, source: &mut impl OutboxReader) -> Vec<String> {
    let (slow, quick) = (world.connect().await, world.connect().await);
    slow.batch_execute(&format!("BEGIN; {}", insert("a", "late"))).await.unwrap();
    quick.batch_execute(&insert("b", "early")).await.unwrap();
    let mut texts = drained(source).await;
    slow.batch_execute("COMMIT").await.unwrap();
    texts.extend(drained(source).await);
    texts
}

/// The transaction that began first gets the lock second.
async fn handed_over(world: &Postgres, source: &mut impl OutboxReader) -> Vec<String> {
    let (older, younger) = (world.connect().await, world.connect().await);
    older.batch_execute("CREATE TABLE account (n int); INSERT INTO account VALUES (0)").await.unwrap();
    older.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    younger.batch_execute("BEGIN; UPDATE account SET n = 1").await.unwrap();
    younger.batch_execute(&format!("{}; COMMIT", insert("a", "1"))).await.unwrap();
    older.batch_execute(&format!("UPDATE account SET n = 2; {}; COMMIT", insert("a", "2"))).await.unwrap();
    drained(source).await
}

#[tokio::test]
async fn a_late_commit_is_not_lost() {
    let Some(world) = Postgres::new().await else { return };
    let mut source = world.outbox().await.source();
    assert_eq!(late_commit(&world, &mut source).await, ["early", "late"]);
    world.end().await;
}

#[tokio::test]
async fn a_cursor_by_number_is_caught_losing_it() {
    let Some(world) = Postgres::new().await else { return };
    let mut source = Naive::new(world.connect().await, By::Seq);
    assert_eq!(late_commit(&world, &mut source).await, ["early"]);
    world.end().await;
}

#[tokio::test]
async fn a_cursor_that_forgets_who_was_under_way_is_caught_losing_it() {
    let Some(world) = Postgres::new().await else { return };
    let forgetful = |text: &str| {
        text.replace("xid = ANY (ARRAY(", "false AND xid = ANY (ARRAY(")
            .replace("o.false AND ", "false AND o.")
    };
    let mut source = world.options().edit_sql(forgetful).open().await.unwrap().source();
    assert_eq!(late_commit(&world, &mut source).await, ["early"]);
    world.end().await;
}

#[tokio::test]
async fn a_key_keeps_its_order_when_a_lock_is_handed_over() {
    let Some(world) = Postgres::new().await else { return };
    let mut source = world.outbox().await.source();
    assert_eq!(handed_over(&world, &mut source).await, ["1", "2"]);
    world.end().await;
}

#[tokio::test]
async fn ordering_by_transaction_is_caught_overtaking() {
    let Some(world) = Postgres::new().await else { return };
    // As soon as no other transaction in the cluster is older.
    let mut source = Naive::new(world.connect().await, By::Xid);
    let mut texts = handed_over(&world, &mut source).await;
    for _ in 0..600 {
        if texts.len() == 2 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        texts.extend(drained(&mut source).await);
    }
    assert_eq!(texts, ["2", "1"]);
    world.end().await;
}
