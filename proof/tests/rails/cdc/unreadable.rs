//! A row that cannot be read is an event to park, and the others go on.

use semel::relay::cdc::RoutedTable;
use semel::relay::poll::postgres::PostgresOutbox;
use testkit::services::{Service, require};

use crate::cdc::world::{Running, World, insert, quick, until};
use crate::relay::sink::TestSink;
use crate::relay::world::{ODD_ROW, ascii_database, drop_database};

#[tokio::test]
async fn in_a_database_of_any_bytes() {
    let Some(server) = require(Service::Postgres) else { return };
    let url = ascii_database(server.url()).await;
    let world = World::on(&url).await;
    let sink = TestSink::default();
    let client = world.connect().await;
    // Once from the table, and once from the log.
    client.batch_execute(ODD_ROW).await.unwrap();
    client.batch_execute(&insert("a", "a1")).await.unwrap();
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    sink.wait_for(1).await;
    client.batch_execute(&ODD_ROW.replace("'odd'", "'other'")).await.unwrap();
    client.batch_execute(&format!("{}{}", insert("other", "behind"), insert("a", "a2"))).await.unwrap();
    sink.wait_for(2).await;
    let admin = PostgresOutbox::open(&world.url()).await.unwrap();
    until("three are parked", async || admin.parked(None, 10).await.unwrap().len() == 3).await;
    let parked = admin.parked(None, 10).await.unwrap();
    let keys: Vec<(&str, bool)> = parked.iter().map(|one| (one.key.as_str(), one.error.is_some())).collect();
    assert_eq!(keys, [("odd", true), ("other", true), ("other", false)]);
    for error in parked.iter().filter_map(|one| one.error.as_ref()) {
        assert!(error.contains("topic") && error.contains("not UTF-8") && error.contains("74ff"), "{error}");
    }
    assert_eq!(sink.first_of_each()["a"], ["a1", "a2"]);
    relay.stop().await;
    world.end().await;
    drop_database(server.url(), &url).await;
}

#[tokio::test]
async fn also_in_a_table_of_another_kind() {
    let Some(server) = require(Service::Postgres) else { return };
    let url = ascii_database(server.url()).await;
    let world = World::on(&url).await;
    let (client, sink) = (world.connect().await, TestSink::default());
    let table = "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text,
                     aggregateid text, type text, payload text)";
    client.batch_execute(table).await.unwrap();
    let outbox = world.options().table(RoutedTable::debezium("outbox")).open().await.unwrap();
    let relay = Running::start(outbox.source(), &sink, quick());
    until("it streams", async || world.streams().await).await;
    let rows = "SET client_encoding = 'SQL_ASCII';
        INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
            VALUES (convert_from('\\x74ff', 'SQL_ASCII'), 'odd', 'made', 'odd'), ('t', 'a', 'made', 'a1')";
    client.batch_execute(rows).await.unwrap();
    sink.wait_for(1).await;
    let admin = PostgresOutbox::open(&world.url()).await.unwrap();
    until("one is parked", async || admin.parked(None, 10).await.unwrap().len() == 1).await;
    assert!(admin.parked(None, 10).await.unwrap()[0].error.as_ref().unwrap().contains("not UTF-8"));
    relay.stop().await;
    world.end().await;
    drop_database(server.url(), &url).await;
}
