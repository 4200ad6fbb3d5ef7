//! What each isolation level does with a duplicate.

use std::time::Duration;

use semel::tx::{Once, TxError, once_tx};

use crate::tx::world::{World, asked, book, intent};

#[tokio::test]
async fn a_duplicate_with_an_older_snapshot_has_to_retry_the_transaction() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(4).await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let begin = || pool.begin_with(sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}")));
        let key = level.replace(' ', "-");
        let mut late = begin().await.unwrap();
        // Its snapshot is taken here, before the first commits.
        sqlx::query("SELECT count(*) FROM payment").execute(&mut *late).await.unwrap();
        let mut first = begin().await.unwrap();
        let paid =
            once_tx(&mut first, &intent(&key), asked(1), async |tx| book(tx, &key, 1).await).await.unwrap();
        first.commit().await.unwrap();
        let insert = async |tx: &mut sqlx::PgConnection| {
            let insert = "INSERT INTO payment (name, cents) VALUES ($1, 1) RETURNING id";
            sqlx::query_scalar::<_, i64>(insert).bind(&key).fetch_one(&mut *tx).await
        };
        let answer = once_tx(&mut late, &intent(&key), asked(1), insert).await;
        assert!(matches!(&answer, Err(TxError::Retry(_))), "{level}: {answer:?}");
        assert!(answer.unwrap_err().to_string().contains("run the whole transaction again"));
        late.rollback().await.unwrap();
        // The whole transaction again: a newer snapshot, so a replay.
        let mut again = begin().await.unwrap();
        let replay = once_tx(&mut again, &intent(&key), asked(1), insert).await.unwrap();
        again.commit().await.unwrap();
        assert_eq!((replay.value, replay.replayed), (paid.value, true), "{level}");
        assert_eq!(world.payments(&key).await, 1, "{level}");
    }
    pool.close().await;
    world.end().await;
}

#[tokio::test]
async fn at_every_level_duplicates_at_once_make_one_row() {
    let Some(world) = World::new().await else { return };
    let pool = world.pool(16).await;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let tasks: Vec<_> = (0..64)
            .map(|task: usize| {
                let pool = pool.clone();
                tokio::spawn(async move {
                    let key = format!("{}-{}", level.replace(' ', "-"), task / 8);
                    for _ in 0..50 {
                        let begin = sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
                        let mut tx = pool.begin_with(begin).await.unwrap();
                        let work = async |tx: &mut sqlx::PgConnection| {
                            let insert = "INSERT INTO payment (name, cents) VALUES ($1, 1) RETURNING id";
                            sqlx::query_scalar::<_, i64>(insert).bind(&key).fetch_one(&mut *tx).await
                        };
                        let once = Once::new(&intent(&key), asked(1)).wait(Duration::from_secs(60));
                        match once.run_tx(&mut tx, work).await {
                            Ok(reply) => match tx.commit().await {
                                Ok(()) => return reply.value,
                                // Serializable transactions may also fail in the commit.
                                Err(error) => assert!(error.to_string().contains("serialize"), "{error}"),
                            },
                            Err(TxError::Retry(_)) => tx.rollback().await.unwrap(),
                            Err(TxError::Work(error)) => {
                                assert!(error.to_string().contains("serialize"), "{error}");
                                tx.rollback().await.unwrap();
                            }
                            Err(error) => panic!("{level}: {error}"),
                        }
                    }
                    panic!("{level}: fifty tries were not enough");
                })
            })
            .collect();
        let mut values = Vec::new();
        for task in tasks {
            values.push(task.await.unwrap());
        }
        assert!(values.chunks(8).all(|same| same.iter().all(|value| *value == same[0])), "{level}");
        let rows = format!("SELECT count(*) FROM payment WHERE name LIKE '{}%'", level.replace(' ', "-"));
        assert_eq!(world.count(&rows).await, 8, "{level}");
    }
    pool.close().await;
    world.end().await;
}
