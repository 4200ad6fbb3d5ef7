//! `once_tx` in sqlx transactions on MySQL and MariaDB: duplicates, bounds, deadlocks, isolation, and strangers.

use std::time::Duration;

use semel::store::mysql::MysqlStore;
use semel::store::{Claim, Claimed, Finish, Finished, Store};
use semel::tx::driver::DriverErrorKind;
use semel::tx::{Once, TxError, TxReply, once_tx};
use semel::{Effect, Outcome, Owner, Retention, Verdict};
use sqlx::mysql::MySqlPool;
use sqlx::{AssertSqlSafe, Executor, MySql, MySqlConnection, Transaction};

use super::SERVER;
use crate::tx::mysql_world::{World, book, claim_of, intent, soon};
use crate::tx::world::asked;

type Paid = Result<TxReply<i64>, TxError<sqlx::Error>>;

async fn pay_in(mut tx: Transaction<'static, MySql>, key: &str, cents: i64) -> Paid {
    // Longer than a busy machine takes for a commit.
    let once = Once::new(&intent(key), asked(cents)).wait(Duration::from_secs(60));
    let paid = once.run_tx(&mut tx, async |tx| book(tx, key, cents).await).await;
    match paid {
        Ok(reply) => tx.commit().await.map(|()| reply).map_err(TxError::Work),
        Err(error) => {
            tx.rollback().await.unwrap();
            Err(error)
        }
    }
}

async fn pay(pool: &MySqlPool, key: &str, cents: i64) -> Paid {
    pay_in(pool.begin().await.unwrap(), key, cents).await
}

#[tokio::test]
async fn the_first_runs_and_every_retry_gets_its_value() {
    let Some(world) = World::new(SERVER).await else { return };
    let first = pay(&world.pool, "a", 42).await.unwrap();
    let again = pay(&world.pool, "a", 42).await.unwrap();
    assert_eq!((first.replayed, again.replayed), (false, true));
    assert_eq!(again.value, first.value);
    assert!(matches!(pay(&world.pool, "a", 43).await, Err(TxError::Mismatch)));
    assert_eq!(world.payments("a").await, 1);
    assert_eq!(world.count("SELECT COUNT(*) FROM semel_fence").await, 0);
    let record = MysqlStore::open(&world.url).await.unwrap().get(intent("a").id()).await.unwrap().unwrap();
    assert_eq!((record.intent, record.attempts, record.head.effect), (intent("a"), 1, Effect::Atomic));
    world.end().await;
}

