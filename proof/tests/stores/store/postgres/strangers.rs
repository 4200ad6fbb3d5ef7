//! A stranger that holds a row in an open transaction holds up only those who want that row.

use futures_util::future::join_all;
use semel::intent::state::State;
use semel::store::{Claimed, ErrorKind, Fate, Finish, Finished, Renewed, Store};
use semel::{Effect, Guard, GuardError, Owner, Retention, StoreDown};

use super::place::Place;
use super::work::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_key_claimed_in_an_open_transaction_is_in_flight_and_strangers_pass() {
    let Some(place) = Place::take() else { return };
    let store = place.options().connections(1).open().await.unwrap();
    run(&store, "warm-open").await;
    let person = place.client().await;
    let held = intent("held-open");
    // As `once` in a user's transaction does it: the lock first, then the row.
    person.batch_execute("BEGIN").await.unwrap();
    person.execute("SELECT pg_advisory_xact_lock($1)", &[&lock_key(&held)]).await.unwrap();
    let insert =
        "INSERT INTO semel_intent (seq, epoch, lease_until, created_at, changed_at, recipe, operation,
            attempts, state, effect, id, owner, fingerprint, scope, key)
        SELECT e, e, 0, 0, 0, $4, 1, 1, 2, 2, $1, $2, $3, 'acme', 'held-open' FROM nextval('semel_epoch') e";
    let (id, owner) = (held.id(), Owner::random());
    let print = fingerprint();
    person
        .execute(
            insert,
            &[
                &&id.as_bytes()[..],
                &&owner.as_bytes()[..],
                &&print.digest()[..],
                &print.recipe().as_u64().cast_signed(),
            ],
        )
        .await
        .unwrap();

    let mut tasks = Vec::new();
    for n in 0..63 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move { run(&store, &format!("stranger-{n}")).await }));
    }
    let waiter = soon(store.claim(claim("held-open"))).await.unwrap();
    let Claimed::InFlight(existing) = waiter else { panic!("{waiter:?}") };
    assert_eq!(
        (existing.record.head.state, existing.record.head.effect),
        (State::InProgress, Effect::Atomic)
    );
    for task in tasks {
        soon(task).await.unwrap();
    }
    person.batch_execute("ROLLBACK").await.unwrap();
    // Nothing happened in it: the key runs.
    run(&store, "held-open").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_holds_up_neither_outcomes_nor_renewals_of_others() {
    let Some(place) = Place::take() else { return };
    let store = place.options().connections(1).open().await.unwrap();
    let held = run(&store, "held-locked").await;
    let others: Vec<_> = {
        let mut tickets = Vec::new();
        for n in 0..16 {
            tickets.push(run(&store, &format!("other-{n}")).await);
        }
        tickets
    };
    let person = place.client().await;
    person
        .batch_execute("BEGIN; SELECT 1 FROM semel_intent WHERE key = 'held-locked' FOR UPDATE")
        .await
        .unwrap();

    let late_finish = tokio::spawn({
        let store = store.clone();
        async move { store.finish(held, finish()).await }
    });
    let late_renew = tokio::spawn({
        let store = store.clone();
        async move { store.renew(held, 60_000).await }
    });
    for ticket in &others {
        assert!(matches!(soon(store.renew(*ticket, 60_000)).await.unwrap(), Renewed::Until(_)));
        assert_eq!(soon(store.finish(*ticket, finish())).await.unwrap(), Finished::Recorded);
    }
    // The one that wanted the row gets an error, in bounded time, and knows that nothing happened.
    for error in [soon(late_finish).await.unwrap().unwrap_err(), soon(late_renew).await.unwrap().unwrap_err()]
    {
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Busy, Fate::NotApplied), "{error}");
    }
    person.batch_execute("COMMIT").await.unwrap();
    assert!(matches!(soon(store.renew(held, 60_000)).await.unwrap(), Renewed::Until(_)));
    assert_eq!(soon(store.finish(held, finish())).await.unwrap(), Finished::Recorded);
}

