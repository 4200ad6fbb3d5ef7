//! Messages handled in the caller's transaction, on PostgreSQL, MariaDB and MySQL.

use semel::inbox::Identity;

/// A message with an id of its own. Every second one is a UUID.
pub fn message(n: usize) -> Identity {
    let id =
        if n.is_multiple_of(2) { format!("order-{n}") } else { uuid::Uuid::from_u128(n as u128).to_string() };
    Identity::new("payments", &id).unwrap()
}

/// The same laws on each database: they differ in the names of their types and in how a parameter is written.
macro_rules! laws {
    ($name:ident, $world:ident $(on $server:ident)?, $dialect:expr, $insert:literal, $table:literal) => {
        mod $name {
            use std::time::Duration;

            use futures_util::future::join_all;
            use semel::inbox::{BATCH_MESSAGES_MAX, Handled, Inbox, schema};
            use semel::tx::TxError;
            use semel::tx::driver::Dialect;

            use super::message;
            use crate::outbox::world::$world;

            async fn world() -> Option<$world> {
                $world::with($(testkit::services::Service::$server,)? &format!("{}\n{}", schema($dialect), $table)).await
            }

            macro_rules! numbers {
                ($query:literal, $at:expr) => {{
                    let rows: Vec<i64> = sqlx::query_scalar($query).fetch_all($at).await.unwrap();
                    rows
                }};
            }

            #[tokio::test]
            async fn a_message_is_handled_once_and_a_rollback_leaves_nothing() {
                let Some(world) = world().await else { return };
                let pool = world.pool(16).await;
                let inbox = Inbox::new("mail").unwrap().keep_results();
                for (n, commits) in [(1, false), (2, true), (3, true)] {
                    let mut tx = pool.begin().await.unwrap();
                    let handled = inbox
                        .handle_tx(&mut tx, &message(7), async |tx| {
                            sqlx::query($insert).bind(7_i64).execute(tx).await.map(|_| n)
                        })
                        .await
                        .unwrap();
                    let wanted = if n == 3 { Handled::Already(Some(2)) } else { Handled::Now(n) };
                    assert_eq!(handled, wanted);
                    if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
                }
                assert_eq!(numbers!("SELECT n FROM effect", &pool), [7]);
                // The work's own error is returned, and after the rollback the message is as fresh as before.
                let mut tx = pool.begin().await.unwrap();
                let failed = inbox.handle_tx(&mut tx, &message(8), async |_| Err::<(), _>("no")).await;
                assert!(matches!(failed, Err(TxError::Work("no"))), "{failed:?}");
                tx.rollback().await.unwrap();
                assert_eq!(numbers!("SELECT count(*) FROM semel_inbox", &pool), [1]);
                let times = numbers!(
                    "SELECT ended_at - began_at FROM semel_inbox_batch WHERE ended_at IS NOT NULL",
                    &pool
                );
                assert!(times.len() == 1 && (0..60_000).contains(&times[0]), "{times:?}");
                world.end().await;
            }

            /// Two consumers get the same messages, one by one and many at once, and the first of them all again. What it did
            /// wrong, if anything.
            async fn judged(inbox_of: fn(&str) -> Inbox) -> Option<Result<(), String>> {
                let world = world().await?;
                let pool = world.pool(16).await;
                let many: Vec<_> = (1..=40).map(message).collect();
                for (consumer, effects) in [("mail", 0_i64), ("audit", 1_000), ("mail", 0)] {
                    let inbox = inbox_of(consumer);
                    let mut tx = pool.begin().await.unwrap();
                    let work =
                        async |tx: &mut _| sqlx::query($insert).bind(effects).execute(tx).await.map(drop);
                    inbox.handle_tx(&mut tx, &message(0), work).await.unwrap();
                    let marked = inbox.mark_all_tx(&mut tx, &many).await.unwrap();
                    for at in marked.fresh() {
                        let n = effects + 1 + i64::try_from(at).unwrap();
                        sqlx::query($insert).bind(n).execute(&mut *tx).await.unwrap();
                    }
                    marked.end_tx(&mut tx).await.unwrap();
                    tx.commit().await.unwrap();
                }
                let effects = numbers!("SELECT n FROM effect ORDER BY n", &pool);
                world.end().await;
                for (consumer, first) in [("mail", 0), ("audit", 1_000)] {
                    let did: Vec<i64> =
                        effects.iter().copied().filter(|n| (first..first + 1_000).contains(n)).collect();
                    if did != (first..=first + 40).collect::<Vec<_>>() {
                        return Some(Err(format!("{consumer} did {} things for 41 messages", did.len())));
                    }
                }
                Some(Ok(()))
            }

            #[tokio::test]
            async fn each_consumer_has_marks_of_its_own() {
                let Some(judged) = judged(|consumer| Inbox::new(consumer).unwrap()).await else { return };
                assert_eq!(judged, Ok(()));
            }

            /// What inboxes often are: a table of the ids of messages, without the consumer that handled them.
            #[tokio::test]
            async fn marks_that_all_consumers_share_are_caught() {
                let Some(judged) = judged(|_| Inbox::new("everybody").unwrap()).await else { return };
                assert_eq!(judged, Err("audit did 0 things for 41 messages".to_owned()));
            }

            #[tokio::test]
            async fn a_batch_says_which_are_fresh_and_a_repeat_within_it_is_not() {
                let Some(world) = world().await else { return };
                let pool = world.pool(16).await;
                let inbox = Inbox::new("mail").unwrap();
                let batch = |numbers: &[usize]| numbers.iter().map(|n| message(*n)).collect::<Vec<_>>();
                let mut tx = pool.begin().await.unwrap();
                let marked = inbox.mark_all_tx(&mut tx, &batch(&[5, 3, 5, 9])).await.unwrap();
                assert_eq!(marked.fresh().collect::<Vec<_>>(), [0, 1, 3]);
                marked.end_tx(&mut tx).await.unwrap();
                tx.commit().await.unwrap();
                let mut tx = pool.begin().await.unwrap();
                let many: Vec<usize> = (0..700).collect();
                let marked = inbox.mark_all_tx(&mut tx, &batch(&many)).await.unwrap();
                let known = [3, 5, 9];
                assert!((0..700).all(|n| marked.is_fresh(n) != known.contains(&n)));
                marked.end_tx(&mut tx).await.unwrap();
                tx.commit().await.unwrap();
                assert_eq!(numbers!("SELECT count(*) FROM semel_inbox", &pool), [700]);
                let mut tx = pool.begin().await.unwrap();
                assert_eq!(inbox.mark_all_tx(&mut tx, &batch(&[])).await.unwrap().fresh().count(), 0);
                let refused = inbox.mark_all_tx(&mut tx, &vec![message(1); BATCH_MESSAGES_MAX + 1]).await;
                assert!(matches!(refused, Err(TxError::Value { .. })), "{refused:?}");
                drop(tx);
                world.end().await;
            }

            /// Eight consumers get the same messages in different orders, few and many at a time, some roll back, and all try
            /// again.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn of_many_at_once_one_handles_each() {
                let Some(world) = world().await else { return };
                let pool = world.pool(16).await;
                let consumers = (0..8).map(|consumer: u64| {
                    let pool = pool.clone();
                    tokio::spawn(async move {
                        let (inbox, mut random) =
                            (Inbox::new("mail").unwrap(), fastrand::Rng::with_seed(consumer));
                        let mut numbers: Vec<usize> = (0..120).collect();
                        random.shuffle(&mut numbers);
                        for chunk in numbers.chunks(if consumer % 2 == 0 { 10 } else { 40 }) {
                            for attempt in 0.. {
                                assert!(attempt < 50, "it never gets through");
                                let mut tx = pool.begin().await.unwrap();
                                let messages: Vec<_> = chunk.iter().map(|n| message(*n)).collect();
                                let marked = match inbox.mark_all_tx(&mut tx, &messages).await {
                                    Ok(marked) => marked,
                                    Err(error) if error.may_retry() => continue,
                                    Err(error) => panic!("{error}"),
                                };
                                for at in marked.fresh() {
                                    let n = i64::try_from(chunk[at]).unwrap();
                                    sqlx::query($insert).bind(n).execute(&mut *tx).await.unwrap();
                                }
                                if attempt == 0 && random.bool() {
                                    tx.rollback().await.unwrap();
                                    continue;
                                }
                                marked.end_tx(&mut tx).await.unwrap();
                                tx.commit().await.unwrap();
                                break;
                            }
                        }
                    })
                });
                for ended in join_all(consumers).await {
                    ended.unwrap();
                }
                assert_eq!(
                    numbers!("SELECT n FROM effect ORDER BY n", &pool),
                    (0..120).collect::<Vec<i64>>()
                );
                world.end().await;
            }

            #[tokio::test]
            async fn what_is_older_than_the_window_is_forgotten_in_bites_and_nothing_else() {
                let Some(world) = world().await else { return };
                let pool = world.pool(16).await;
                for consumer in ["mail", "audit"] {
                    let inbox = Inbox::new(consumer).unwrap().keep_results();
                    for n in 0..120 {
                        let mut tx = pool.begin().await.unwrap();
                        inbox.handle_tx(&mut tx, &message(n), async |_| Ok::<_, ()>(n)).await.unwrap();
                        tx.commit().await.unwrap();
                    }
                }
                let mail = Inbox::new("mail").unwrap();
                let mut tx = pool.begin().await.unwrap();
                assert_eq!(mail.prune_tx(&mut tx).await.unwrap(), 0, "they are within the window");
                tx.rollback().await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
                let mail = mail.window(Duration::from_millis(1));
                let mut bites = Vec::new();
                loop {
                    let mut tx = pool.begin().await.unwrap();
                    bites.push(mail.prune_tx(&mut tx).await.unwrap());
                    tx.commit().await.unwrap();
                    if bites.last() == Some(&0) {
                        break;
                    }
                }
                assert_eq!(bites, [100, 20, 0]);
                assert_eq!(numbers!("SELECT count(*) FROM semel_inbox", &pool), [120]);
                assert_eq!(numbers!("SELECT count(*) FROM semel_inbox_result", &pool), [120]);
                assert_eq!(numbers!("SELECT count(*) FROM semel_inbox_batch", &pool), [120]);
                world.end().await;
            }
        }
    };
}

