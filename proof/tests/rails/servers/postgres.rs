use testkit::services::{Service, require};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::servers::{soon, unique};

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = soon(tokio_postgres::connect(url, NoTls)).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// What a logical slot has to tell, consumed.
async fn changes(client: &Client, slot: &str) -> Vec<String> {
    let query = format!("SELECT data FROM pg_logical_slot_get_changes('{slot}', NULL, NULL)");
    let rows = soon(client.simple_query(&query)).await.expect("changes");
    rows.iter()
        .filter_map(|row| match row {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn a_logical_slot_delivers_what_was_committed_and_only_that() {
    let Some(postgres) = require(Service::Postgres) else { return };
    let mut client = connect(postgres.url()).await;
    let (table, slot) = (unique("smoke"), unique("slot"));
    client.batch_execute(&format!("CREATE TABLE {table} (id text PRIMARY KEY)")).await.unwrap();
    // Temporary: a slot that a failed test leaves behind would keep WAL for ever.
    let create = format!("SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding', true)");
    client.batch_execute(&create).await.unwrap();

    let insert = format!("INSERT INTO {table} VALUES ($1)");
    let lost = client.transaction().await.unwrap();
    lost.execute(&insert, &[&"rolled-back"]).await.unwrap();
    lost.rollback().await.unwrap();
    let kept = client.transaction().await.unwrap();
    kept.execute(&insert, &[&"committed"]).await.unwrap();
    kept.commit().await.unwrap();

    let seen: Vec<_> =
        changes(&client, &slot).await.into_iter().filter(|change| change.contains(&table)).collect();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(seen[0].contains("INSERT") && seen[0].contains("'committed'"), "{seen:?}");
    // Other tests write to other tables of this database meanwhile.
    let mut again = changes(&client, &slot).await;
    again.retain(|change| change.contains(&table));
    assert_eq!(again, [] as [&str; 0], "a consumed change came again");

    client.batch_execute(&format!("SELECT pg_drop_replication_slot('{slot}')")).await.unwrap();
    let left = client.query("SELECT 1 FROM pg_replication_slots WHERE slot_name = $1", &[&slot]).await;
    assert!(left.unwrap().is_empty(), "the slot was not dropped");
    client.batch_execute(&format!("DROP TABLE {table}")).await.unwrap();
}

#[tokio::test]
async fn it_is_set_up_for_durability_and_replication() {
    let Some(postgres) = require(Service::Postgres) else { return };
    let client = connect(postgres.url()).await;
    for (setting, value) in [("wal_level", "logical"), ("fsync", "on"), ("synchronous_commit", "on")] {
        let row = client.query_one("SELECT current_setting($1)", &[&setting]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), value, "{setting}");
    }
}
