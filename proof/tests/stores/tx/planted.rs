//! Bugs planted into the functions in the database, and the checks that catch them.

use std::collections::BTreeMap;
use std::time::Duration;

use semel::store::postgres::SQL;
use semel::tx::Once;

use crate::tx::world::{World, asked, intent};

const LOCK: &str = "locked := pg_try_advisory_xact_lock(p_lock);\n    -- All in one";
const FENCE: &str = "    WHERE i.epoch = p_seen AND (p_carry = 0 OR i.state NOT IN (2, 3))\n";
const SNAPSHOT: &str = "    OUT outcome     bytea\n)\nLANGUAGE plpgsql VOLATILE";
/// Between the statement's snapshot and the lock there is time for others to commit.
const SLOW_LOCK: &str =
    "PERFORM pg_sleep(0.1);\n    locked := pg_try_advisory_xact_lock(p_lock);\n    -- All in one";

fn planted(bugs: &[(&str, &str)]) -> String {
    bugs.iter().fold(SQL.to_owned(), |sql, (sound, bug)| {
        assert_eq!(sql.matches(sound).count(), 1, "{sound}");
        sql.replace(sound, bug)
    })
}

/// How long the work takes, in seconds: nothing much, or so long that duplicates meet also on a busy machine.
const QUICK: f64 = 0.02;
const SLOW: f64 = 0.2;

/// What duplicates from many tasks find: `Err` says what is wrong.
async fn judge(sql: &str, work: f64) -> Option<Result<(), String>> {
    let world = World::with(sql).await?;
    let pool = world.pool(32).await;
    let tasks: Vec<_> = (0..32)
        .map(|task: usize| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let key = format!("k{}", task / 8);
                let mut tx = pool.begin().await.unwrap();
                let intent = intent(&key);
                // Longer than anybody waits here, also on a busy machine.
                let once = Once::new(&intent, asked(1)).wait(Duration::from_secs(60));
                let paid = once.run_tx(&mut tx, async |tx| {
                    let insert =
                        "INSERT INTO payment (name, cents) SELECT $1, 1 FROM pg_sleep($2) RETURNING id";
                    sqlx::query_scalar::<_, i64>(insert).bind(&key).bind(work).fetch_one(&mut *tx).await
                });
                let paid = paid.await.map_err(|error| error.to_string())?.value;
                tx.commit().await.map_err(|error| error.to_string())?;
                Ok::<_, String>((key, paid))
            })
        })
        .collect();
    let (mut wrong, mut values) = (Ok(()), BTreeMap::new());
    for task in tasks {
        match task.await.unwrap() {
            Ok((key, value)) if *values.entry(key.clone()).or_insert(value) != value => {
                wrong = Err(format!("two answers for {key}"));
            }
            Ok(_) => {}
            Err(error) => wrong = Err(error),
        }
    }
    let rows = world.count("SELECT count(*) FROM payment").await;
    if rows != 4 {
        wrong = Err(format!("{rows} rows for 4 intents"));
    }
    pool.close().await;
    world.end().await;
    Some(wrong)
}

#[tokio::test]
async fn what_is_sound_passes_however_slow_the_lock() {
    for sql in [SQL.to_owned(), planted(&[(LOCK, SLOW_LOCK)])] {
        let Some(judged) = judge(&sql, QUICK).await else { return };
        assert_eq!(judged, Ok(()));
    }
}

#[tokio::test]
async fn without_the_lock_duplicates_run_into_each_other() {
    let free = LOCK.replace("pg_try_advisory_xact_lock(p_lock)", "true");
    let Some(judged) = judge(&planted(&[(LOCK, &free)]), SLOW).await else { return };
    // The record's epoch still keeps the second from committing: an error instead of a replay.
    assert!(judged.clone().unwrap_err().contains("in the meantime"), "{judged:?}");
}

#[tokio::test]
async fn without_lock_and_fence_there_are_two_rows() {
    let free = LOCK.replace("pg_try_advisory_xact_lock(p_lock)", "true");
    let Some(judged) = judge(&planted(&[(LOCK, &free), (FENCE, "")]), SLOW).await else { return };
    assert!(judged.clone().unwrap_err().contains("rows for 4 intents"), "{judged:?}");
}

#[tokio::test]
async fn with_the_snapshot_of_before_the_lock_the_answer_is_not_seen() {
    let stable = SNAPSHOT.replace("VOLATILE", "STABLE");
    let sql = planted(&[(LOCK, SLOW_LOCK), (SNAPSHOT, &stable)]);
    let Some(judged) = judge(&sql, QUICK).await else { return };
    assert!(judged.is_err(), "{judged:?}");
}
