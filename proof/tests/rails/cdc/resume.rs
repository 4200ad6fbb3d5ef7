//! A sink that keeps the position beside the events says how far it has come.

use std::time::Duration;

use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{
    BatchCursor, OutboxLineage, OutboxReader, OutboxReaderError, Position, Settled, SinkCheckpoint,
};

use crate::cdc::world::{World, batch, insert, refusal, texts};

fn transaction(texts: std::ops::Range<u32>) -> String {
    let inserts: String = texts.map(|n| insert(&format!("k{}", n % 3), &n.to_string())).collect();
    format!("BEGIN; {inserts} COMMIT")
}

/// A source past its first event, so that it streams. Nothing is written down by itself.
async fn streaming(world: &World) -> impl OutboxReader + use<> {
    let options = world.options().checkpoint_interval(Duration::from_secs(60));
    let mut source = options.batch_max(4, 1 << 20).open().await.unwrap().source();
    world.connect().await.batch_execute(&insert("z", "z")).await.unwrap();
    assert_eq!(texts(&batch(&mut source).await), ["z"]);
    source.ack(&[Settled::Confirmed]).await.unwrap();
    source
}

#[tokio::test]
async fn nothing_up_to_the_position_comes_but_what_was_left_out() {
    let Some(world) = World::new().await else { return };
    let mut source = streaming(&world).await;
    world.connect().await.batch_execute(&transaction(0..10)).await.unwrap();
    let mut given = batch(&mut source).await;
    assert_eq!(texts(&given), ["0", "1", "2", "3"]);
    source.ack(&[const { Settled::Confirmed }; 4]).await.unwrap();
    given = batch(&mut source).await;
    assert_eq!(texts(&given), ["4", "5", "6", "7"]);
    // The sink has 4, 5 and 7; the relay died before it could say that 6 was refused.
    let left_out = vec![given.events[2].event.id().into()];
    let position = Position::from_bytes(&given.position.to_bytes()).unwrap();
    drop(source);
    world.lease_over().await;
    let options = world.options().batch_max(4, 1 << 20);
    let mut source = options.open().await.unwrap().source();
    source.resume(Some(&SinkCheckpoint { position, left_out })).await.unwrap();
    let mut read = Vec::new();
    while read.last().is_none_or(|last| last != "9") {
        let batch = batch(&mut source).await;
        read.extend(texts(&batch));
        source.ack(&vec![Settled::Confirmed; batch.events.len()]).await.unwrap();
    }
    assert_eq!(read, ["6", "8", "9"]);
    source.release().await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn in_doubt_the_batch_is_formed_anew() {
    let Some(world) = World::new().await else { return };
    let mut source = streaming(&world).await;
    world.connect().await.batch_execute(&transaction(0..6)).await.unwrap();
    let given = batch(&mut source).await;
    assert_eq!(texts(&given), ["0", "1", "2", "3"]);
    // The sink has it after all.
    let reached = SinkCheckpoint { position: given.position.clone(), left_out: Vec::new() };
    source.resume(Some(&reached)).await.unwrap();
    let next = batch(&mut source).await;
    assert_eq!(texts(&next), ["4", "5"]);
    // And of this one it has nothing.
    source.resume(Some(&reached)).await.unwrap();
    let again = batch(&mut source).await;
    assert_eq!((texts(&again), &again.position), (texts(&next), &next.position));
    source.ack(&[const { Settled::Confirmed }; 2]).await.unwrap();
    source.release().await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn a_parked_event_that_the_sink_has_is_not_tried_again() {
    let Some(world) = World::new().await else { return };
    let admin = PostgresOutbox::open(&world.url()).await.unwrap();
    let mut source = streaming(&world).await;
    world.connect().await.batch_execute(&transaction(0..1)).await.unwrap();
    assert_eq!(texts(&batch(&mut source).await), ["0"]);
    let refused = Settled::Parked { error: "no".into(), for_good: true, alone: false };
    source.ack(&[refused]).await.unwrap();
    world.connect().await.batch_execute(&transaction(3..5)).await.unwrap();
    let held = batch(&mut source).await;
    assert_eq!(held.events.iter().map(|pending| pending.held).collect::<Vec<_>>(), [true, false]);
    source.ack(&[Settled::Held, Settled::Confirmed]).await.unwrap();
    admin.retry(None).await.unwrap();
    let retried = batch(&mut source).await;
    assert_eq!(texts(&retried), ["0", "3"]);
    // The sink has the first of them, and the relay dies.
    let reached =
        SinkCheckpoint { position: retried.position, left_out: vec![retried.events[1].event.id().into()] };
    drop(source);
    world.lease_over().await;
    let mut source = world.outbox().await.source();
    source.resume(Some(&reached)).await.unwrap();
    assert_eq!(texts(&batch(&mut source).await), ["3"]);
    source.ack(&[Settled::Confirmed]).await.unwrap();
    assert!(admin.parked(None, 10).await.unwrap().is_empty());
    source.release().await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn a_position_of_another_log_or_of_a_later_one_stops_the_relay() {
    let Some(world) = World::new().await else { return };
    let mut source = streaming(&world).await;
    world.connect().await.batch_execute(&transaction(0..1)).await.unwrap();
    let position = batch(&mut source).await.position;
    drop(source);
    let options = world.options();
    let stopped = async |position: Position| -> OutboxReaderError {
        let mut source = options.clone().open().await.unwrap().source();
        source.resume(Some(&SinkCheckpoint { position, left_out: Vec::new() })).await.unwrap();
        // The one before it has died.
        world.lease_over().await;
        refusal(&mut source).await
    };
    let elsewhere = Position { lineage: OutboxLineage::read("other/1"), cursor: position.cursor.clone() };
    let error = stopped(elsewhere).await;
    assert!(matches!(error, OutboxReaderError::OutboxLineage { .. }) && !error.may_retry(), "{error}");
    let later = Position { lineage: position.lineage.clone(), cursor: BatchCursor::of("t1 FFFFFFFF/0+1") };
    let error = stopped(later).await;
    assert!(error.to_string().contains("older state") && !error.may_retry(), "{error}");
    let cursor = BatchCursor::of(position.cursor.to_string().replace("t1 ", "t9 "));
    let promoted = Position { lineage: position.lineage.clone(), cursor };
    let error = stopped(promoted).await;
    assert!(matches!(error, OutboxReaderError::OutboxLineage { .. }), "{error}");
    world.end().await;
}
