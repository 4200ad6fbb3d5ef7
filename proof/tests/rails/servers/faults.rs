//! The kit's own faults: a server that was killed is dead, and one that was paused is deaf.

use std::time::Duration;

use ::redis::AsyncCommands;
use testkit::proxy::{Fault, Proxy};
use testkit::services::{Service, alone, require};

use crate::servers::postgres::connect as postgres;
use crate::servers::redis::{connect, connect_with};
use crate::servers::{soon, unique};

/// Long enough to see that nothing comes.
const NOT_NOW: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_killed_redis_is_gone_and_comes_back_with_what_it_acknowledged() {
    let Some(mut server) = alone(Service::Redis) else { return };
    let key = unique("survivor");
    let mut before = connect(server.url()).await;
    let _: () = before.set(&key, "acknowledged").await.unwrap();
    let run = run_id(&mut before).await;

    server.kill().unwrap();
    assert!(soon(before.get::<_, String>(&key)).await.is_err(), "a killed server answered");
    let address = server.url().trim_start_matches("redis://").to_owned();
    // On a busy machine the kernel takes a moment to close what a killed process had.
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while std::net::TcpStream::connect(&address).is_ok() {
        assert!(std::time::Instant::now() < until, "somebody still listens");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    server.start().unwrap();
    let mut after = connect(server.url()).await;
    assert_eq!(after.get::<_, String>(&key).await.unwrap(), "acknowledged");
    assert_ne!(run_id(&mut after).await, run, "it is the same process");
}

async fn run_id(connection: &mut ::redis::aio::MultiplexedConnection) -> String {
    let mut ask = ::redis::cmd("INFO");
    ask.arg("server");
    let info: String = soon(ask.query_async(connection)).await.expect("INFO");
    info.lines().find_map(|line| line.strip_prefix("run_id:")).expect("a run id").to_owned()
}

#[tokio::test]
async fn a_killed_postgres_takes_its_backends_along_and_keeps_what_it_committed() {
    let Some(mut server) = alone(Service::Postgres) else { return };
    let table = unique("survivor");
    let before = postgres(server.url()).await;
    let create = format!("CREATE TABLE {table} (id int); INSERT INTO {table} VALUES (1)");
    before.batch_execute(&create).await.unwrap();
    let open = format!("BEGIN; INSERT INTO {table} VALUES (2)");
    before.batch_execute(&open).await.unwrap();

    server.restart().unwrap();
    assert!(soon(before.batch_execute("COMMIT")).await.is_err(), "a backend outlived its server");
    let after = postgres(server.url()).await;
    let rows = after.query(&format!("SELECT id FROM {table}"), &[]).await.unwrap();
    let ids: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(ids, [1]);
    after.batch_execute(&format!("DROP TABLE {table}")).await.unwrap();
}

#[tokio::test]
async fn a_paused_redis_is_deaf_and_answers_when_resumed() {
    let Some(server) = alone(Service::Redis) else { return };
    let mut connection = connect(server.url()).await;
    let key = unique("patient");
    server.pause().unwrap();
    let waiting = tokio::spawn(async move { connection.set::<_, _, ()>(&key, "late").await });
    tokio::time::sleep(NOT_NOW).await;
    assert!(!waiting.is_finished(), "a paused server answered, or the wait failed");
    server.resume().unwrap();
    // A client may give up on the connection; a server that is back answers a new one.
    let _ = soon(waiting).await.unwrap();
    let mut fresh = connect(server.url()).await;
    let pong: String = soon(::redis::cmd("PING").query_async(&mut fresh)).await.unwrap();
    assert_eq!(pong, "PONG");
}

#[tokio::test]
async fn a_dropped_answer_leaves_a_write_that_happened() {
    let Some(server) = require(Service::Redis) else { return };
    let proxy = Proxy::start(server.url().trim_start_matches("redis://")).unwrap();
    let mut through = connect_with(&format!("redis://{}", proxy.addr()), Duration::from_secs(5)).await;
    let key = unique("in-doubt");
    proxy.set(Fault::DropResponse);
    assert!(soon(through.set::<_, _, ()>(&key, "done")).await.is_err(), "the answer got through");
    let mut direct = connect(server.url()).await;
    assert_eq!(direct.get::<_, String>(&key).await.unwrap(), "done");
}
