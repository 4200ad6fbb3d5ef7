//! Tables are made once, by the process that starts first, and are recognised afterwards.

use semel::store::mysql::{MysqlStore, schema};
use semel::store::{ErrorKind, Migrated, Store};

use super::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_that_start_at_once_make_the_tables_once() {
    let Some(database) = Database::new().await else { return };
    let starts: Vec<_> = (0..8)
        .map(|_| {
            let url = database.url.clone();
            tokio::spawn(async move { semel::store::migrate(&url).await.map(|migrated| migrated.before) })
        })
        .collect();
    let mut before = Vec::new();
    for start in starts {
        before.push(soon(start).await.unwrap().expect("the tables are made or found"));
    }
    before.sort_unstable();
    assert_eq!(before, [0, 1, 1, 1, 1, 1, 1, 1]);
    let mut raw = database.raw().await;
    assert_eq!(number(&mut raw, "SELECT COUNT(*) FROM semel_meta").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_that_open_at_once_share_one_lineage() {
    let Some(database) = Database::new().await else { return };
    let opening = (0..4).map(|_| database.store());
    let stores = soon(futures_util::future::join_all(opening)).await;
    assert!(stores.iter().all(|store| store.lineage() == stores[0].lineage()));
    assert_ne!(stores[0].lineage(), [0; 16]);
    run_of(&stores[3], &claim_of("k")).await;
}

#[tokio::test]
async fn tables_left_half_made_are_completed() {
    let Some(database) = Database::new().await else { return };
    let (first, _) = schema::SQL.split_once("-- Names of operations").expect("the first table");
    run(&mut database.raw().await, first).await;
    let migrated = semel::store::migrate(&database.url).await.unwrap();
    assert_eq!(migrated, Migrated { before: 0, now: schema::VERSION });
    let again = semel::store::migrate(&database.url).await.unwrap();
    assert_eq!(again, Migrated { before: schema::VERSION, now: schema::VERSION });
    run_of(&database.store().await, &claim_of("k")).await;
}

#[tokio::test]
async fn a_tool_makes_no_tables_and_a_newer_semel_is_not_touched() {
    let Some(database) = Database::new().await else { return };
    let error = semel::store::open_existing(&database.url).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("semel migrate"), "{error}");
    let mut raw = database.raw().await;
    let tables =
        format!("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = '{}'", database.name);
    assert_eq!(number(&mut raw, &tables).await, 0);

    semel::store::open(&database.url).await.expect("the tables are made").now().await.expect("the clock");
    run(&mut raw, "UPDATE semel_meta SET version = 99").await;
    for error in [
        MysqlStore::open(&database.url).await.map(drop).unwrap_err(),
        semel::store::migrate(&database.url).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        assert!(error.to_string().contains("newer semel"), "{error}");
    }
}

#[tokio::test]
async fn the_view_shows_people_what_holds_now() {
    let Some(database) = Database::new().await else { return };
    let store = database.store().await;
    let ticket = run_of(&store, &claim_of("done")).await;
    store.finish(ticket, completed("x")).await.unwrap();
    let lapsed = semel::store::Claim { lease_ms: 0, ..claim_of("lapsed") };
    run_of(&store, &lapsed).await;
    let rows: Vec<(String, String)> = sqlx::query_as("SELECT `key`, state FROM semel_intents ORDER BY `key`")
        .fetch_all(&mut database.raw().await)
        .await
        .unwrap();
    let expected = [("done", "completed"), ("lapsed", "uncertain")];
    assert_eq!(rows, expected.map(|(key, state)| (key.to_owned(), state.to_owned())));
}