laws!(
    postgres,
    Postgres,
    Dialect::Postgres,
    "INSERT INTO effect (n) VALUES ($1)",
    "CREATE TABLE effect (n bigint NOT NULL);"
);

laws!(
    mariadb,
    Mysql on Mariadb,
    Dialect::Mysql,
    "INSERT INTO effect (n) VALUES (?)",
    "CREATE TABLE effect (n bigint NOT NULL);"
);

laws!(
    mysql,
    Mysql on Mysql,
    Dialect::Mysql,
    "INSERT INTO effect (n) VALUES (?)",
    "CREATE TABLE effect (n bigint NOT NULL);"
);

mod swallowed {
    use semel::inbox::{Inbox, schema};
    use semel::tx::TxError;
    use semel::tx::driver::Dialect;
    use testkit::services::Service;

    use super::message;
    use crate::outbox::world::{Mysql, Postgres};

    /// A deadlock rolls MySQL's whole transaction back, and what comes after it would be committed statement by statement.
    /// Here a plain rollback stands for it: work that goes on as if nothing had happened.
    async fn swallowed_on(server: Service) {
        let Some(world) = Mysql::with(server, schema(Dialect::Mysql)).await else { return };
        let inbox = Inbox::new("mail").unwrap().keep_results();
        let mut connection = world.pool.acquire().await.unwrap();
        sqlx::raw_sql("BEGIN").execute(&mut *connection).await.unwrap();
        let result = inbox
            .handle_tx(&mut *connection, &message(1), async |tx| {
                sqlx::raw_sql("ROLLBACK").execute(tx).await.map(drop)
            })
            .await;
        assert!(matches!(result, Err(TxError::Retry(_) | TxError::Database(_))), "{result:?}");
        for table in ["semel_inbox", "semel_inbox_result", "semel_inbox_batch"] {
            let count = format!("SELECT count(*) FROM {table}");
            let left: i64 =
                sqlx::query_scalar(sqlx::AssertSqlSafe(count)).fetch_one(&world.pool).await.unwrap();
            assert_eq!(left, 0, "{table}");
        }
        drop(connection);
        world.end().await;
    }

