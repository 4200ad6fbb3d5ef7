//! The slot is lost, and no event with it.

use std::time::Duration;

use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{OutboxReader, Settled};

use crate::cdc::world::{
    LEASE, Running, World, batch, connect, drained, drop_slot, insert, nothing, quick, until,
};
use crate::relay::sink::TestSink;

fn numbers(until: u32) -> Vec<String> {
    (0..until).map(|n| n.to_string()).collect()
}

async fn fill(world: &World, range: std::ops::Range<u32>) {
    let client = world.connect().await;
    for n in range {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
    }
}

#[tokio::test]
async fn a_dropped_slot_is_made_anew_and_the_table_has_the_rest() {
    let Some(world) = World::new().await else { return };
    let sink = TestSink::default();
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    fill(&world, 0..10).await;
    sink.wait_for(10).await;
    // While it streams.
    drop_slot(&connect(&world.url).await, &world.name).await;
    fill(&world, 10..20).await;
    sink.wait_for(20).await;
    relay.stop().await;
    // While no relay runs.
    drop_slot(&connect(&world.url).await, &world.name).await;
    fill(&world, 20..30).await;
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    sink.wait_for(30).await;
    fill(&world, 30..40).await;
    sink.wait_for(40).await;
    assert_eq!(sink.first_of_each()["a"], numbers(40));
    relay.stop().await;
    world.end().await;
}

#[tokio::test]
async fn a_slot_that_somebody_made_anew_is_not_believed() {
    let Some(world) = World::new().await else { return };
    let sink = TestSink::default();
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    fill(&world, 0..5).await;
    sink.wait_for(5).await;
    relay.stop().await;
    let client = connect(&world.url).await;
    drop_slot(&client, &world.name).await;
    fill(&world, 5..10).await;
    // It has the right name, and knows nothing of what was committed before.
    let make = format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", world.name);
    client.batch_execute(&make).await.unwrap();
    fill(&world, 10..15).await;
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    sink.wait_for(15).await;
    assert_eq!(sink.first_of_each()["a"], numbers(15));
    relay.stop().await;
    world.end().await;
}

#[tokio::test]
async fn a_publication_made_anew_is_survived() {
    let Some(world) = World::new().await else { return };
    let sink = TestSink::default();
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    fill(&world, 0..5).await;
    sink.wait_for(5).await;
    let client = connect(&world.url).await;
    client.batch_execute(&format!("DROP PUBLICATION {}", world.name)).await.unwrap();
    fill(&world, 5..10).await;
    sink.wait_for(10).await;
    fill(&world, 10..15).await;
    sink.wait_for(15).await;
    assert_eq!(sink.first_of_each()["a"], numbers(15));
    relay.stop().await;
    world.end().await;
}

#[tokio::test]
async fn a_relay_that_dies_while_it_reads_the_table_goes_on_there() {
    let Some(world) = World::new().await else { return };
    fill(&world, 0..12).await;
    let outbox = world.options().batch_max(4, 1 << 20).open().await.unwrap();
    let mut source = outbox.source();
    assert_eq!(drained(&mut source, 4).await, numbers(4));
    assert_eq!(batch(&mut source).await.events.len(), 4);
    drop(source);
    world.lease_over().await;
    fill(&world, 12..16).await;
    let mut source = outbox.source();
    let texts = drained(&mut source, 12).await;
    assert_eq!(texts, (4..16).map(|n| n.to_string()).collect::<Vec<_>>());
    source.release().await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn a_slot_that_holds_too_much_is_let_go_and_nothing_is_lost() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let options = world.options().held_bytes_max(1 << 20);
    let mut source = options.open().await.unwrap().source();
    fill(&world, 0..2).await;
    drained(&mut source, 2).await;
    fill(&world, 2..3).await;
    // The sink is down: the batch is kept, and the log grows.
    assert_eq!(batch(&mut source).await.events.len(), 1);
    client
        .batch_execute("CREATE TABLE foreign_work (t text); INSERT INTO foreign_work SELECT repeat('x', 500) FROM generate_series(1, 5000)")
        .await
        .unwrap();
    let source = std::sync::Arc::new(tokio::sync::Mutex::new(source));
    until("the slot is let go", async || {
        source.lock().await.renew_lease().await.unwrap();
        world.slot("slot_name").await.is_none()
    })
    .await;
    let mut source = source.lock().await;
    fill(&world, 3..5).await;
    source.ack(&[Settled::Confirmed]).await.unwrap();
    let mut texts = Vec::new();
    while texts.last().is_none_or(|last| last != "4") {
        texts.extend(drained(&mut *source, 1).await);
    }
    assert!(texts.ends_with(&["3".to_owned(), "4".to_owned()]), "{texts:?}");
    source.release().await.unwrap();
    drop(source);
    world.end().await;
}

