//! Tables of another kind, as they are.

use semel::relay::cdc::{CdcOutbox, RoutedTable};
use semel::relay::{OutboxReader, Rebase, Settled};

use crate::cdc::world::{Running, World, batch, connect, drained, drop_slot, nothing, quick, refusal};
use crate::relay::sink::TestSink;

const TABLE: &str = "CREATE TABLE outbox (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype varchar(255) NOT NULL,
    aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb, made_at timestamptz DEFAULT now())";

fn insert(key: &str, n: u32) -> String {
    format!(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
         VALUES ('order', '{key}', 'OrderCreated', '{{\"n\": {n}}}');"
    )
}

#[tokio::test]
async fn rows_that_are_deleted_at_once_are_relayed() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    client.batch_execute(TABLE).await.unwrap();
    // Before the slot: not relayed.
    client.batch_execute(&insert("k", 0)).await.unwrap();
    let outbox = world.options().table(RoutedTable::debezium("outbox")).open().await.unwrap();
    let sink = TestSink::default();
    let relay = Running::start(outbox.source(), &sink, quick());
    crate::cdc::world::until("the slot is there", async || {
        let row = "SELECT count(*) FROM semel_outbox_slot";
        client.query_one(row, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    for n in 1..5 {
        let sql = format!("BEGIN; {} DELETE FROM outbox; COMMIT", insert("k", n));
        client.batch_execute(&sql).await.unwrap();
    }
    sink.wait_for(4).await;
    assert_eq!(sink.first_of_each()["k"], (1..5).map(|n| format!("{{\"n\": {n}}}")).collect::<Vec<_>>());
    relay.stop().await;
    let mut source = outbox.source();
    client.batch_execute(&insert("k", 5)).await.unwrap();
    let given = batch(&mut source).await;
    let event = &given.events[0].event;
    assert_eq!((event.topic(), event.kind()), ("outbox.event.order", "OrderCreated"));
    assert_eq!((event.ordered_by(), event.media_type()), (Some("k"), "application/json"));
    // Set aside and tried again it is the same.
    let refused = Settled::Parked { error: "no".into(), for_good: false, alone: false };
    source.ack(&[refused]).await.unwrap();
    client.batch_execute("UPDATE semel_outbox_parked_key SET due_at = now()").await.unwrap();
    let again = batch(&mut source).await;
    assert_eq!(again.events[0].event, *event);
    source.ack(&[Settled::Confirmed]).await.unwrap();
    source.release().await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn where_nothing_is_left_to_go_on_with_the_relay_stops_until_a_person_decides() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    client.batch_execute(TABLE).await.unwrap();
    let outbox = world.options().table(RoutedTable::debezium("outbox")).open().await.unwrap();
    let mut source = outbox.source();
    while world.slot("confirmed_flush_lsn").await.is_none() {
        nothing(&mut source).await;
    }
    // Two looks: the slot is made, then it streams.
    nothing(&mut source).await;
    client.batch_execute(&insert("k", 1)).await.unwrap();
    assert_eq!(drained(&mut source, 1).await, ["{\"n\": 1}"]);
    source.release().await.unwrap();
    drop_slot(&connect(&world.url).await, &world.name).await;
    client.batch_execute(&format!("BEGIN; {} DELETE FROM outbox; COMMIT", insert("k", 2))).await.unwrap();
    let relay = Running::start(outbox.source(), &TestSink::default(), quick());
    let stopped = relay.task.await.unwrap().unwrap_err();
    assert!(stopped.to_string().contains("semel outbox rebase"), "{stopped}");
    CdcOutbox::rebase(&world.url(), Rebase::FromNow).await.unwrap();
    let mut source = outbox.source();
    while world.slot("confirmed_flush_lsn").await.is_none() {
        nothing(&mut source).await;
    }
    nothing(&mut source).await;
    client.batch_execute(&insert("k", 3)).await.unwrap();
    assert_eq!(drained(&mut source, 1).await, ["{\"n\": 3}"]);
    source.release().await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn a_connector_s_slot_and_publication_are_taken_over_where_it_stopped() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let name = &world.name;
    client.batch_execute(TABLE).await.unwrap();
    let sql = format!(
        "CREATE TABLE orders (n int PRIMARY KEY, big text); CREATE PUBLICATION {name} FOR TABLE orders, outbox"
    );
    client.batch_execute(&sql).await.unwrap();
    let make = format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')");
    client.batch_execute(&make).await.unwrap();
    client.batch_execute(&insert("k", 0)).await.unwrap();
    // What the connector has confirmed.
    let advance = format!("SELECT pg_replication_slot_advance('{name}', pg_current_wal_lsn())");
    client.batch_execute(&advance).await.unwrap();
    // What it has not, among changes of other kinds.
    for n in 1..4 {
        let sql = format!(
            "BEGIN; INSERT INTO orders VALUES ({n}, repeat('x', 5000)); {} UPDATE orders SET n = n + 100;
             DELETE FROM outbox; COMMIT; TRUNCATE orders",
            insert("k", n)
        );
        client.batch_execute(&sql).await.unwrap();
    }
    let table = RoutedTable::debezium(&format!("{name}.outbox")).topic_prefix("events-");
    let mut source = world.options().create(false).table(table).open().await.unwrap().source();
    let first = batch(&mut source).await;
    assert_eq!(first.events[0].event.topic(), "events-order");
    let mut texts = crate::cdc::world::texts(&first);
    source.ack(&vec![Settled::Confirmed; first.events.len()]).await.unwrap();
    while texts.len() < 3 {
        texts.extend(drained(&mut source, 1).await);
    }
    assert_eq!(texts, ["{\"n\": 1}", "{\"n\": 2}", "{\"n\": 3}"]);
    source.release().await.unwrap();
    world.end().await;
}

/// Rows come under the names of the partitions then, which are not configured: all would be skipped as foreign.
#[tokio::test]
async fn a_publication_that_names_partitions_instead_of_the_table_is_refused() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let parts: String = (0..4)
        .map(|n| {
            format!("CREATE TABLE outbox_{n} PARTITION OF outbox FOR VALUES WITH (MODULUS 4, REMAINDER {n});")
        })
        .collect();
    let sql =
        format!("{TABLE} PARTITION BY HASH (id); {parts} CREATE PUBLICATION {} FOR TABLE outbox", world.name);
    client.batch_execute(&sql).await.unwrap();
    let outbox = world.options().table(RoutedTable::debezium("outbox")).open().await.unwrap();
    let refused = refusal(&mut outbox.source()).await;
    assert!(refused.to_string().contains("does not have the inserts"), "{refused}");
    // With the root it is fine.
    let rooted = format!("ALTER PUBLICATION {} SET (publish_via_partition_root = true)", world.name);
    client.batch_execute(&rooted).await.unwrap();
    world.lease_over().await;
    let mut source = outbox.source();
    while world.slot("confirmed_flush_lsn").await.is_none() {
        nothing(&mut source).await;
    }
    nothing(&mut source).await;
    client.batch_execute(&insert("k", 1)).await.unwrap();
    assert_eq!(drained(&mut source, 1).await, ["{\"n\": 1}"]);
    source.release().await.unwrap();
    world.end().await;
}
