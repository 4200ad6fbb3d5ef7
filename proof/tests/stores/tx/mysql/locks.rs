//! What a call leaves locked, set or undone on MySQL and MariaDB: nothing that somebody else, or its own caller, would miss.

use std::time::Duration;

use semel::store::mysql::MysqlStore;
use semel::store::{Claimed, Finish, Finished, Renewed, Store};
use semel::tx::{Once, Phases, Started, TxError, TxReply, once_tx};
use semel::{Outcome, Retention, Verdict};
use sqlx::{Executor, MySql, MySqlConnection, Transaction};
use testkit::services::{Service, alone};

use super::SERVER;
use crate::tx::mysql_world::{World, book, claim_of, intent, soon};
use crate::tx::world::asked;

const NAMES: [&str; 2] = ["reserve", "charge"];

fn done(value: &str) -> Finish {
    Finish {
        verdict: Verdict::Completed,
        outcome: Some(Outcome::new(200, value.to_owned())),
        retention: Retention::DAY,
    }
}

/// Seconds this connection waits for a lock.
async fn bound(tx: &mut Transaction<'static, MySql>) -> i64 {
    let asked = "SELECT CAST(@@innodb_lock_wait_timeout AS SIGNED)";
    sqlx::query_scalar(asked).fetch_one(&mut **tx).await.unwrap()
}

/// In a transaction that stays open afterwards.
async fn ask(tx: &mut Transaction<'static, MySql>, key: &str) -> Result<TxReply<i64>, TxError<sqlx::Error>> {
    let once = Once::new(&intent(key), asked(1)).wait(Duration::ZERO);
    soon(once.run_tx(tx, async |tx: &mut MySqlConnection| book(tx, key, 1).await)).await
}

/// MySQL cannot say a bound in a statement: there the next claim on the connection puts the caller's back.
async fn claim_after(tx: &mut Transaction<'static, MySql>, key: &str) {
    if SERVER == Service::Mysql {
        ask(tx, key).await.unwrap();
    }
}

/// Under REPEATABLE READ too, which is the default: an answer without its rows would be a riddle.
#[tokio::test]
async fn who_waited_for_the_first_sees_its_rows() {
    let Some(world) = World::new(SERVER).await else { return };
    for isolation in ["REPEATABLE READ", "READ COMMITTED"] {
        let key = isolation.replace(' ', "-");
        let mut first = world.begin_with(isolation).await;
        assert!(!ask(&mut first, &key).await.unwrap().replayed);
        let mut second = world.begin_with(isolation).await;
        let waiting = {
            let key = key.clone();
            tokio::spawn(async move {
                let once = Once::new(&intent(&key), asked(1)).wait(Duration::from_secs(20));
                let work = async |tx: &mut MySqlConnection| book(tx, &key, 1).await;
                let replayed = soon(once.run_tx(&mut second, work)).await.unwrap().replayed;
                let rows = "SELECT COUNT(*) FROM payment WHERE name = ?";
                let seen: i64 = sqlx::query_scalar(rows).bind(&key).fetch_one(&mut *second).await.unwrap();
                second.commit().await.unwrap();
                (replayed, seen)
            })
        };
        tokio::time::sleep(Duration::from_millis(200)).await;
        first.commit().await.unwrap();
        assert_eq!(waiting.await.unwrap(), (true, 1), "{isolation}");
    }
    world.end().await;
}

