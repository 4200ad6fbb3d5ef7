//! On MySQL and MariaDB: the numbers of a part become visible in their order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use semel::Key;
use semel::outbox::{AppendError, Appended, Duplicates, Event, append_all_tx, append_tx};
use sqlx::Row;

use super::SERVER;
use crate::outbox::world::{Mysql, event};
use crate::tx::mysql_world::{soon, until_waiting};

#[tokio::test]
async fn an_event_is_there_only_after_the_commit_and_once_per_key() {
    let Some(world) = Mysql::new(SERVER).await else { return };
    let once = |n: usize| event(n).once(Key::new("paid-7").unwrap());
    let count = async || {
        sqlx::query_scalar::<_, i64>("SELECT COUNT(*) FROM semel_outbox")
            .fetch_one(&world.pool)
            .await
            .unwrap()
    };
    let mut tx = world.pool.begin().await.unwrap();
    append_tx(&mut tx, &once(0)).await.unwrap();
    assert_eq!(count().await, 0);
    tx.rollback().await.unwrap();
    let mut tx = world.pool.begin().await.unwrap();
    append_tx(&mut tx, &once(1)).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = world.pool.begin().await.unwrap();
    let refused = append_tx(&mut tx, &once(2)).await.unwrap_err();
    assert!(matches!(refused, AppendError::Duplicate { at: 0 }), "{refused}");
    let done = append_all_tx(&mut tx, &[event(3), once(4), event(5)], Duplicates::Ignore).await.unwrap();
    assert_eq!(done, [Appended::Added, Appended::Already, Appended::Added]);
    tx.commit().await.unwrap();
    assert_eq!(count().await, 3);
    sqlx::query("INSERT INTO semel_outbox (topic, type, payload) VALUES ('t', 'made', '{}')")
        .execute(&world.pool)
        .await
        .unwrap();
    let id: String = sqlx::query_scalar("SELECT id FROM semel_outbox WHERE topic = 't'")
        .fetch_one(&world.pool)
        .await
        .unwrap();
    assert!(id.parse::<uuid::Uuid>().is_ok(), "{id}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lower_and_not_there_yet_never_comes() {
    let Some(world) = Mysql::new(SERVER).await else { return };
    let done = Arc::new(AtomicBool::new(false));
    let reader = {
        let (pool, done) = (world.pool.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            let mut seen: HashMap<i16, Vec<i64>> = HashMap::new();
            loop {
                let last = done.load(Ordering::SeqCst);
                let rows = sqlx::query("SELECT part, n FROM semel_outbox ORDER BY part, n")
                    .fetch_all(&pool)
                    .await
                    .unwrap();
                let mut now: HashMap<i16, Vec<i64>> = HashMap::new();
                for row in &rows {
                    now.entry(row.get(0)).or_default().push(row.get(1));
                }
                for (part, before) in &seen {
                    // What was there is a prefix of what is there: nothing came in below it.
                    assert_eq!(now[part][..before.len()], before[..], "part {part}");
                }
                seen = now;
                if last {
                    return rows.len();
                }
            }
        })
    };
    let writers: Vec<_> = (0..8)
        .map(|writer: usize| {
            let pool = world.pool.clone();
            tokio::spawn(async move {
                let mut committed = 0;
                for n in 0..40 {
                    // One key a transaction: two calls in different orders may deadlock, which is the caller's to retry.
                    let keyed =
                        |n: usize| -> Event { event(n).key(&format!("k{}", (writer + n) % 5)).unwrap() };
                    let mut tx = pool.begin().await.unwrap();
                    append_all_tx(&mut tx, &[keyed(n), keyed(n)], Duplicates::Refuse).await.unwrap();
                    if n % 4 == 0 {
                        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                    }
                    if n % 7 == 0 {
                        tx.rollback().await.unwrap();
                    } else {
                        tx.commit().await.unwrap();
                        committed += 2;
                    }
                }
                committed
            })
        })
        .collect();
    let mut committed = 0;
    for writer in writers {
        committed += writer.await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    assert_eq!(reader.await.unwrap(), committed);
    world.end().await;
}

/// Each has an event in each of three parts, in opposite orders, and the part in the middle is held by a third one
/// until both wait: without an order of their own they would wait for each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_with_several_keys_do_not_deadlock_and_do_not_stop_others() {
    let Some(world) = Mysql::new(SERVER).await else { return };
    // One key for each part, as the server sees it.
    let mut keys = vec![String::new(); 16];
    for n in 0..400 {
        let key = format!("schlüssel-{n}");
        let part = sqlx::query_scalar("SELECT CAST(CRC32(?) % 16 AS SIGNED)").bind(&key);
        let part: i64 = part.fetch_one(&world.pool).await.unwrap();
        keys[usize::try_from(part).unwrap()] = key;
    }
    assert!(keys.iter().all(|key| !key.is_empty()));
    let of = |part: usize| event(part).key(&keys[part]).unwrap();
    let mut holder = world.pool.begin().await.unwrap();
    append_tx(&mut holder, &of(7)).await.unwrap();
    let both: Vec<_> = [[of(12), of(7), of(3)], [of(3), of(7), of(12)]]
        .into_iter()
        .map(|events| {
            let pool = world.pool.clone();
            tokio::spawn(async move {
                let mut tx = pool.begin().await.unwrap();
                append_all_tx(&mut tx, &events, Duplicates::Refuse).await?;
                tx.commit().await.unwrap();
                Ok::<_, AppendError>(())
            })
        })
        .collect();
    until_waiting(&world.pool, 2).await;
    // Parts below, between and above those they need are free.
    for part in [0, 5, 9, 15] {
        let mut tx = world.pool.begin().await.unwrap();
        soon(append_tx(&mut tx, &of(part))).await.unwrap();
        tx.commit().await.unwrap();
    }
    holder.commit().await.unwrap();
    for one in both {
        soon(one).await.unwrap().unwrap();
    }
    let rows: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM semel_outbox").fetch_one(&world.pool).await.unwrap();
    assert_eq!(rows, 11);
    world.end().await;
}
