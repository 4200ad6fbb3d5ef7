//! What comes again after a crash, and what does not. The planted bugs are caught by the same steps.

use std::time::Duration;

use semel::relay::cdc::{CdcOutboxOptions, PlantedBug};
use semel::relay::{OutboxReader, Settled};

use crate::cdc::world::{World, batch, drained, insert, nothing, texts, until};

fn transaction(texts: std::ops::Range<u32>) -> String {
    let inserts: String = texts.map(|n| insert("a", &n.to_string())).collect();
    format!("BEGIN; {inserts} COMMIT")
}

/// Stops in the middle of a transaction, in order, and goes on; then one more event.
async fn stopped_within(world: &World, options: CdcOutboxOptions) -> Vec<String> {
    let client = world.connect().await;
    let outbox = options.batch_max(4, 1 << 20).open().await.unwrap();
    let mut source = outbox.source();
    client.batch_execute(&insert("a", "before")).await.unwrap();
    let mut read = drained(&mut source, 1).await;
    client.batch_execute(&transaction(0..10)).await.unwrap();
    read.extend(drained(&mut source, 4).await);
    source.release().await.unwrap();
    client.batch_execute(&insert("a", "after")).await.unwrap();
    let mut source = outbox.source();
    while read.last().is_none_or(|last| last != "after") {
        read.extend(drained(&mut source, 1).await);
    }
    source.release().await.unwrap();
    read
}

#[tokio::test]
async fn events_of_one_commit_are_distinguished() {
    let Some(world) = World::new().await else { return };
    let read = Box::pin(stopped_within(&world, world.options())).await;
    let mut expected = vec!["before".to_owned()];
    expected.extend((0..10).map(|n| n.to_string()));
    expected.push("after".into());
    assert_eq!(read, expected);
    world.end().await;
}

#[tokio::test]
async fn a_place_that_is_only_a_commit_is_caught_losing_the_rest_of_it() {
    let Some(world) = World::new().await else { return };
    let read = Box::pin(stopped_within(&world, world.options().plant(PlantedBug::CommitOnly))).await;
    assert_eq!(read, ["before", "0", "1", "2", "3", "after"]);
    world.end().await;
}

/// Dies with a batch that the sink was never given; then one more event.
async fn died_with_a_batch(world: &World, options: CdcOutboxOptions) -> Vec<String> {
    let client = world.connect().await;
    let outbox = options.checkpoint_interval(Duration::from_millis(1)).open().await.unwrap();
    let mut source = outbox.source();
    client.batch_execute(&insert("a", "0")).await.unwrap();
    let mut read = drained(&mut source, 1).await;
    client.batch_execute(&insert("a", "1")).await.unwrap();
    assert_eq!(texts(&batch(&mut source).await), ["1"]);
    // It is kept for a while, with a keepalive to the server.
    for _ in 0..3 {
        source.renew_lease().await.unwrap();
    }
    drop(source);
    world.lease_over().await;
    client.batch_execute(&insert("a", "2")).await.unwrap();
    let mut source = outbox.source();
    while read.last().is_none_or(|last| last != "2") {
        read.extend(drained(&mut source, 1).await);
    }
    source.release().await.unwrap();
    read
}

#[tokio::test]
async fn what_was_not_confirmed_comes_again() {
    let Some(world) = World::new().await else { return };
    let read = Box::pin(died_with_a_batch(&world, world.options())).await;
    // Nothing was lost. What was confirmed just before may come again.
    assert_eq!(read.iter().filter(|text| *text != "0").collect::<Vec<_>>(), ["1", "2"]);
    world.end().await;
}

#[tokio::test]
async fn acknowledging_what_is_not_confirmed_is_caught_losing_it() {
    let Some(world) = World::new().await else { return };
    let options = world.options().plant(PlantedBug::AckUnconfirmed);
    let read = Box::pin(died_with_a_batch(&world, options)).await;
    assert_eq!(read, ["0", "2"]);
    world.end().await;
}

