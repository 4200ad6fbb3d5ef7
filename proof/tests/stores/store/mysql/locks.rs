//! Locks of others: a request does not wait for a stranger's, and what is in the way is named.

use std::time::Duration;

use futures_util::future::join_all;
use semel::store::mysql::{MysqlOptions, MysqlStore};
use semel::store::{Claim, Claimed, ErrorKind, Fate, Finish, Finished, Renewed, Store, Ticket};
use semel::{Owner, Retention, StoreTime};
use sqlx::{Connection, MySqlConnection};
use testkit::services::Service;

use super::SERVER;
use super::support::*;

fn single() -> MysqlOptions {
    MysqlStore::options().connections(1)
}

/// Longer than a busy machine stands still.
const PATIENCE: Duration = Duration::from_secs(25);

/// Waits for locks longer than the store's second: for tests of what follows.
pub(super) fn patient(sql: String) -> String {
    sql.replace("innodb_lock_wait_timeout = 1", &format!("innodb_lock_wait_timeout = {}", PATIENCE.as_secs()))
}

/// The number of the statement in the watcher's database that has this form, if one is under way. From the
/// process list: `innodb_trx` shows an old picture for as long as it is asked more often than ten times a
/// second, by whomever.
async fn under_way(watcher: &mut MySqlConnection, form: &str) -> Option<i64> {
    let asked = match SERVER {
        // It has no number of a statement in its process list; that of its event is as good.
        Service::Mysql => format!(
            "SELECT COALESCE(MAX(s.event_id), 0) FROM performance_schema.threads t \
             JOIN performance_schema.events_statements_current s ON s.thread_id = t.thread_id \
             WHERE t.processlist_db = DATABASE() AND t.processlist_id <> CONNECTION_ID() \
             AND t.processlist_info LIKE '{form}'"
        ),
        _ => format!(
            "SELECT COALESCE(MAX(query_id), 0) FROM information_schema.processlist \
             WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE '{form}'"
        ),
    };
    Some(number(watcher, &asked).await).filter(|query| *query > 0)
}

/// The same of one that has been under way for long enough to wait for a lock, within a bound.
async fn waiting_for(watcher: &mut MySqlConnection, form: &str) -> Option<i64> {
    let began = std::time::Instant::now();
    let mut before = None;
    while began.elapsed() < PATIENCE {
        let now = under_way(watcher, form).await;
        if now.is_some() && now == before {
            return now;
        }
        before = now;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    None
}

#[tokio::test]
async fn strangers_do_not_wait_for_a_key_that_an_open_transaction_has_inserted() {
    let Some(database) = Database::new().await else { return };
    let store = database.open(single()).await;
    run_of(&store, &claim_of("warm")).await;
    let held = claim_of("held");
    let mut other = database.raw().await;
    let mut transaction = other.begin().await.unwrap();
    insert_raw(&mut transaction, &held.intent).await;

    // All at once on one connection: they travel together.
    let claims: Vec<Claim> = (0..40).map(|n| claim_of(&format!("stranger-{n}"))).collect();
    let strangers = join_all(claims.iter().map(|claim| run_of(&store, claim)));
    let (tickets, met) = soon(async { tokio::join!(strangers, store.claim(held.clone())) }).await;
    assert_eq!(tickets.len(), 40);
    assert!(matches!(met.unwrap(), Claimed::InFlight(_)), "somebody is at it");

    transaction.rollback().await.unwrap();
    run_of(&store, &held).await;
}

#[tokio::test]
async fn strangers_do_not_wait_for_a_row_that_an_open_transaction_has_locked() {
    let Some(database) = Database::new().await else { return };
    let store = database.open(single()).await;
    let held = run_of(&store, &claim_of("held")).await;
    let mut tickets: Vec<Ticket> = Vec::new();
    for n in 0..20 {
        tickets.push(run_of(&store, &claim_of(&format!("stranger-{n}"))).await);
    }
    let mut other = database.raw().await;
    let mut transaction = other.begin().await.unwrap();
    let lock =
        format!("SELECT id FROM semel_intent WHERE id = {} FOR UPDATE", id_sql(&claim_of("held").intent));
    run(&mut transaction, &lock).await;

    let renewals = join_all(tickets.iter().map(|ticket| store.renew(*ticket, 60_000)));
    let (renewed, mine) = soon(async { tokio::join!(renewals, store.renew(held, 60_000)) }).await;
    assert!(renewed.into_iter().all(|renewed| matches!(renewed, Ok(Renewed::Until(_)))));
    let error = mine.unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Busy, Fate::NotApplied));

    let finishes = join_all(tickets.iter().map(|ticket| store.finish(*ticket, completed("x"))));
    let (finished, mine) = soon(async { tokio::join!(finishes, store.finish(held, completed("x"))) }).await;
    assert!(finished.into_iter().all(|finished| matches!(finished, Ok(Finished::Recorded))));
    assert_eq!(mine.unwrap_err().fate(), Fate::NotApplied);

    // Reading, replaying and the answer "in flight" need no lock.
    assert!(store.get(held.id).await.unwrap().is_some());
    assert!(matches!(store.claim(claim_of("held")).await.unwrap(), Claimed::InFlight(_)));
    transaction.rollback().await.unwrap();
    assert_eq!(store.finish(held, completed("x")).await.unwrap(), Finished::Recorded);
}

