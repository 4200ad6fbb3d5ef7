//! The order of a key where a transaction appends before it locks the row that the event is about.

use semel::outbox::{self, append_tx};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::relay::world::{Postgres, drained, event, insert, until};

const ACCOUNT: &str =
    "CREATE TABLE account (id int PRIMARY KEY, state text); INSERT INTO account VALUES (1, '0')";

fn update(state: &str) -> String {
    format!("UPDATE account SET state = '{state}' WHERE id = 1;")
}

async fn world(strict: bool) -> Option<Postgres> {
    let world = Postgres::new().await?;
    world.connect().await.batch_execute(ACCOUNT).await.unwrap();
    if strict {
        // A second time changes nothing.
        outbox::strict_order(&world.url(), true).await.unwrap();
        outbox::strict_order(&world.url(), true).await.unwrap();
    }
    Some(world)
}

async fn connect(world: &Postgres) -> (Client, i32) {
    let client = world.connect().await;
    client.batch_execute("SET deadlock_timeout = '50ms'").await.unwrap();
    let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    (client, pid)
}

/// It waits for a lock.
async fn waits(judge: &Client, pid: i32) {
    let ask = "SELECT FROM pg_locks WHERE pid = $1 AND NOT granted";
    until("it waits for a lock", async || !judge.query(ask, &[&pid]).await.unwrap().is_empty()).await;
}

async fn state(judge: &Client) -> String {
    judge.query_one("SELECT state FROM account", &[]).await.unwrap().get(0)
}

async fn published(world: &Postgres) -> Vec<String> {
    let mut source = world.outbox().await.source();
    let texts = drained(&mut source).await;
    semel::relay::OutboxReader::release(&mut source).await.unwrap();
    texts
}

/// What the rule is about: who appends before the row is locked is overtaken.
#[tokio::test]
async fn who_appends_before_the_row_is_locked_is_overtaken() {
    let Some(world) = world(false).await else { return };
    let judge = world.connect().await;
    let ((first, _), (second, pid)) = (connect(&world).await, connect(&world).await);
    second.batch_execute(&format!("BEGIN; {}", insert("a", "2"))).await.unwrap();
    first.batch_execute(&format!("BEGIN; {} {}", update("1"), insert("a", "1"))).await.unwrap();
    let updated = tokio::spawn(async move { second.batch_execute(&format!("{} COMMIT", update("2"))).await });
    waits(&judge, pid).await;
    first.batch_execute("COMMIT").await.unwrap();
    updated.await.unwrap().unwrap();
    assert_eq!(state(&judge).await, "2");
    assert_eq!(published(&world).await, ["2", "1"], "the last event contradicts the row");
    world.end().await;
}

#[tokio::test]
async fn who_appends_after_the_row_is_locked_is_not() {
    let Some(world) = world(false).await else { return };
    let judge = world.connect().await;
    let ((first, _), (second, pid)) = (connect(&world).await, connect(&world).await);
    second.batch_execute("BEGIN").await.unwrap();
    first.batch_execute(&format!("BEGIN; {} {}", update("1"), insert("a", "1"))).await.unwrap();
    let whole = format!("{} {} COMMIT", update("2"), insert("a", "2"));
    let updated = tokio::spawn(async move { second.batch_execute(&whole).await });
    waits(&judge, pid).await;
    first.batch_execute("COMMIT").await.unwrap();
    updated.await.unwrap().unwrap();
    assert_eq!(state(&judge).await, "2");
    assert_eq!(published(&world).await, ["1", "2"]);
    world.end().await;
}

