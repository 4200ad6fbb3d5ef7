//! A relay that looks seldom, and is woken after a commit.

use std::time::Duration;

use semel::relay::{OutboxReader, Relay};

use crate::relay::sink::TestSink;
use crate::relay::sqlite;
use crate::relay::world::{LEASE, Postgres, insert, quick};

/// Longer than any test.
const SELDOM: Duration = Duration::from_secs(3_600);
const EVENTS: usize = 20;

/// Appends one event after the other, each when the one before it has come.
async fn woken_each_time(source: impl OutboxReader, mut append: impl AsyncFnMut(String)) {
    let sink = TestSink::default();
    let relay = Relay::new(source, sink.clone(), quick().poll_interval(SELDOM, SELDOM));
    let (wake, stop) = (relay.wake_handle(), relay.stop_handle());
    let running = tokio::spawn(relay.run());
    // The first may be seen by chance, before the relay rests. Not all can.
    for n in 1..=EVENTS {
        append(n.to_string()).await;
        wake.wake();
        sink.wait_for(n).await;
    }
    stop.stop();
    let ended = running.await.unwrap().unwrap();
    assert_eq!((ended.confirmed, ended.parked), (EVENTS as u64, 0));
    assert_eq!(sink.texts(), (1..=EVENTS).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn in_sqlite_an_event_does_not_wait_for_the_next_look() {
    let (_directory, path, outbox) = sqlite::file();
    // Long: once it is lost, nothing would make the relay look again.
    let source = outbox.lease(LEASE).source();
    woken_each_time(source, async |text: String| sqlite::append(&path, &[("a", &text)])).await;
}

#[tokio::test]
async fn in_postgresql_an_event_does_not_wait_for_the_next_look() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    let append = async |text: String| client.batch_execute(&insert("a", &text)).await.unwrap();
    let source = world.outbox().await.source();
    woken_each_time(source, append).await;
    world.end().await;
}