#[tokio::test]
async fn a_sweep_passes_by_what_is_locked() {
    let Some(database) = Database::new().await else { return };
    let store = database.store().await;
    let brief = Finish { retention: Retention::Ms(0), ..completed("old") };
    for n in 0..10 {
        let ticket = run_of(&store, &claim_of(&n.to_string())).await;
        store.finish(ticket, brief.clone()).await.unwrap();
    }
    let mut other = database.raw().await;
    let mut transaction = other.begin().await.unwrap();
    let lock = format!("SELECT id FROM semel_intent WHERE id = {} FOR UPDATE", id_sql(&claim_of("3").intent));
    run(&mut transaction, &lock).await;
    assert_eq!(soon(store.sweep(100)).await.unwrap(), 9);
    transaction.rollback().await.unwrap();
    assert_eq!(soon(store.sweep(100)).await.unwrap(), 1);
}

/// Holds a row while its outcome waits for it; tells when the outcome says it was, and the clock when the row
/// was let go.
pub(super) async fn finish_behind_a_lock(
    database: &Database,
    options: MysqlOptions,
) -> (StoreTime, StoreTime) {
    let store = database.open(options.connections(1)).await;
    for _ in 0..5 {
        if let Some(met) = wait_behind_a_lock(database, &store).await {
            return met;
        }
    }
    panic!("five times the outcome did not wait until the row was let go");
}

/// `None` when the wait had ended before the row was let go: the machine stood still for all of it.
async fn wait_behind_a_lock(database: &Database, store: &MysqlStore) -> Option<(StoreTime, StoreTime)> {
    let ticket = run_of(store, &claim_of(&fastrand::u64(..).to_string())).await;
    let mut other = database.raw().await;
    let mut transaction = other.begin().await.unwrap();
    let id: String = ticket.id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    run(&mut transaction, &format!("SELECT id FROM semel_intent WHERE id = X'{id}' FOR UPDATE")).await;
    let finishing = {
        let store = store.clone();
        tokio::spawn(async move { store.finish(ticket, completed("x")).await })
    };
    let mut watcher = database.raw().await;
    let waits = waiting_for(&mut watcher, &format!("UPDATE semel_intent%{id}%")).await;
    let released = store.now().await.unwrap();
    let still =
        waits.is_some() && waits == under_way(&mut watcher, &format!("UPDATE semel_intent%{id}%")).await;
    transaction.rollback().await.unwrap();
    let finished = soon(finishing).await.unwrap();
    if !still {
        return None;
    }
    assert_eq!(finished.unwrap(), Finished::Recorded);
    let record = store.get(ticket.id).await.unwrap().expect("the record");
    Some((record.changed_at, released))
}