#[tokio::test]
async fn strict_order_makes_it_a_deadlock() {
    let Some(world) = world(true).await else { return };
    let judge = world.connect().await;
    let ((first, pid), (second, _)) = (connect(&world).await, connect(&world).await);
    second.batch_execute(&format!("BEGIN; {}", insert("a", "2"))).await.unwrap();
    first.batch_execute(&format!("BEGIN; {}", update("1"))).await.unwrap();
    let append = tokio::spawn(async move {
        let result = first.batch_execute(&format!("{} COMMIT", insert("a", "1"))).await;
        (first, result)
    });
    waits(&judge, pid).await;
    let updated = second.batch_execute(&format!("{} COMMIT", update("2"))).await;
    let (first, appended) = append.await.unwrap();
    // One of them is ended with an error; it runs again, whole.
    let (again, whole, error) = match (appended, updated) {
        (Err(error), Ok(())) => (first, format!("BEGIN; {} {} COMMIT", update("1"), insert("a", "1")), error),
        (Ok(()), Err(error)) => {
            (second, format!("BEGIN; {} {} COMMIT", insert("a", "2"), update("2")), error)
        }
        other => panic!("one of them, not {other:?}"),
    };
    assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED), "{error}");
    again.batch_execute("ROLLBACK").await.unwrap();
    again.batch_execute(&whole).await.unwrap();
    let texts = published(&world).await;
    assert_eq!((texts.len(), texts.last()), (2, Some(&state(&judge).await)), "{texts:?}");
    world.end().await;
}

/// The number of an event is drawn before the wait for its key.
#[tokio::test]
async fn strict_order_is_the_order_of_those_who_waited() {
    let Some(world) = world(true).await else { return };
    let judge = world.connect().await;
    let ((first, _), (second, pid)) = (connect(&world).await, connect(&world).await);
    first.batch_execute(&format!("BEGIN; {}", insert("a", "1"))).await.unwrap();
    let appended = tokio::spawn(async move { second.batch_execute(&insert("a", "3")).await });
    waits(&judge, pid).await;
    // Another key does not wait.
    judge.batch_execute(&insert("b", "other")).await.unwrap();
    first.batch_execute(&format!("{} COMMIT", insert("a", "2"))).await.unwrap();
    appended.await.unwrap().unwrap();
    let mut texts = published(&world).await;
    texts.retain(|text| text != "other");
    assert_eq!(texts, ["1", "2", "3"]);
    world.end().await;
}

/// Where the ring of tables goes on meanwhile, the event cannot follow, and its transaction is run again.
#[tokio::test]
async fn strict_order_at_the_end_of_a_table_is_a_failure_to_retry() {
    let Some(world) = world(true).await else { return };
    let judge = world.connect().await;
    judge.batch_execute("SELECT setval('semel_outbox_seq', (1 << 20) - 3)").await.unwrap();
    let ((first, _), (second, pid)) = (connect(&world).await, connect(&world).await);
    first.batch_execute(&format!("BEGIN; {}", insert("a", "1"))).await.unwrap();
    let appended = tokio::spawn(async move {
        let result = second.batch_execute(&insert("a", "3")).await;
        (second, result)
    });
    waits(&judge, pid).await;
    first.batch_execute(&format!("{} COMMIT", insert("a", "2"))).await.unwrap();
    let (second, result) = appended.await.unwrap();
    assert_eq!(result.unwrap_err().code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
    second.batch_execute(&insert("a", "3")).await.unwrap();
    assert_eq!(published(&world).await, ["1", "2", "3"]);
    world.end().await;
}

#[tokio::test]
async fn strict_order_is_switched_off_again() {
    let Some(world) = world(true).await else { return };
    let pool = world.pool(2).await;
    // The way semel appends, with a key that is taken once.
    let mut tx = pool.begin().await.unwrap();
    append_tx(&mut tx, &event("a", "1").once(semel::Key::new("first").unwrap())).await.unwrap();
    tx.commit().await.unwrap();
    let noted =
        "SELECT count(*) FROM semel_outbox o JOIN semel_outbox_key k ON k.key = 'first' AND k.seq = o.seq";
    let judge = world.connect().await;
    assert_eq!(judge.query_one(noted, &[]).await.unwrap().get::<_, i64>(0), 1);
    for _ in 0..2 {
        outbox::strict_order(&world.url(), false).await.unwrap();
    }
    let (held, other) = (world.connect().await, world.connect().await);
    held.batch_execute(&format!("BEGIN; {}", insert("a", "2"))).await.unwrap();
    other.batch_execute(&insert("a", "3")).await.unwrap();
    held.batch_execute("COMMIT").await.unwrap();
    assert_eq!(published(&world).await, ["1", "2", "3"]);
    world.end().await;
}
