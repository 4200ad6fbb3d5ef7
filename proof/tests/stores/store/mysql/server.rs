//! What only somebody who has the server alone can see: restarts, settings, and what is written.

use semel::store::mysql::MysqlStore;
use semel::store::{Claimed, ErrorKind, Fate, Finish, Store};
use semel::{Retention, StoreTime};
use sqlx::{Connection, MySqlConnection};
use testkit::services::{Service, alone};

use super::SERVER;
use super::support::{PATIENT, at_last, claim_of, completed, number, raw, run, run_of, settle, soon};

/// A database of its own on a server that is taken alone; the store's bounds in its URL are wide.
async fn empty(url: &str, name: &str) -> (MySqlConnection, String) {
    let mut connection = raw(url).await;
    run(&mut connection, &format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}")).await;
    (connection, format!("{}/{name}{PATIENT}", url.rsplit_once('/').expect("a database").0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epochs_rise_and_outcomes_stay_over_a_kill_of_the_server() {
    let Some(mut server) = alone(SERVER) else { return };
    let (_connection, url) = empty(server.url(), "semel_restart").await;
    let store = soon(MysqlStore::open(&url)).await.unwrap();
    let kept = claim_of("kept");
    let ticket = run_of(&store, &kept).await;
    store.finish(ticket, completed("kept")).await.unwrap();
    // Nothing with the highest epochs is left in any table: only the counter knows them.
    let mut highest = ticket.epoch;
    for n in 0..20 {
        let ticket = run_of(&store, &claim_of(&format!("gone-{n}"))).await;
        highest = highest.max(ticket.epoch);
        store.finish(ticket, Finish { retention: Retention::Ms(0), ..completed("x") }).await.unwrap();
    }
    assert_eq!(soon(store.sweep(1_000)).await.unwrap(), 20);
    let lineage = store.lineage();

    server.kill().unwrap();
    let error = soon(store.claim(claim_of("down"))).await.expect_err("the server is dead");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    server.start().unwrap();
    // The same store finds the server again by itself.
    assert!(matches!(settle(&store, &kept).await, Claimed::Replay(_)));
    let after = run_of(&store, &claim_of("after")).await;
    assert!(after.epoch > highest, "{:?} after {highest:?}", after.epoch);
    assert_eq!(soon(MysqlStore::open(&url)).await.unwrap().lineage(), lineage);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_writes_nothing() {
    let Some(server) = alone(SERVER) else { return };
    let (mut connection, url) = empty(server.url(), "semel_replay").await;
    let store = soon(MysqlStore::open(&url)).await.unwrap();
    let claims: Vec<_> = (0..20).map(|n| claim_of(&n.to_string())).collect();
    for claim in &claims {
        let ticket = run_of(&store, claim).await;
        store.finish(ticket, completed("x")).await.unwrap();
    }
    let written = match SERVER {
        // Of this database only: MySQL's count of the whole server has what the question itself writes.
        Service::Mysql => {
            run(&mut connection, "SET SESSION information_schema_stats_expiry = 0").await;
            "SELECT SUM(COUNT_WRITE) FROM performance_schema.table_io_waits_summary_by_table \
             WHERE OBJECT_SCHEMA = 'semel_replay'"
        }
        _ => {
            "SELECT SUM(VARIABLE_VALUE) FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME IN \
             ('HANDLER_WRITE', 'HANDLER_UPDATE', 'HANDLER_DELETE')"
        }
    };
    let counter = "SELECT AUTO_INCREMENT FROM information_schema.TABLES WHERE TABLE_NAME = 'semel_fence' \
                   AND TABLE_SCHEMA = 'semel_replay'";
    let before = (number(&mut connection, written).await, number(&mut connection, counter).await);
    assert!(before.0 >= 40, "what was written is not seen: {before:?}");
    for _ in 0..5 {
        let asked = claims.iter().map(|claim| store.claim(claim.clone()));
        for met in soon(futures_util::future::join_all(asked)).await {
            assert!(matches!(met.unwrap(), Claimed::Replay(_)));
        }
    }
    let after = (number(&mut connection, written).await, number(&mut connection, counter).await);
    assert_eq!(before, after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_break_promises_are_reported() {
    let Some(server) = alone(SERVER) else { return };
    let (mut connection, url) = empty(server.url(), "semel_settings").await;
    let store = soon(MysqlStore::open(&url)).await.unwrap();
    assert!(store.capabilities().durable);
    assert_eq!(store.warnings(), [""; 0]);
    run(
        &mut connection,
        "SET GLOBAL innodb_flush_log_at_trx_commit = 2, GLOBAL max_allowed_packet = 1048576",
    )
    .await;
    let weak = soon(MysqlStore::open(&url)).await;
    run(
        &mut connection,
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1, GLOBAL max_allowed_packet = 16777216",
    )
    .await;
    let weak = weak.unwrap();
    assert!(!weak.capabilities().durable);
    assert_eq!(weak.warnings().len(), 2, "{:?}", weak.warnings());
    // What does not fit is refused before it is sent, and the claim stays.
    let ticket = run_of(&weak, &claim_of("large")).await;
    let large = completed(&"x".repeat(600_000));
    let error = weak.finish(ticket, large).await.expect_err("too large for this server");
    assert_eq!((error.kind(), error.fate()), (ErrorKind::TooLarge, Fate::NotApplied));
    weak.finish(ticket, completed("small")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_and_one_without_room_for_connections_are_outages() {
    let Some(server) = alone(SERVER) else { return };
    let (mut connection, url) = empty(server.url(), "semel_user").await;
    // A user with all privileges is not stopped by either.
    run(
        &mut connection,
        "DROP USER IF EXISTS plain@'127.0.0.1'; CREATE USER plain@'127.0.0.1'; GRANT ALL ON semel_user.* TO plain@'127.0.0.1'",
    )
    .await;
    let url = url.replace("root@", "plain@");
    let store = soon(MysqlStore::open(&url)).await.unwrap();
    let ticket = run_of(&store, &claim_of("before")).await;

    run(&mut connection, "SET GLOBAL read_only = 1").await;
    let claimed = soon(store.claim(claim_of("meanwhile"))).await;
    let finished = soon(store.finish(ticket, completed("x"))).await;
    let opened = soon(MysqlStore::open(&url)).await;
    run(&mut connection, "SET GLOBAL read_only = 0").await;
    for error in [claimed.map(drop).unwrap_err(), finished.map(drop).unwrap_err()] {
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied));
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    assert_eq!(opened.unwrap().warnings().len(), 1, "the tables are there, so it opens and warns");
    store.finish(ticket, completed("x")).await.unwrap();

    let max = number(&mut connection, "SELECT @@max_connections").await;
    run(&mut connection, "SET GLOBAL max_connections = 10").await;
    let mut crowd = Vec::new();
    // The connections of a store that was dropped may come free only now: until no other connection gets in.
    let error = soon(async {
        loop {
            while let Ok(another) = MySqlConnection::connect(&url).await {
                crowd.push(another);
            }
            if let Err(error) = MysqlStore::open(&url).await {
                return error;
            }
        }
    })
    .await;
    run(&mut connection, &format!("SET GLOBAL max_connections = {max}")).await;
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied));
    assert!(error.to_string().contains("max_connections"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_server_leaves_doubt_and_the_store_recovers() {
    let Some(server) = alone(SERVER) else { return };
    let (_connection, url) = empty(server.url(), "semel_pause").await;
    // The tables are made with patience; what follows opens under short bounds.
    soon(MysqlStore::open(&url)).await.unwrap().close().await;
    let url = url.replace("timeout-ms=60000", "timeout-ms=3000");
    let store = at_last(async || Some(MysqlStore::options().connections(1).open(&url).await)).await;
    assert!(matches!(settle(&store, &claim_of("warm")).await, Claimed::Run(_)));
    server.pause().unwrap();
    let claim = claim_of("paused");
    let error = soon(store.claim(claim.clone())).await.expect_err("it cannot answer");
    server.resume().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let Claimed::Run(ticket) = settle(&store, &claim).await else { panic!("no other has it") };
    assert!(ticket.lease_until > StoreTime(0));
}

#[tokio::test]
async fn an_address_without_a_listener_is_an_outage() {
    let error = soon(MysqlStore::open("mysql://root@127.0.0.1:9/semel")).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotApplied));
    assert!(error.to_string().contains("mysql://root@127.0.0.1:9/semel"), "{error}");
}