#[tokio::test]
async fn the_clock_is_read_after_the_lock_was_waited_for() {
    let Some(database) = Database::new().await else { return };
    let (changed, released) = finish_behind_a_lock(&database, MysqlStore::options().rewriting(patient)).await;
    assert!(changed >= released, "{changed:?} is before {released:?}, when the row was let go");
}

fn waiting(sql: String) -> String {
    patient(sql).replace("READ UNCOMMITTED", "READ COMMITTED")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_with_somebody_elses_transaction_is_survived() {
    let Some(database) = Database::new().await else { return };
    // Without the dirty look it waits for inserted keys like anybody else: only so can a deadlock be made on
    // purpose. Two rows in the order of their ids, and the other transaction in the opposite one.
    let store = database.open(single().rewriting(waiting)).await;
    run_of(&store, &claim_of("warm")).await;
    let mut deadlocks = 0;
    for round in 0..6 {
        let mut claims = [claim_of(&format!("{round}-a")), claim_of(&format!("{round}-b"))];
        claims.sort_by_key(|claim| claim.intent.id());
        let [low, high] = claims;
        let mut other = database.raw().await;
        let mut transaction = other.begin().await.unwrap();
        insert_raw(&mut transaction, &high.intent).await;
        // The server ends the one with less to undo: by turns the other transaction and the store's batch.
        let heavy = round % 2 == 1;
        for n in 0..if heavy { 30 } else { 0 } {
            insert_raw(&mut transaction, &claim_of(&format!("{round}-weight-{n}")).intent).await;
        }
        let asking = {
            let (store, low, high) = (store.clone(), low.clone(), high.clone());
            tokio::spawn(async move { tokio::join!(store.claim(low), store.claim(high)) })
        };
        let mut watcher = database.raw().await;
        waiting_for(&mut watcher, "INSERT INTO semel_intent%").await.expect("the batch waits for the key");
        let victim = try_insert(&mut transaction, &low.intent).await == Err(1213);
        deadlocks += usize::from(victim);
        transaction.rollback().await.unwrap();
        let (low_met, high_met) = soon(asking).await.unwrap();
        for met in [low_met, high_met] {
            let met = met.expect("the store is not bothered");
            assert!(matches!(met, Claimed::Run(_) | Claimed::InFlight(_)), "{met:?}");
        }
        // A claim that was not answered "run" runs now, and none runs twice.
        for claim in [low, high] {
            run_of(&store, &claim).await;
            assert_eq!(store.get(claim.intent.id()).await.unwrap().expect("the record").attempts, 1);
        }
    }
    assert!((1..6).contains(&deadlocks), "{deadlocks} of 6 deadlocks ended the other transaction");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_in_opposite_order_deadlock_and_sorted_ones_do_not() {
    let Some(database) = Database::new().await else { return };
    database.store().await;
    let mut claims: Vec<Claim> = (0..2).map(|n| claim_of(&n.to_string())).collect();
    claims.sort_by_key(|claim| claim.intent.id());
    // By hand, what the order of a batch is for.
    let (mut one, mut two) = (database.raw().await, database.raw().await);
    let (mut one, mut two) = (one.begin().await.unwrap(), two.begin().await.unwrap());
    insert_raw(&mut one, &claims[0].intent).await;
    insert_raw(&mut two, &claims[1].intent).await;
    let (first, second) =
        tokio::join!(try_insert(&mut one, &claims[1].intent), try_insert(&mut two, &claims[0].intent));
    let mut met = [first, second];
    met.sort_by_key(Result::is_err);
    assert_eq!(met, [Ok(()), Err(1213)], "one of them is the victim");
    one.rollback().await.unwrap();
    two.rollback().await.unwrap();

    // Six stores, each with connections of its own, over the same keys in orders of their own.
    let stores = join_all((0..6).map(|_| database.store())).await;
    let claims: Vec<Claim> = (0..300).map(|n| claim_of(&format!("many-{n}"))).collect();
    let tasks: Vec<_> = stores
        .into_iter()
        .map(|store| {
            let mut claims = claims.clone();
            fastrand::shuffle(&mut claims);
            tokio::spawn(async move {
                let asked = claims.into_iter().map(|claim| {
                    let (store, owner) = (store.clone(), semel::Owner::random());
                    async move { store.claim(Claim { owner, ..claim }).await }
                });
                let met = join_all(asked).await;
                met.into_iter()
                    .filter(|met| matches!(met.as_ref().expect("an answer"), Claimed::Run(_)))
                    .count()
            })
        })
        .collect();
    let mut ran = 0;
    for task in tasks {
        ran += soon(task).await.unwrap();
    }
    assert_eq!(ran, 300, "each key ran once");
}

#[tokio::test]
async fn a_gap_somebody_locks_stops_new_keys_there_and_nothing_else() {
    let Some(database) = Database::new().await else { return };
    let store = database.store().await;
    let mut tickets = Vec::new();
    for n in 0..10 {
        tickets.push(run_of(&store, &claim_of(&format!("there-{n}"))).await);
    }
    // What an application should not do: lock a row that is not there, under REPEATABLE READ. It locks what would come
    // beside it.
    let mut other = database.raw().await;
    run(&mut other, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await;
    let mut transaction = other.begin().await.unwrap();
    let (low, high) = ("X'00'", format!("X'{}'", "ff".repeat(32)));
    let lock = format!("SELECT id FROM semel_intent WHERE id = {low} OR id = {high} FOR UPDATE");
    run(&mut transaction, &lock).await;
    let claims: Vec<Claim> = (0..40).map(|n| claim_of(&format!("new-{n}"))).collect();
    let asked = join_all(claims.iter().map(|claim| store.claim(claim.clone())));
    let finishes = join_all(tickets.iter().map(|ticket| store.finish(*ticket, completed("x"))));
    let (asked, finished) = soon(async { tokio::join!(asked, finishes) }).await;
    assert!(finished.into_iter().all(|finished| matches!(finished, Ok(Finished::Recorded))));
    let mut stopped = 0;
    for met in asked {
        match met {
            Ok(Claimed::Run(_)) => {}
            // The holder of the lock may be at work on the key: no outage, in which work may go on without us.
            Ok(Claimed::InFlight(existing)) if existing.record.head.owner == Owner::NONE => stopped += 1,
            other => panic!("{other:?}"),
        }
    }
    println!("{stopped} of 40 new keys fell into the locked gaps");
    assert!(stopped < 40, "most gaps are free");
    transaction.rollback().await.unwrap();
    for claim in &claims {
        run_of(&store, claim).await;
    }
}

#[tokio::test]
async fn a_key_whose_place_somebody_has_locked_is_in_flight_and_not_an_outage() {
    let Some(database) = Database::new().await else { return };
    let store = database.open(single()).await;
    run_of(&store, &claim_of("warm")).await;
    let wanted = claim_of("wanted");
    // A locking look at a row that is not there, as somebody may begin with who then does the work.
    let mut other = database.raw().await;
    run(&mut other, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await;
    let mut transaction = other.begin().await.unwrap();
    let look = format!("SELECT id FROM semel_intent WHERE id = {} FOR UPDATE", id_sql(&wanted.intent));
    run(&mut transaction, &look).await;
    let met = soon(store.claim(wanted.clone())).await;
    let Ok(Claimed::InFlight(existing)) = met else { panic!("{met:?}") };
    assert_eq!(existing.record.head.owner, Owner::NONE);
    transaction.rollback().await.unwrap();
    run_of(&store, &wanted).await;
}
