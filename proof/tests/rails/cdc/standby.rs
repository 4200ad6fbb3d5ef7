//! Several relays, of which one is active.

use std::time::Duration;

use semel::relay::{OutboxReader, OutboxReaderError, Settled};

use crate::cdc::world::{Running, World, batch, insert, nothing, quick, texts};
use crate::relay::sink::TestSink;

/// One whose end is waited for.
const SHORT: Duration = Duration::from_secs(8);

#[tokio::test]
async fn another_takes_over_from_one_that_dies_and_at_once_from_one_that_leaves() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let outbox = world.outbox().await;
    let sink = TestSink::default();
    let first = Running::start(outbox.source(), &sink, quick());
    client.batch_execute(&insert("a", "0")).await.unwrap();
    sink.wait_for(1).await;
    let second = Running::start(outbox.source(), &sink, quick());
    let third = Running::start(outbox.source(), &sink, quick());
    for n in 1..20 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
    }
    sink.wait_for(20).await;
    assert_eq!(sink.texts().len(), 20);
    first.kill().await;
    world.lease_over().await;
    client.batch_execute(&insert("a", "20")).await.unwrap();
    sink.wait_for(21).await;
    second.stop().await;
    client.batch_execute(&insert("a", "21")).await.unwrap();
    sink.wait_for(22).await;
    third.stop().await;
    assert_eq!(sink.first_of_each()["a"], (0..22).map(|n| n.to_string()).collect::<Vec<_>>());
    world.end().await;
}

#[tokio::test]
async fn one_that_slept_beyond_its_lease_sends_and_settles_nothing() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let outbox = world.options().lease(SHORT).open().await.unwrap();
    let (mut first, mut second) = (outbox.source(), outbox.source());
    client.batch_execute(&insert("a", "0")).await.unwrap();
    assert_eq!(texts(&batch(&mut first).await), ["0"]);
    assert!(first.holds_lease());
    nothing(&mut second).await;
    // It sleeps: nothing of it runs.
    assert_eq!(texts(&batch(&mut second).await), ["0"]);
    assert!(!first.holds_lease() && second.holds_lease());
    let parked = Settled::Parked { error: "no".into(), for_good: true, alone: false };
    let word = first.ack(&[parked]).await;
    assert!(matches!(word, Err(OutboxReaderError::Fenced)), "{word:?}");
    let rows = client.query("SELECT FROM semel_outbox_parked", &[]).await.unwrap();
    assert!(rows.is_empty());
    second.ack(&[Settled::Confirmed]).await.unwrap();
    client.batch_execute(&insert("a", "1")).await.unwrap();
    // Awake, it waits like any other.
    nothing(&mut first).await;
    assert_eq!(texts(&batch(&mut second).await), ["1"]);
    second.release().await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn what_is_set_aside_is_written_under_the_epoch() {
    let Some(world) = World::new().await else { return };
    let client = world.connect().await;
    let mut source = world.outbox().await.source();
    client.batch_execute(&insert("a", "0")).await.unwrap();
    assert_eq!(texts(&batch(&mut source).await), ["0"]);
    // Somebody took over without our knowing: the clock did not say so.
    client.batch_execute("UPDATE semel_outbox_cursor SET epoch = epoch + 1 WHERE lane = 3").await.unwrap();
    assert!(source.holds_lease());
    let parked = Settled::Parked { error: "no".into(), for_good: true, alone: false };
    let word = source.ack(&[parked]).await;
    assert!(matches!(word, Err(OutboxReaderError::Fenced)), "{word:?}");
    assert!(client.query("SELECT FROM semel_outbox_parked", &[]).await.unwrap().is_empty());
    // It is given again.
    assert_eq!(texts(&batch(&mut source).await), ["0"]);
    source.release().await.unwrap();
    world.end().await;
}
