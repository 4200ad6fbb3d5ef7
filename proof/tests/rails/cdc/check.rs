//! What is said of a server before anything depends on it.

use semel::relay::OutboxReader;
use semel::relay::cdc::{CdcOutbox, Finding, RoutedTable, Severity};

use crate::cdc::world::{World, batch, insert, nothing, refusal};

fn of<'a>(findings: &'a [Finding], about: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.about == about).unwrap()
}

#[tokio::test]
async fn what_is_right_and_what_is_not_is_reported() {
    let Some(world) = World::new().await else { return };
    let outbox = world.outbox().await;
    let findings = outbox.check().await.unwrap();
    for about in ["wal_level", "rights", "slots", "senders", "slot", "publication"] {
        assert_eq!(of(&findings, about).severity, Severity::Fine, "{findings:?}");
    }
    assert_eq!(of(&findings, "max_slot_wal_keep_size").severity, Severity::Warning);
    assert!(of(&findings, "slot").says.contains("will be created"));
    // Nothing was made by looking.
    assert_eq!(world.slot("slot_name").await, None);

    let strict = world.options().create(false).open().await.unwrap();
    let findings = strict.check().await.unwrap();
    assert_eq!(of(&findings, "slot").severity, Severity::Error);
    assert!(of(&findings, "publication").says.contains("CREATE PUBLICATION"));
    let refused = refusal(&mut strict.source()).await;
    assert!(!refused.may_retry() && refused.to_string().contains("CREATE PUBLICATION"), "{refused}");

    // A publication of something else.
    let client = world.connect().await;
    let name = &world.name;
    let sql = format!("CREATE TABLE other (n int); CREATE PUBLICATION {name} FOR TABLE other");
    client.batch_execute(&sql).await.unwrap();
    assert_eq!(of(&outbox.check().await.unwrap(), "publication").severity, Severity::Error);
    // The one that was refused has died with its lease.
    world.lease_over().await;
    let refused = refusal(&mut outbox.source()).await;
    assert!(refused.to_string().contains("does not have the inserts"), "{refused}");
    world.end().await;
}

#[tokio::test]
async fn a_user_with_few_rights_uses_what_an_administrator_made() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let name = &world.name;
    client
        .batch_execute(&format!(
            "CREATE ROLE {name}_relay LOGIN REPLICATION;
             GRANT USAGE ON SCHEMA {name} TO {name}_relay;
             GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {name}_relay;
             GRANT INSERT, UPDATE, DELETE ON semel_outbox_slot, semel_outbox_cursor, semel_outbox_relay,
                 semel_outbox_parked, semel_outbox_parked_key TO {name}_relay;
             CREATE PUBLICATION {name} FOR TABLE semel_outbox
                 WITH (publish = 'insert', publish_via_partition_root = true)"
        ))
        .await
        .unwrap();
    client
        .batch_execute(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"))
        .await
        .unwrap();
    let url = world.url().replace("postgres@", &format!("{name}_relay@"));
    let mut source = world.options_at(&url).create(false).open().await.unwrap().source();
    client.batch_execute(&insert("a", "1")).await.unwrap();
    assert_eq!(batch(&mut source).await.events.len(), 1);
    source.ack(&[semel::relay::Settled::Confirmed]).await.unwrap();
    client.batch_execute(&insert("a", "2")).await.unwrap();
    assert_eq!(batch(&mut source).await.events.len(), 1);
    source.release().await.unwrap();
    client.batch_execute(&format!("DROP OWNED BY {name}_relay; DROP ROLE {name}_relay")).await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn a_table_that_is_not_there_or_has_other_columns_is_named() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let outbox = world.options().table(RoutedTable::debezium("orders")).open().await.unwrap();
    let refused = outbox.check().await.unwrap_err();
    assert!(refused.to_string().contains("no table orders"), "{refused}");
    client.batch_execute("CREATE TABLE orders (id uuid, kind text)").await.unwrap();
    assert_eq!(of(&outbox.check().await.unwrap(), "table").severity, Severity::Warning);
    let mut source = outbox.source();
    while world.slot("confirmed_flush_lsn").await.is_none() {
        nothing(&mut source).await;
    }
    client.batch_execute("INSERT INTO orders VALUES (gen_random_uuid(), 'x')").await.unwrap();
    let refused = refusal(&mut source).await;
    assert!(refused.to_string().contains("has no column aggregatetype"), "{refused}");
    assert!(!refused.may_retry());
    source.release().await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn by_default_each_outbox_has_a_slot_of_its_own() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let mut source = CdcOutbox::open(&world.url()).await.unwrap().source();
    client.batch_execute(&insert("a", "1")).await.unwrap();
    assert_eq!(batch(&mut source).await.events.len(), 1);
    let row = client.query_one("SELECT name FROM semel_outbox_slot", &[]).await.unwrap();
    let name: String = row.get(0);
    assert!(name.starts_with("semel_outbox_"), "{name}");
    drop(source);
    client.batch_execute(&format!("DROP PUBLICATION {name}")).await.unwrap();
    crate::cdc::world::drop_slot(&client, &name).await;
    world.end().await;
}