#[tokio::test]
async fn the_server_hears_only_of_whole_transactions_that_are_done_and_written_down() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let outbox = world
        .options()
        .checkpoint_interval(Duration::from_millis(1))
        .batch_max(1, 1 << 20)
        .open()
        .await
        .unwrap();
    let mut source = outbox.source();
    client.batch_execute(&insert("a", "0")).await.unwrap();
    drained(&mut source, 1).await;
    let before: String =
        client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).await.unwrap().get(0);
    client.batch_execute(&transaction(1..6)).await.unwrap();
    for n in 1..5 {
        assert_eq!(texts(&batch(&mut source).await), [n.to_string()]);
        source.ack(&[Settled::Confirmed]).await.unwrap();
    }
    // Four of five are done: the commit is not.
    let past = "SELECT $1::text::pg_lsn <= $2::text::pg_lsn";
    let at = confirmed(&world).await;
    let row = client.query_one(past, &[&at, &before]).await.unwrap();
    assert!(row.get::<_, bool>(0), "{at} was confirmed with a transaction half done, {before}");
    assert_eq!(batch(&mut source).await.events.len(), 1);
    source.ack(&[Settled::Confirmed]).await.unwrap();
    let mut moved = false;
    for _ in 0..200 {
        nothing(&mut source).await;
        let row = client.query_one(past, &[&confirmed(&world).await, &before]).await.unwrap();
        moved = !row.get::<_, bool>(0);
        if moved {
            break;
        }
    }
    assert!(moved);
    source.release().await.unwrap();
    world.end().await;
}

async fn confirmed(world: &World) -> String {
    world.slot("confirmed_flush_lsn").await.unwrap()
}

#[tokio::test]
async fn an_idle_outbox_beside_a_busy_database_holds_no_log() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let mut source = world.outbox().await.source();
    client.batch_execute(&insert("a", "0")).await.unwrap();
    drained(&mut source, 1).await;
    client
        .batch_execute("CREATE TABLE foreign_work (t text); INSERT INTO foreign_work SELECT repeat('x', 500) FROM generate_series(1, 5000)")
        .await
        .unwrap();
    let now: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).await.unwrap().get(0);
    let source = std::sync::Arc::new(tokio::sync::Mutex::new(source));
    until("confirmed_flush_lsn moves", async || {
        nothing(&mut *source.lock().await).await;
        let at = confirmed(&world).await;
        let row =
            client.query_one("SELECT $1::text::pg_lsn >= $2::text::pg_lsn", &[&at, &now]).await.unwrap();
        row.get(0)
    })
    .await;
    // Of the whole server, where others may have written meanwhile.
    until("the lag is small", async || {
        nothing(&mut *source.lock().await).await;
        source.lock().await.lag().await.unwrap().bytes.is_some_and(|bytes| bytes < 1 << 20)
    })
    .await;
    source.lock().await.release().await.unwrap();
    world.end().await;
}

/// What is kept for the slot begins with the oldest transaction that is under way, not with what was confirmed last.
#[tokio::test]
async fn what_the_server_keeps_is_reported_as_the_server_has_it() {
    let Some(world) = World::new().await else { return };
    let (client, open) = (world.connect().await, world.connect().await);
    let mut source = world.outbox().await.source();
    client.batch_execute(&insert("a", "1")).await.unwrap();
    assert_eq!(drained(&mut source, 1).await, ["1"]);
    while !world.streams().await {
        nothing(&mut source).await;
    }
    open.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    client.batch_execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 2000000))").await.unwrap();
    client.batch_execute(&insert("a", "2")).await.unwrap();
    assert_eq!(drained(&mut source, 1).await, ["2"]);
    let kept = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::bigint
                FROM pg_replication_slots WHERE slot_name = $1::text::name";
    let kept: i64 = client.query_one(kept, &[&world.name]).await.unwrap().get(0);
    assert!(kept > 2_000_000, "{kept}");
    let reported = source.lag().await.unwrap().bytes.unwrap();
    // It may have come forward since, but not beyond what is open.
    assert!(reported > 2_000_000, "the server keeps {kept} bytes, and {reported} are reported");
    open.batch_execute("COMMIT").await.unwrap();
    source.release().await.unwrap();
    world.end().await;
}