    #[tokio::test]
    async fn on_mariadb_work_that_swallows_a_deadlock_is_not_taken_for_done() {
        swallowed_on(Service::Mariadb).await;
    }

    #[tokio::test]
    async fn on_mysql_work_that_swallows_a_deadlock_is_not_taken_for_done() {
        swallowed_on(Service::Mysql).await;
    }

    #[tokio::test]
    async fn on_postgres_a_batch_in_a_transaction_that_has_failed_does_not_end() {
        let Some(world) = Postgres::with(schema(Dialect::Postgres)).await else { return };
        let (pool, inbox) = (world.pool(1).await, Inbox::new("mail").unwrap());
        let mut tx = pool.begin().await.unwrap();
        let marked = inbox.mark_all_tx(&mut tx, &[message(1)]).await.unwrap();
        // Swallowed: the driver would say that the commit worked.
        let _ = sqlx::query("SELECT 1 / 0").execute(&mut *tx).await;
        let result = marked.end_tx(&mut tx).await;
        assert!(result.is_err(), "{result:?}");
        drop(tx);
        world.end().await;
    }
}

mod over_tokio_postgres {
    use semel::inbox::{Handled, Inbox, schema};
    use semel::tx::TxError;
    use semel::tx::driver::Dialect;

    use super::message;
    use crate::outbox::world::Postgres;