/// The row is theirs again as soon as the caller that got "in flight" has rolled back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_gets_in_flight_and_rolls_back_does_not_keep_the_row_locked() {
    let Some(world) = World::new(SERVER).await else { return };
    let store = MysqlStore::open(&world.url).await.unwrap();
    let Claimed::Run(ticket) = store.claim(claim_of("flight-a")).await.unwrap() else { panic!("fresh") };
    let mut second = world.begin().await;
    let met = ask(&mut second, "flight-a").await;
    assert!(matches!(met, Err(TxError::InFlight { .. })), "{met:?}");
    second.rollback().await.unwrap();
    assert!(matches!(soon(store.renew(ticket, 60_000)).await.unwrap(), Renewed::Until(_)));
    assert_eq!(soon(store.finish(ticket, done("7"))).await.unwrap(), Finished::Recorded);
    let mut replayed = world.begin().await;
    assert_eq!(ask(&mut replayed, "flight-a").await.unwrap(), TxReply { value: 7, replayed: true });
    replayed.commit().await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn an_old_snapshot_does_not_hide_an_outcome() {
    let Some(world) = World::new(SERVER).await else { return };
    let store = MysqlStore::open(&world.url).await.unwrap();
    let Claimed::Run(ticket) = store.claim(claim_of("old-a")).await.unwrap() else { panic!("fresh") };
    let mut old = world.begin_with("REPEATABLE READ").await;
    old.execute("SELECT COUNT(*) FROM semel_intent").await.unwrap();
    store.finish(ticket, done("7")).await.unwrap();
    assert_eq!(ask(&mut old, "old-a").await.unwrap(), TxReply { value: 7, replayed: true });
    old.rollback().await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn a_caller_that_goes_away_while_it_waits_finds_its_session_as_it_was() {
    let Some(world) = World::new(SERVER).await else { return };
    let mut first = world.begin().await;
    once_tx(&mut first, &intent("away-a"), asked(1), async |tx| book(tx, "a", 1).await).await.unwrap();
    let mut second = world.begin().await;
    second.execute("SET SESSION innodb_lock_wait_timeout = 37").await.unwrap();
    {
        let key = intent("away-a");
        let waiting = once_tx(&mut second, &key, asked(1), async |tx| book(tx, "a", 1).await);
        let left = tokio::time::timeout(Duration::from_millis(300), waiting).await;
        assert!(left.is_err(), "it waits");
    }
    // What was sent goes on: the wait of a second ends in an error that is dropped.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let _ = second.execute("DO 0").await;
    claim_after(&mut second, "away-c").await;
    assert_eq!(bound(&mut second).await, 37);
    second.rollback().await.unwrap();

    // The same before a phase: the row is held by somebody who takes over.
    let phases = Phases::new(&intent("away-b"), asked(1), &NAMES).unwrap();
    let mut tx = world.begin().await;
    let Started::Run(mut run) = phases.start_tx::<_, i64>(&mut tx).await.unwrap() else { panic!() };
    tx.commit().await.unwrap();
    let mut holder = world.begin().await;
    holder.execute("SELECT id FROM semel_intent WHERE lease_until > 0 FOR UPDATE SKIP LOCKED").await.unwrap();
    let mut third = world.begin().await;
    third.execute("SET SESSION innodb_lock_wait_timeout = 37").await.unwrap();
    {
        let waiting = run.phase_tx(&mut third, "reserve", async |tx| book(tx, "b", 1).await);
        assert!(tokio::time::timeout(Duration::from_millis(300), waiting).await.is_err(), "it waits");
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let _ = third.execute("DO 0").await;
    holder.rollback().await.unwrap();
    claim_after(&mut third, "away-d").await;
    assert_eq!(bound(&mut third).await, 37);
    third.rollback().await.unwrap();
    first.rollback().await.unwrap();
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_undoes_transactions_after_a_wait_is_reported_like_a_deadlock() {
    let Some(mut server) = alone(SERVER) else { return };
    server.restart_with(&["--innodb-rollback-on-timeout=ON"]).unwrap();
    let world = World::on(server.url().to_owned()).await;
    assert_eq!(world.count("SELECT @@innodb_rollback_on_timeout").await, 1);
    let mut first = world.begin().await;
    once_tx(&mut first, &intent("undone-a"), asked(1), async |tx| book(tx, "a", 1).await).await.unwrap();
    let mut second = world.begin().await;
    book(&mut second, "before", 1).await.unwrap();
    let met =
        soon(once_tx(&mut second, &intent("undone-a"), asked(1), async |tx| book(tx, "a", 1).await)).await;
    match &met {
        Err(error @ TxError::Retry(_)) => {
            let text = error.to_string();
            assert!(text.contains("innodb_rollback_on_timeout") && error.may_retry(), "{text}");
        }
        other => panic!("the transaction is gone, and the answer was {other:?}"),
    }
    second.rollback().await.unwrap();
    assert_eq!(world.payments("before").await, 0);

    // The same before a phase.
    let phases = Phases::new(&intent("undone-b"), asked(1), &NAMES).unwrap();
    let mut tx = world.begin().await;
    let Started::Run(mut run) = phases.start_tx::<_, i64>(&mut tx).await.unwrap() else { panic!() };
    tx.commit().await.unwrap();
    let mut holder = world.begin().await;
    holder.execute("SELECT id FROM semel_intent WHERE lease_until > 0 FOR UPDATE SKIP LOCKED").await.unwrap();
    let mut third = world.begin().await;
    book(&mut third, "before", 1).await.unwrap();
    let met = soon(run.phase_tx(&mut third, "reserve", async |tx| book(tx, "b", 1).await)).await;
    assert!(matches!(met, Err(TxError::Retry(_))), "{met:?}");
    third.rollback().await.unwrap();
    holder.rollback().await.unwrap();

    // Work that swallows such an error of its own is not recorded: its claim is gone with the rest.
    let mut rival = world.begin().await;
    rival.execute("UPDATE account SET cents = 1 WHERE id = 7").await.unwrap();
    let mut fourth = world.begin().await;
    fourth.execute("SET SESSION innodb_lock_wait_timeout = 1").await.unwrap();
    let key = intent("undone-c");
    let met = once_tx(&mut fourth, &key, asked(1), async |tx| {
        let waited = tx.execute("UPDATE account SET cents = 2 WHERE id = 7").await;
        assert!(waited.unwrap_err().to_string().contains("1205"));
        Ok::<i64, sqlx::Error>(1)
    });
    let met = soon(met).await;
    assert!(matches!(met, Err(TxError::Lost)), "{met:?}");
    fourth.rollback().await.unwrap();
    rival.rollback().await.unwrap();

    first.commit().await.unwrap();
    let mut again = world.begin().await;
    assert!(ask(&mut again, "undone-a").await.unwrap().replayed);
    again.rollback().await.unwrap();
    assert_eq!(world.payments("a").await, 1);
    world.end().await;
}