/// Slow enough for all who come again to meet in the next batch.
fn slow_claims(sql: &str) -> String {
    match sql.contains("-- Claims, many at once.") {
        true => sql.replacen("::bigint AS now\n", "::bigint AS now FROM pg_sleep(0.05)\n", 1),
        false => sql.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_who_want_a_key_that_is_locked_get_in_flight() {
    let Some(place) = Place::take() else { return };
    let options = place.options().connections(1).batch_max(200).edit_sql(slow_claims);
    let store = options.open().await.unwrap();
    run(&store, "warm-held").await;
    let person = place.client().await;
    person.batch_execute("BEGIN").await.unwrap();
    person.execute("SELECT pg_advisory_xact_lock($1)", &[&lock_key(&intent("held-by-one"))]).await.unwrap();
    for result in soon(join_all((0..150).map(|_| store.claim(claim("held-by-one"))))).await {
        let Ok(Claimed::InFlight(existing)) = result else { panic!("{result:?}") };
        assert_eq!(existing.record.head.owner, Owner::NONE);
    }
    person.batch_execute("ROLLBACK").await.unwrap();
    run(&store, "held-by-one").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_has_locked_is_never_run_beside_them() {
    let Some(place) = Place::take() else { return };
    let store = place.options().connections(1).open().await.unwrap();
    let ticket = run(&store, "held-by-hand").await;
    soon(store.finish(ticket, Finish::release(Retention::DAY))).await.unwrap();
    let person = place.client().await;
    // Somebody who takes no lock of ours, and may be at the same work.
    person
        .batch_execute("BEGIN; SELECT 1 FROM semel_intent WHERE key = 'held-by-hand' FOR UPDATE")
        .await
        .unwrap();
    let results = soon(join_all((0..100).map(|_| store.claim(claim("held-by-hand"))))).await;
    assert!(results.iter().all(|result| matches!(result, Ok(Claimed::InFlight(_)))), "{results:?}");

    // Also where work goes on without the store: this is no outage.
    let pay = Guard::new(store.clone()).operation("pay").unwrap().store_down(StoreDown::Open);
    let result = soon(pay.run(intent("held-by-hand"), fingerprint(), |_| async { panic!("it runs") })).await;
    assert!(matches!(result, Err(GuardError::InFlight { .. })), "{result:?}");
    person.batch_execute("ROLLBACK").await.unwrap();
    run(&store, "held-by-hand").await;
}

/// Gives another renewal time to commit between the look at the row and the lock.
fn slow_renewals(sql: &str) -> String {
    match sql.contains("-- Leases, many at once.") {
        true => sql.replacen("::bigint AS now\n", "::bigint AS now FROM pg_sleep(0.5)\n", 1),
        false => sql.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_renewals_of_one_owner_at_once_are_both_granted() {
    let Some(place) = Place::take() else { return };
    let (slow, fast) = (place.options().edit_sql(slow_renewals).open().await.unwrap(), place.store().await);
    let ticket = run(&fast, "live").await;
    let person = place.client().await;
    let sleeps = "SELECT count(*) FROM pg_stat_activity
        WHERE wait_event = 'PgSleep' AND query LIKE '-- Leases%pg_sleep%'";
    let sleeps = async || person.query_one(sleeps, &[]).await.unwrap().get::<_, i64>(0) > 0;
    let granted = |result| assert!(matches!(result, Ok(Renewed::Until(_))), "{result:?}");
    // Again, until one was granted from beginning to end while the other slept.
    let met = async || {
        let slow = slow.clone();
        let late = tokio::spawn(async move { slow.renew(ticket, 60_000).await });
        while !sleeps().await && !late.is_finished() {}
        granted(fast.renew(ticket, 60_000).await);
        let met = sleeps().await;
        granted(late.await.unwrap());
        met
    };
    soon(async { while !met().await {} }).await;
}
