//! Positions that are not ours, and sources that cannot be had whole: loud, and nothing is published.

use semel::relay::{
    BatchCursor, OutboxLineage, OutboxReader, OutboxReaderError, Position, Relay, RelayError, SinkCheckpoint,
};

use super::broker::{Broker, Bug};
use super::outboxes::{InPostgres, InSqlite, Outbox, quick};
use crate::relay::world::Postgres;
use proof::planted::{By, Naive};

async fn ended(source: impl OutboxReader, position: Option<Vec<u8>>) -> (RelayError, Broker) {
    let broker = Broker::new();
    broker.state().position = position;
    let relay = Relay::new(source, broker.sink(Bug::None), quick()).run_exactly_once();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(120), relay).await.unwrap();
    (ended.unwrap_err(), broker)
}

#[tokio::test]
async fn nonsense_for_a_position_stops_the_relay() {
    let outbox = InSqlite::new();
    outbox.append(&[("a", "a1")]).await;
    for bytes in [&b""[..], b"nonsense", b"semel-reached-9\n0 3\na\nb", &[0xff; 100]] {
        let (error, broker) = ended(outbox.source(), Some(bytes.to_vec())).await;
        assert!(
            matches!(&error, RelayError::Position(reason) if reason.contains("transactional id")),
            "{error}"
        );
        assert_eq!((broker.texts(), broker.state().position.as_deref()), (Vec::new(), Some(bytes)));
    }
}

#[tokio::test]
async fn the_position_of_another_outbox_stops_the_relay() {
    let position = Position { lineage: OutboxLineage::read("another/1"), cursor: BatchCursor::of("0-1") };
    let bytes = SinkCheckpoint { position, left_out: Vec::new() }.to_bytes();
    let outbox = InSqlite::new();
    outbox.append(&[("a", "a1")]).await;
    let (error, broker) = ended(outbox.source(), bytes.clone()).await;
    assert!(
        matches!(&error, RelayError::OtherOutbox { stored, .. } if *stored == OutboxLineage::read("another/1")),
        "{error}"
    );
    assert_eq!(broker.texts(), Vec::<String>::new());
    let Some(outbox) = InPostgres::new().await else { return };
    let (error, _) = ended(outbox.source(), bytes).await;
    assert!(matches!(error, RelayError::OtherOutbox { .. }), "{error}");
    outbox.end().await;
}

#[tokio::test]
async fn a_source_that_cannot_be_had_whole_is_refused() {
    let Some(world) = Postgres::new().await else { return };
    let (error, broker) = ended(Naive::new(world.connect().await, By::Seq), None).await;
    assert!(matches!(error, RelayError::Outbox(OutboxReaderError::Shared)), "{error}");
    assert_eq!(broker.state().begins, 0);
    world.end().await;
}