#[tokio::test]
async fn an_outcome_comes_back_byte_for_byte() {
    let Some(world) = World::new(SERVER).await else { return };
    let given = Outcome::new(201, vec![0u8, 159, 255]).header("location", "/payments/1");
    for replayed in [false, true] {
        let mut tx = world.begin().await;
        let work = async |_: &mut MySqlConnection| Ok::<_, sqlx::Error>(given.clone());
        let reply = once_tx(&mut tx, &intent("a"), asked(1), work).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!((reply.value, reply.replayed), (given.clone(), replayed));
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_from_many_tasks_make_one_row_each() {
    let Some(world) = World::new(SERVER).await else { return };
    for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
        let name = isolation.replace(' ', "-");
        let tasks: Vec<_> = (0..32)
            .map(|task: usize| {
                let (pool, name, isolation) = (world.pool.clone(), name.clone(), isolation.to_owned());
                tokio::spawn(async move {
                    let mut ran = 0;
                    for round in 0..8usize {
                        // Eight tasks at a time ask for the same.
                        let key = format!("{name}-{}", task / 8 * 100 + round);
                        loop {
                            let mut tx = pool.begin().await.unwrap();
                            let set = format!(
                                "COMMIT; SET SESSION TRANSACTION ISOLATION LEVEL {isolation}; START TRANSACTION"
                            );
                            tx.execute(AssertSqlSafe(set)).await.unwrap();
                            match pay_in(tx, &key, 5).await {
                                Ok(reply) => {
                                    ran += usize::from(!reply.replayed);
                                    break;
                                }
                                // A deadlock, or a crowd: run the whole transaction again.
                                Err(error) if error.may_retry() => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                    ran
                })
            })
            .collect();
        let mut ran = 0;
        for task in tasks {
            ran += soon(task).await.unwrap();
        }
        assert_eq!(ran, 32, "{isolation}");
        let made = format!("SELECT COUNT(*) FROM payment WHERE name LIKE '{name}-%'");
        assert_eq!(world.count(&made).await, 32, "{isolation}");
    }
    world.end().await;
}

#[tokio::test]
async fn what_fails_or_is_rolled_back_leaves_nothing_and_may_run_at_once() {
    let Some(world) = World::new(SERVER).await else { return };
    let mut tx = world.begin().await;
    let failed = once_tx(&mut tx, &intent("a"), asked(1), async |tx| {
        book(tx, "a", 1).await?;
        Err::<i64, _>(sqlx::Error::RowNotFound)
    })
    .await;
    assert!(matches!(failed, Err(TxError::Work(sqlx::Error::RowNotFound))));
    tx.rollback().await.unwrap();
    assert_eq!(world.count("SELECT COUNT(*) FROM semel_intent").await, 0);
    assert!(!pay(&world.pool, "a", 2).await.unwrap().replayed);
    assert_eq!(world.payments("a").await, 1);
    world.end().await;
}

#[tokio::test]
async fn a_duplicate_waits_for_the_first_and_gets_its_value_or_runs_after_its_rollback() {
    let Some(world) = World::new(SERVER).await else { return };
    for commits in [true, false] {
        let key = if commits { "kept" } else { "undone" };
        let mut first = world.begin().await;
        let work = async |tx: &mut MySqlConnection| book(tx, key, 1).await;
        let paid = once_tx(&mut first, &intent(key), asked(1), work).await.unwrap();
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                let pool = world.pool.clone();
                tokio::spawn(async move { pay(&pool, key, 1).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(waiting.iter().all(|call| !call.is_finished()));
        if commits {
            first.commit().await.unwrap()
        } else {
            first.rollback().await.unwrap()
        }
        let mut ran = usize::from(commits);
        for call in waiting {
            let reply = soon(call).await.unwrap().unwrap();
            ran += usize::from(!reply.replayed);
            assert!(!commits || reply.value == paid.value);
        }
        assert_eq!((ran, world.payments(key).await), (1, 1));
    }
    world.end().await;
}

#[tokio::test]
async fn a_bound_answers_in_flight_and_the_transaction_goes_on() {
    let Some(world) = World::new(SERVER).await else { return };
    let mut first = world.begin().await;
    let work = async |tx: &mut MySqlConnection| book(tx, "a", 1).await;
    once_tx(&mut first, &intent("a"), asked(1), work).await.unwrap();

    let mut second = world.begin().await;
    second.execute("SET SESSION innodb_lock_wait_timeout = 37").await.unwrap();
    book(&mut second, "before", 1).await.unwrap();
    let once = Once::new(&intent("a"), asked(1)).wait(Duration::ZERO);
    let met = soon(once.run_tx(&mut second, async |tx| book(tx, "a", 1).await)).await;
    assert!(matches!(met, Err(TxError::InFlight { .. })), "{met:?}");
    // The lock that was not had (1205) undid its own statement only, and the caller's bound is back.
    let bound: i64 = sqlx::query_scalar("SELECT CAST(@@innodb_lock_wait_timeout AS SIGNED)")
        .fetch_one(&mut *second)
        .await
        .unwrap();
    assert_eq!(bound, 37);
    book(&mut second, "after", 1).await.unwrap();
    second.commit().await.unwrap();
    first.rollback().await.unwrap();
    assert_eq!((world.payments("before").await, world.payments("after").await), (1, 1));
    assert_eq!(world.payments("a").await, 0);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_ends_the_whole_transaction_and_says_so() {
    let Some(world) = World::new(SERVER).await else { return };
    let work = async |_: &mut MySqlConnection| Ok::<i64, sqlx::Error>(0);
    let (mut one, mut two) = (world.begin().await, world.begin().await);
    book(&mut one, "one", 1).await.unwrap();
    book(&mut two, "two", 1).await.unwrap();
    once_tx(&mut one, &intent("a"), asked(1), work).await.unwrap();
    once_tx(&mut two, &intent("b"), asked(1), work).await.unwrap();
    let (key_b, key_a) = (intent("b"), intent("a"));
    let crossing = async {
        tokio::join!(once_tx(&mut one, &key_b, asked(1), work), once_tx(&mut two, &key_a, asked(1), work))
    };
    let (first, second) = soon(crossing).await;
    let lost = [&first, &second].into_iter().filter(|met| matches!(met, Err(TxError::Retry(_)))).count();
    assert_eq!(lost, 1, "{first:?} and {second:?}");
    let (won, undone) = match (&first, &second) {
        (Ok(_), Err(error)) => {
            assert!(error.to_string().contains("rolled back the whole transaction"));
            one.commit().await.unwrap();
            two.rollback().await.unwrap();
            ("one", "two")
        }
        (Err(error), _) => {
            assert!(error.to_string().contains("rolled back the whole transaction"));
            two.commit().await.unwrap();
            one.rollback().await.unwrap();
            ("two", "one")
        }
        (Ok(_), Ok(_)) => panic!("one of two has to lose"),
    };
    assert_eq!((world.payments(won).await, world.payments(undone).await), (1, 0));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_swallows_a_deadlock_is_not_recorded() {
    let Some(world) = World::new(SERVER).await else { return };
    // A record that is there before, of an attempt that failed: the claim takes it over.
    let store = MysqlStore::open(&world.url).await.unwrap();
    let claim = Claim {
        intent: intent("over"),
        fingerprint: asked(1),
        owner: Owner::random(),
        effect: Effect::Keyed,
        lease_ms: 60_000,
        window: semel::intent::guard_expiry::KeyWindow::ENDLESS,
    };
    let Claimed::Run(ticket) = store.claim(claim).await.unwrap() else { panic!("fresh") };
    store.finish(ticket, Finish::release(Retention::DAY)).await.unwrap();
    for key in ["fresh", "over"] {
        let mut rival = world.begin().await;
        sqlx::query("UPDATE account SET cents = cents + 1 WHERE id = 8").execute(&mut *rival).await.unwrap();
        // More to undo than the other, so that the other is the victim.
        for _ in 0..50 {
            book(&mut rival, "rival", 1).await.unwrap();
        }
        let mut tx = world.begin().await;
        let met = once_tx(&mut tx, &intent(key), asked(1), async |tx| {
            book(tx, key, 1).await?;
            sqlx::query("UPDATE account SET cents = cents + 1 WHERE id = 7").execute(&mut *tx).await?;
            let mine = async {
                let wait = sqlx::query("UPDATE account SET cents = cents + 1 WHERE id = 8");
                wait.execute(&mut *tx).await.map(drop)
            };
            let theirs = async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                let wait = sqlx::query("UPDATE account SET cents = cents + 1 WHERE id = 7");
                wait.execute(&mut *rival).await.map(drop)
            };
            let (mine, theirs) = tokio::join!(mine, theirs);
            assert!(mine.unwrap_err().to_string().contains("1213") && theirs.is_ok());
            // As if nothing had been.
            Ok::<i64, sqlx::Error>(1)
        })
        .await;
        assert!(matches!(met, Err(TxError::Lost)), "{met:?}");
        tx.rollback().await.unwrap();
        rival.rollback().await.unwrap();
        assert_eq!(world.payments(key).await, 0);
        assert!(!pay(&world.pool, key, 1).await.unwrap().replayed, "it may run again");
    }
    world.end().await;
}

#[tokio::test]
async fn a_read_only_transaction_replays_and_runs_nothing() {
    let Some(world) = World::new(SERVER).await else { return };
    let first = pay(&world.pool, "a", 1).await.unwrap();
    let mut tx = world.begin().await;
    tx.execute("COMMIT; START TRANSACTION READ ONLY").await.unwrap();
    let work = async |tx: &mut MySqlConnection| book(tx, "b", 1).await;
    let again = once_tx(&mut tx, &intent("a"), asked(1), work).await.unwrap();
    assert_eq!(again, TxReply { value: first.value, replayed: true });
    let refused = once_tx(&mut tx, &intent("b"), asked(1), work).await;
    let read_only =
        matches!(&refused, Err(TxError::Database(error)) if error.kind() == DriverErrorKind::ReadOnly);
    assert!(read_only, "{refused:?}");
    let bound: i64 = sqlx::query_scalar("SELECT CAST(@@innodb_lock_wait_timeout AS SIGNED)")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    assert_eq!(bound, 50);
    tx.rollback().await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn a_snapshot_older_than_the_answer_replays_all_the_same() {
    let Some(world) = World::new(SERVER).await else { return };
    for isolation in ["REPEATABLE READ", "SERIALIZABLE", "READ COMMITTED"] {
        let mut old = world.begin_with(isolation).await;
        let seen: i64 =
            sqlx::query_scalar("SELECT COUNT(*) FROM account").fetch_one(&mut *old).await.unwrap();
        assert_eq!(seen, 2);
        let first = pay(&world.pool, isolation.split(' ').next().unwrap(), 1).await.unwrap();
        let key = intent(isolation.split(' ').next().unwrap());
        let work = async |tx: &mut MySqlConnection| book(tx, "twice", 1).await;
        let again = once_tx(&mut old, &key, asked(1), work).await.unwrap();
        assert_eq!(again, TxReply { value: first.value, replayed: true }, "{isolation}");
        old.commit().await.unwrap();
    }
    assert_eq!(world.payments("twice").await, 0);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_pass_by_an_open_transaction_and_the_store_sees_it_in_flight() {
    let Some(world) = World::new(SERVER).await else { return };
    // So that the name of the operation is known.
    pay(&world.pool, "known", 1).await.unwrap();
    let store = MysqlStore::open(&world.url).await.unwrap();
    for isolation in ["REPEATABLE READ", "READ COMMITTED"] {
        let key = format!("open-{}", isolation.split(' ').next().unwrap());
        let mut open = world.begin_with(isolation).await;
        let work = async |tx: &mut MySqlConnection| book(tx, &key, 1).await;
        once_tx(&mut open, &intent(&key), asked(1), work).await.unwrap();
        // No gap is locked: other transactions and a whole batch of the store's go by.
        for n in 0..20 {
            let stranger = format!("{key}-{n}");
            assert!(!soon(pay_in(world.begin_with(isolation).await, &stranger, 1)).await.unwrap().replayed);
        }
        let claim = |key: &str| Claim {
            intent: intent(key),
            fingerprint: asked(1),
            owner: Owner::random(),
            effect: Effect::Opaque,
            lease_ms: 60_000,
            window: semel::intent::guard_expiry::KeyWindow::ENDLESS,
        };
        let names: Vec<String> = (0..40).map(|n| format!("store-{key}-{n}")).collect();
        let strangers = futures_util::future::join_all(names.iter().map(|name| store.claim(claim(name))));
        let (strangers, met) = soon(async { tokio::join!(strangers, store.claim(claim(&key))) }).await;
        assert!(strangers.into_iter().all(|met| matches!(met, Ok(Claimed::Run(_)))));
        assert!(matches!(met.unwrap(), Claimed::InFlight(_)));
        open.commit().await.unwrap();
        assert!(matches!(store.claim(claim(&key)).await.unwrap(), Claimed::Replay(_)));
    }
    world.end().await;
}

#[tokio::test]
async fn a_claim_outside_of_a_transaction_keeps_one_inside_out_and_its_outcome_is_replayed() {
    let Some(world) = World::new(SERVER).await else { return };
    let store = MysqlStore::open(&world.url).await.unwrap();
    let claim = Claim {
        intent: intent("a"),
        fingerprint: asked(1),
        owner: Owner::random(),
        effect: Effect::Keyed,
        lease_ms: 60_000,
        window: semel::intent::guard_expiry::KeyWindow::ENDLESS,
    };
    let Claimed::Run(ticket) = store.claim(claim).await.unwrap() else { panic!("fresh") };
    assert!(matches!(soon(pay(&world.pool, "a", 1)).await, Err(TxError::InFlight { .. })));
    let finish = Finish {
        verdict: Verdict::Completed,
        outcome: Some(Outcome::new(200, "77")),
        retention: Retention::DAY,
    };
    store.finish(ticket, finish).await.unwrap();
    assert_eq!(pay(&world.pool, "a", 1).await.unwrap(), TxReply { value: 77, replayed: true });
    assert_eq!(world.payments("a").await, 0);

    // What was given back is taken over, with a higher epoch, and counted.
    let claim = Claim { intent: intent("b"), owner: Owner::random(), ..claim_of("b") };
    let Claimed::Run(ticket) = store.claim(claim).await.unwrap() else { panic!("fresh") };
    store.finish(ticket, Finish::release(Retention::DAY)).await.unwrap();
    assert!(!pay(&world.pool, "b", 1).await.unwrap().replayed);
    let record = store.get(intent("b").id()).await.unwrap().unwrap();
    assert!(record.head.epoch > ticket.epoch && record.attempts == 2, "{record:?}");
    world.end().await;
}

#[tokio::test]
async fn the_callers_last_insert_id_stays_its_own() {
    let Some(world) = World::new(SERVER).await else { return };
    let mut tx = world.begin().await;
    let work = async |tx: &mut MySqlConnection| book(tx, "a", 1).await;
    let paid = once_tx(&mut tx, &intent("a"), asked(1), work).await.unwrap();
    let last: i64 =
        sqlx::query_scalar("SELECT CAST(LAST_INSERT_ID() AS SIGNED)").fetch_one(&mut *tx).await.unwrap();
    assert_eq!(last, paid.value);
    tx.commit().await.unwrap();
    world.end().await;
}

/// The work's error is an answer like any other to a caller that has more to commit.
#[tokio::test]
async fn work_that_fails_in_a_transaction_that_is_committed_leaves_all_as_it_was() {
    let Some(world) = World::new(SERVER).await else { return };
    let store = MysqlStore::open(&world.url).await.unwrap();
    let fails = async |_: &mut MySqlConnection| Err::<i64, _>(sqlx::Error::RowNotFound);
    let mut tx = world.begin().await;
    let failed = once_tx(&mut tx, &intent("fresh"), asked(1), fails).await;
    assert!(matches!(failed, Err(TxError::Work(sqlx::Error::RowNotFound))), "{failed:?}");
    tx.commit().await.unwrap();
    assert_eq!(world.count("SELECT COUNT(*) FROM semel_intent").await, 0);

    // An owner whose lease ended may still bring the true outcome.
    let Claimed::Run(ticket) = store.claim(claim_of("late")).await.unwrap() else { panic!("fresh") };
    world.pool.execute("UPDATE semel_intent SET lease_until = 1").await.unwrap();
    let mut tx = world.begin().await;
    let failed = once_tx(&mut tx, &intent("late"), asked(1), fails).await;
    assert!(matches!(failed, Err(TxError::Work(sqlx::Error::RowNotFound))), "{failed:?}");
    tx.commit().await.unwrap();
    let finish = Finish {
        verdict: Verdict::Completed,
        outcome: Some(Outcome::new(200, "77")),
        retention: Retention::DAY,
    };
    assert_eq!(store.finish(ticket, finish).await.unwrap(), Finished::Recorded);
    assert_eq!(pay(&world.pool, "late", 1).await.unwrap(), TxReply { value: 77, replayed: true });
    world.end().await;
}

/// The same intent in another database is another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_in_one_database_does_not_delay_those_in_another() {
    let (Some(world), Some(other)) = (World::new(SERVER).await, World::new(SERVER).await) else { return };
    let work = async |tx: &mut MySqlConnection| book(tx, "two", 1).await;
    let mut first = world.begin().await;
    once_tx(&mut first, &intent("two"), asked(1), work).await.unwrap();
    let waiting = tokio::spawn({
        let pool = world.pool.clone();
        async move { pay(&pool, "two", 1).await }
    });
    world.until_waiting(1).await;
    // There it is not in flight.
    let mut tx = other.begin().await;
    let once = Once::new(&intent("two"), asked(1)).wait(Duration::ZERO);
    let there = soon(once.run_tx(&mut tx, work)).await;
    assert!(there.as_ref().is_ok_and(|reply| !reply.replayed), "{there:?}");
    // And who waits there is served when it is over there.
    let late = tokio::spawn({
        let pool = other.pool.clone();
        async move { pay(&pool, "two", 1).await }
    });
    other.until_waiting(1).await;
    tx.commit().await.unwrap();
    assert!(soon(late).await.unwrap().unwrap().replayed);
    first.commit().await.unwrap();
    assert!(soon(waiting).await.unwrap().unwrap().replayed);
    for world in [world, other] {
        assert_eq!(world.payments("two").await, 1);
        world.end().await;
    }
}