#[tokio::test]
async fn a_slot_that_holds_too_much_while_the_table_is_read_is_let_go_and_the_walk_goes_on() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    fill(&world, 0..4).await;
    let options = world.options().held_bytes_max(1 << 20).batch_max(1, 1 << 20);
    let mut source = options.open().await.unwrap().source();
    drained(&mut source, 1).await;
    // From the table, and the sink is down.
    assert_eq!(batch(&mut source).await.events.len(), 1);
    client
        .batch_execute("CREATE TABLE foreign_work (t text); INSERT INTO foreign_work SELECT repeat('x', 500) FROM generate_series(1, 5000)")
        .await
        .unwrap();
    let source = std::sync::Arc::new(tokio::sync::Mutex::new(source));
    until("the slot is let go", async || {
        source.lock().await.renew_lease().await.unwrap();
        world.slot("slot_name").await.is_none()
    })
    .await;
    let mut source = source.lock().await;
    fill(&world, 4..6).await;
    source.ack(&[Settled::Confirmed]).await.unwrap();
    // Nothing again: the walk is not begun anew.
    assert_eq!(drained(&mut *source, 4).await, ["2", "3", "4", "5"]);
    source.release().await.unwrap();
    drop(source);
    world.end().await;
}

#[tokio::test]
async fn polling_and_reading_the_log_go_on_where_the_other_was() {
    let Some(world) = World::new().await else { return };
    let sink = TestSink::default();
    let polling = PostgresOutbox::options(&world.url()).unwrap().lease(LEASE).open().await.unwrap();
    let relay = Running::start(polling.source(), &sink, quick());
    fill(&world, 0..10).await;
    sink.wait_for(10).await;
    relay.stop().await;
    fill(&world, 10..20).await;
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    sink.wait_for(20).await;
    fill(&world, 20..30).await;
    sink.wait_for(30).await;
    // Who polls while the log is read gets nothing.
    let mut idle = polling.source();
    fill(&world, 30..40).await;
    sink.wait_for(40).await;
    for _ in 0..20 {
        nothing(&mut idle).await;
    }
    idle.release().await.unwrap();
    relay.stop().await;
    fill(&world, 40..50).await;
    let relay = Running::start(polling.source(), &sink, quick());
    sink.wait_for(50).await;
    relay.stop().await;
    fill(&world, 50..60).await;
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    sink.wait_for(60).await;
    assert_eq!(sink.first_of_each()["a"], numbers(60));
    relay.stop().await;
    world.end().await;
}

#[tokio::test]
async fn what_was_published_is_forgotten_and_nothing_else() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let mut source = world.outbox().await.source();
    fill(&world, 0..5).await;
    drained(&mut source, 5).await;
    let left =
        async || -> i64 { client.query_one("SELECT count(*) FROM semel_outbox", &[]).await.unwrap().get(0) };
    let source = std::sync::Arc::new(tokio::sync::Mutex::new(source));
    until("the table is emptied", async || {
        let mut source = source.lock().await;
        nothing(&mut *source).await;
        source.prune(Duration::ZERO).await.unwrap();
        left().await == 0
    })
    .await;
    let mut source = source.lock().await;
    fill(&world, 5..6).await;
    // Not even read.
    source.prune(Duration::ZERO).await.unwrap();
    assert_eq!(left().await, 1);
    // Read, and not done.
    assert_eq!(batch(&mut *source).await.events.len(), 1);
    source.prune(Duration::ZERO).await.unwrap();
    assert_eq!(left().await, 1);
    source.ack(&[Settled::Confirmed]).await.unwrap();
    source.release().await.unwrap();
    drop(source);
    world.end().await;
}

#[tokio::test]
async fn a_relay_that_dies_while_its_slot_is_being_made_leaves_nothing_half_made() {
    let Some(world) = World::new().await else { return };
    let (held, client) = (world.connect().await, world.connect().await);
    fill(&world, 0..2).await;
    // Making a slot waits for it.
    held.batch_execute(&format!("BEGIN; {}", insert("b", "held"))).await.unwrap();
    let outbox = world.outbox().await;
    let mut first = outbox.source();
    for _ in 0..5 {
        nothing(&mut first).await;
    }
    drop(first);
    world.lease_over().await;
    let second = std::sync::Arc::new(tokio::sync::Mutex::new(outbox.source()));
    until("the second makes it", async || {
        nothing(&mut *second.lock().await).await;
        world.slot("active_pid").await.is_some()
    })
    .await;
    held.batch_execute("COMMIT").await.unwrap();
    let mut second = second.lock().await;
    let mut texts = drained(&mut *second, 3).await;
    texts.sort_unstable();
    assert_eq!(texts, ["0", "1", "held"]);
    let row = client.query_one("SELECT acked > '0/0' FROM semel_outbox_slot", &[]).await.unwrap();
    assert!(row.get::<_, bool>(0));
    second.release().await.unwrap();
    drop(second);
    world.end().await;
}