    #[tokio::test]
    async fn the_other_driver_does_the_same() {
        let Some(world) = Postgres::with(schema(Dialect::Postgres)).await else { return };
        let (mut client, inbox) = (world.connect().await, Inbox::new("mail").unwrap());
        for n in 0..2 {
            let mut tx = client.transaction().await.unwrap();
            let handled = inbox.handle_tx(&mut tx, &message(1), async |_| Ok::<_, ()>(n)).await.unwrap();
            assert_eq!(handled, if n == 0 { Handled::Now(0) } else { Handled::Already(None) });
            tx.commit().await.unwrap();
        }
        world.end().await;
    }

    /// The snapshot is older than the mark: the second one must not go on in it.
    #[tokio::test]
    async fn under_repeatable_read_the_second_has_to_begin_again() {
        let Some(world) = Postgres::with(schema(Dialect::Postgres)).await else { return };
        let (mut first, mut second) = (world.connect().await, world.connect().await);
        let inbox = Inbox::new("mail").unwrap();
        let level = tokio_postgres::IsolationLevel::RepeatableRead;
        let mut late = second.build_transaction().isolation_level(level).start().await.unwrap();
        late.query_one("SELECT count(*) FROM semel_inbox", &[]).await.unwrap();
        let mut tx = first.transaction().await.unwrap();
        inbox.handle_tx(&mut tx, &message(1), async |_| Ok::<_, ()>(())).await.unwrap();
        tx.commit().await.unwrap();
        let result = inbox.handle_tx(&mut late, &message(1), async |_| Err::<(), _>("it ran")).await;
        assert!(matches!(&result, Err(TxError::Retry(_))), "{result:?}");
        drop(late);
        world.end().await;
    }
}
