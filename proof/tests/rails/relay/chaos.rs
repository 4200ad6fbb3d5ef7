//! Writers that commit out of order, roll back and hang, relays that die and compete, a sink that fails.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use semel::outbox::{Duplicates, append_all_tx, append_tx};
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Executor, Row};

use crate::relay::sink::TestSink;
use crate::relay::world::{Postgres, Running, event, quick, until};

const KEYS: usize = 200;
const WRITERS: usize = 16;

/// One transaction: a few keys, each with its own counter, so that the table knows what must come in which order.
async fn write(pool: &PgPool) {
    let mut keys: Vec<usize> = (0..fastrand::usize(1..4)).map(|_| fastrand::usize(0..KEYS)).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut tx = pool.begin().await.unwrap();
    if fastrand::bool() {
        // Older than the holder of the lock before it.
        tx.execute("SELECT pg_current_xact_id()").await.unwrap();
    }
    let mut events = Vec::new();
    for key in keys {
        let add = format!("UPDATE counter SET n = n + 1 WHERE key = 'k{key}' RETURNING n");
        let n: i64 = tx.fetch_one(AssertSqlSafe(add)).await.unwrap().get(0);
        let event = event(&format!("k{key}"), &n.to_string());
        if fastrand::bool() {
            append_tx(&mut tx, &event).await.unwrap();
        } else {
            events.push(event);
        }
    }
    append_all_tx(&mut tx, &events, Duplicates::Refuse).await.unwrap();
    match fastrand::u32(0..20) {
        0 => tokio::time::sleep(Duration::from_millis(fastrand::u64(50..300))).await,
        1..6 => tokio::time::sleep(Duration::from_millis(fastrand::u64(1..10))).await,
        _ => {}
    }
    if fastrand::u32(0..5) == 0 {
        tx.rollback().await.unwrap();
    } else {
        tx.commit().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prove: random writers and crashes"]
async fn nothing_is_lost_and_nothing_is_overtaken() {
    let Some(world) = Postgres::new().await else { return };
    let pool = world.pool(16).await;
    let tables = format!(
        "CREATE TABLE counter (key text PRIMARY KEY, n bigint NOT NULL);
         INSERT INTO counter SELECT 'k' || n, 0 FROM generate_series(0, {}) n",
        KEYS - 1
    );
    sqlx::raw_sql(AssertSqlSafe(tables)).execute(&pool).await.unwrap();
    let lease = Duration::from_millis(500);
    let options = world.options().batch_max(50, 1 << 20);
    let outbox = options.clone().lease(lease).open().await.unwrap();
    let sink = TestSink::default();
    sink.state().fail_percent = 3;
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..WRITERS {
        let (pool, over) = (pool.clone(), over.clone());
        tasks.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                write(&pool).await;
            }
        }));
    }
    // Two places where a relay runs, dies, leaves and comes again.
    for _ in 0..2 {
        let (outbox, sink, over) = (outbox.clone(), sink.clone(), over.clone());
        tasks.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let relay = Running::start(outbox.source(), &sink, quick().attempts_max(1_000));
                tokio::time::sleep(Duration::from_millis(fastrand::u64(20..900))).await;
                if fastrand::bool() {
                    relay.kill().await;
                } else {
                    relay.stop().await;
                }
            }
        }));
    }
    tokio::time::sleep(Duration::from_secs(8)).await;
    let client = world.connect().await;
    until("enough is committed", async || {
        let sum = client.query_one("SELECT sum(n)::bigint FROM counter", &[]).await.unwrap();
        sum.get::<_, i64>(0) > 500
    })
    .await;
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    sink.state().fail_percent = 0;
    let rows = sqlx::query("SELECT key, n FROM counter WHERE n > 0").fetch_all(&pool).await.unwrap();
    let committed: HashMap<String, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    // At last one with time to keep its lease.
    let relay = Running::start(options.open().await.unwrap().source(), &sink, quick());
    let begun = Instant::now();
    sink.wait_for(usize::try_from(committed.values().sum::<i64>()).unwrap()).await;
    relay.stop().await;
    let by_key = sink.first_of_each();
    assert!(committed.values().sum::<i64>() > 500, "{committed:?}");
    assert_eq!(by_key.len(), committed.len());
    for (key, n) in &committed {
        assert_eq!(by_key[key], (1..=*n).map(|n| n.to_string()).collect::<Vec<_>>(), "{key}");
    }
    assert!(begun.elapsed() < Duration::from_secs(180));
    pool.close().await;
    world.end().await;
}
