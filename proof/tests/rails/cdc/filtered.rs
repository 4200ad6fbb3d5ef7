//! A publication that leaves rows out.

use std::time::Duration;

use semel::relay::cdc::{RoutedTable, Severity};
use semel::relay::{OutboxReader, RelayError, Settled};

use crate::cdc::world::{Running, World, batch, insert, nothing, quick, refusal, texts, until};
use crate::relay::sink::TestSink;

async fn publish(world: &World, filter: &str) {
    let name = &world.name;
    let sql = format!("ALTER PUBLICATION {name} SET TABLE semel_outbox {filter}");
    world.connect().await.batch_execute(&sql).await.unwrap();
}

#[tokio::test]
async fn a_row_filter_is_refused_at_the_start() {
    let Some(world) = World::new().await else { return };
    let (client, name) = (world.connect().await, &world.name);
    let sql = format!(
        "CREATE PUBLICATION {name} FOR TABLE semel_outbox WHERE (topic <> 'mail')
         WITH (publish = 'insert', publish_via_partition_root = true)"
    );
    client.batch_execute(&sql).await.unwrap();
    let outbox = world.outbox().await;
    let findings = outbox.check().await.unwrap();
    let finding = findings.iter().find(|finding| finding.about == "publication").unwrap();
    assert!(finding.severity == Severity::Error && finding.says.contains("row filter"), "{finding:?}");
    let refused = refusal(&mut outbox.source()).await;
    assert!(refused.to_string().contains("row filter") && !refused.may_retry(), "{refused}");
    world.end().await;
}

#[tokio::test]
async fn a_row_filter_on_a_table_of_another_kind_is_refused() {
    let Some(world) = World::new().await else { return };
    let (client, name) = (world.connect().await, &world.name);
    let sql = format!(
        "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload text);
         CREATE PUBLICATION {name} FOR TABLE outbox WHERE (aggregatetype <> 'mail') WITH (publish = 'insert')"
    );
    client.batch_execute(&sql).await.unwrap();
    let outbox = world.options().table(RoutedTable::debezium("outbox")).open().await.unwrap();
    let refused = refusal(&mut outbox.source()).await;
    assert!(refused.to_string().contains("row filter"), "{refused}");
    world.end().await;
}

/// A filter that comes later stops the relay. When it is gone, what it kept back comes from the table.
#[tokio::test]
async fn a_row_filter_that_comes_later_stops_the_relay_and_loses_nothing() {
    let Some(world) = World::new().await else { return };
    let (client, sink) = (world.connect().await, TestSink::default());
    // Looked at each time that the lease is renewed.
    let outbox = world.options().lease(Duration::from_secs(3)).open().await.unwrap();
    let relay = Running::start(outbox.source(), &sink, quick());
    client.batch_execute(&insert("a", "a1")).await.unwrap();
    sink.wait_for(1).await;
    until("it streams", async || world.streams().await).await;
    publish(&world, "WHERE (key <> 'b')").await;
    client.batch_execute(&format!("{}{}", insert("b", "b1"), insert("a", "a2"))).await.unwrap();
    let ended = relay.task.await.unwrap();
    let Err(RelayError::Outbox(error)) = ended else { panic!("{ended:?}") };
    assert!(error.to_string().contains("row filter"), "{error}");
    publish(&world, "").await;
    let relay = Running::start(outbox.source(), &sink, quick());
    client.batch_execute(&insert("b", "b2")).await.unwrap();
    sink.wait_for(4).await;
    assert_eq!(sink.first_of_each()["b"], ["b1", "b2"]);
    assert_eq!(sink.first_of_each()["a"], ["a1", "a2"]);
    relay.stop().await;
    world.end().await;
}

/// One that comes and goes between two looks is seen by what the table has and the stream had not.
#[tokio::test]
async fn rows_that_the_stream_left_out_come_from_the_table() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let mut source = world.outbox().await.source();
    client.batch_execute(&insert("a", "a0")).await.unwrap();
    assert_eq!(texts(&batch(&mut source).await), ["a0"]);
    source.ack(&[Settled::Confirmed]).await.unwrap();
    until("it streams", async || {
        nothing(&mut source).await;
        world.streams().await
    })
    .await;
    // So that it is known from where on the stream has all.
    for n in 1..4 {
        client.batch_execute(&insert("a", &format!("a{n}"))).await.unwrap();
        assert_eq!(texts(&batch(&mut source).await), [format!("a{n}")]);
        source.ack(&[Settled::Confirmed]).await.unwrap();
        until("it is written down", async || {
            nothing(&mut source).await;
            let low = "SELECT count(*) FROM semel_outbox o, semel_outbox_cursor c
                       WHERE c.lane = 0 AND NOT pg_visible_in_snapshot(o.xid, c.low)";
            client.query_one(low, &[]).await.unwrap().get::<_, i64>(0) == 0
        })
        .await;
    }
    publish(&world, "WHERE (key <> 'b')").await;
    client.batch_execute(&insert("b", "b1")).await.unwrap();
    publish(&world, "").await;
    let mut came = Vec::new();
    while !came.contains(&"b1".to_owned()) {
        let given = batch(&mut source).await;
        came.extend(texts(&given));
        let _ = source.ack(&vec![Settled::Confirmed; given.events.len()]).await;
    }
    source.release().await.unwrap();
    world.end().await;
}
