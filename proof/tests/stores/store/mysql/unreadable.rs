//! One row that cannot be read is one caller's trouble.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use semel::store::mysql::MysqlStore;
use semel::store::{Claimed, ErrorKind, Fate, Finish, Finished, Renewed, Store};
use semel::{Effect, Retention};

use super::support::*;

const BAD: &str = "a-row-that-makes-no-sense";

/// From the second packet on that holds the bad key, nothing is claimed any more: a claim that is sent again
/// because of it would be refused.
fn once_with_the_bad_one(sql: String) -> String {
    static SEEN: AtomicBool = AtomicBool::new(false);
    let bad: String = BAD.bytes().map(|byte| format!("{byte:02x}")).collect();
    if !sql.contains("INSERT INTO semel_intent") || !(sql.contains(&bad) || SEEN.load(Ordering::SeqCst)) {
        return sql;
    }
    match SEEN.swap(true, Ordering::SeqCst) {
        true => "SELECT no_such_column FROM semel_intent".to_owned(),
        false => sql,
    }
}

async fn spoil(database: &Database) {
    let mut other = database.raw().await;
    run(&mut other, &format!("UPDATE semel_intent SET state = 9 WHERE `key` = '{BAD}'")).await;
}

fn keys() -> Vec<String> {
    (0..64).map(|n| if n == 31 { BAD.to_owned() } else { format!("good-{n}") }).collect()
}

#[tokio::test]
async fn those_who_claimed_beside_it_get_their_claims() {
    let Some(database) = Database::new().await else { return };
    run_of(&database.store().await, &claim_of(BAD)).await;
    spoil(&database).await;
    let store = database.open(MysqlStore::options().connections(1).rewriting(once_with_the_bad_one)).await;
    // All at once on one connection: the first travels alone, the others together.
    let claims: Vec<_> = keys().iter().map(|key| claim_of(key)).collect();
    let results = soon(join_all(claims.iter().map(|claim| store.claim(claim.clone())))).await;
    for (claim, result) in claims.iter().zip(results) {
        match (claim.intent.key().as_str(), result) {
            (BAD, Err(error)) => {
                assert_eq!((error.kind(), error.fate()), (ErrorKind::Corrupt, Fate::NotApplied), "{error}");
            }
            (BAD, result) => panic!("{result:?}"),
            (key, result) => assert!(matches!(result, Ok(Claimed::Run(_))), "{key}: {result:?}"),
        }
    }
}

#[tokio::test]
async fn outcomes_renewals_and_takeovers_beside_it_are_recorded() {
    let Some(database) = Database::new().await else { return };
    let store = database.open(MysqlStore::options().connections(1)).await;
    let mut tickets = Vec::new();
    for key in keys() {
        tickets.push(run_of(&store, &claim_of(&key)).await);
    }
    spoil(&database).await;
    let bad = 31;
    let renewed = soon(join_all(tickets.iter().map(|ticket| store.renew(*ticket, 60_000)))).await;
    for (n, result) in renewed.into_iter().enumerate() {
        match result {
            Ok(Renewed::Until(_)) if n != bad => {}
            Err(error) if n == bad => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            other => panic!("{n}: {other:?}"),
        }
    }
    let release = || Finish::release(Retention::DAY);
    let finished = soon(join_all(tickets.iter().map(|ticket| store.finish(*ticket, release())))).await;
    for (n, result) in finished.into_iter().enumerate() {
        match result {
            Ok(Finished::Recorded) if n != bad => {}
            Err(error) if n == bad => {
                assert_eq!((error.kind(), error.fate()), (ErrorKind::Corrupt, Fate::NotApplied), "{error}");
            }
            other => panic!("{n}: {other:?}"),
        }
    }
    let again: Vec<_> =
        keys().iter().map(|key| semel::store::Claim { effect: Effect::Keyed, ..claim_of(key) }).collect();
    let taken = soon(join_all(again.iter().map(|claim| store.claim(claim.clone())))).await;
    for (n, result) in taken.into_iter().enumerate() {
        match result {
            Ok(Claimed::Run(ticket)) if n != bad => assert_eq!(ticket.attempt, 2),
            Err(error) if n == bad => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            other => panic!("{n}: {other:?}"),
        }
    }
}
