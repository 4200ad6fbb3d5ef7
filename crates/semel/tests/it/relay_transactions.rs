//! A relay that publishes in transactions: what a failed one and one in doubt lead to.

use std::sync::Arc;

use semel::outbox::Event;
use semel::relay::{
    Batch, BatchCursor, OutboxLineage, Pending, Position, Relay, RelayMetrics, RelayOptions, RelayStats,
};
use semel::sink::{DeliverySemantics, ExactlyOnce, Guarantee, Published, Sink, SinkError};

use crate::relay_promise::{Calls, One};

/// Answers transactions with events by these errors, then commits. Keeps the last checkpoint.
struct Transactions {
    calls: Calls,
    errors: Vec<SinkError>,
    checkpoint: Option<Vec<u8>>,
}

impl Sink for Transactions {
    fn guarantee(&self) -> Guarantee {
        let (delivery, sentence) = (DeliverySemantics::ExactlyOnce, String::new());
        Guarantee { delivery, sentence, violations: Vec::new() }
    }
    async fn publish(&mut self, _: &[Arc<Event>]) -> Vec<Published> {
        panic!("published outside of a transaction")
    }
}

impl ExactlyOnce for Transactions {
    async fn begin(&mut self) -> Result<Option<Vec<u8>>, SinkError> {
        self.calls.note("begin");
        Ok(self.checkpoint.clone())
    }
    async fn publish_at(&mut self, events: &[Arc<Event>], position: &[u8]) -> Result<(), SinkError> {
        self.calls.note(if events.is_empty() { "position" } else { "events" });
        match self.errors.pop() {
            Some(error) if !events.is_empty() => return Err(error),
            Some(error) => self.errors.push(error),
            None => {}
        }
        self.checkpoint = Some(position.to_vec());
        Ok(())
    }
}

/// Relays one event through a sink that fails so. What was called, and what became of it.
async fn relayed(errors: Vec<SinkError>, metrics: &RelayMetrics) -> (Vec<&'static str>, RelayStats) {
    let calls = Calls::default();
    let position = Position { lineage: OutboxLineage::read("here"), cursor: BatchCursor::of("1") };
    let event = Event::new("payments", "payment.completed", "1").unwrap();
    let source = One(Some(Batch::new(position, vec![Pending::new(event)])), calls.clone());
    let sink = Transactions { calls: calls.clone(), errors, checkpoint: None };
    let relay = Relay::new(source, sink, RelayOptions::default().attempts_max(3)).observed_by(metrics);
    calls.0.lock().unwrap().1 = Some(relay.stop_handle());
    let stats = relay.run_exactly_once().await.unwrap();
    let called = std::mem::take(&mut calls.0.lock().unwrap().0);
    (called, stats)
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_surely_failed_is_tried_again_without_a_new_start() {
    let metrics = RelayMetrics::new();
    let (called, stats) = relayed(vec![SinkError::not_published("no")], &metrics).await;
    // An empty transaction shows that the sink works, so that the event is to blame.
    assert_eq!(called, ["begin", "events", "position", "events"]);
    assert_eq!(stats.confirmed, 1);
    let text = metrics.render();
    for line in ["semel_relay_errors_total{side=\"sink\"} 1", "semel_relay_publish_seconds_count 4"] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_transaction_in_doubt_the_sink_is_asked_for_its_position() {
    let (called, stats) = relayed(vec![SinkError::maybe_published("lost")], &RelayMetrics::new()).await;
    assert_eq!(called, ["begin", "events", "begin", "position", "events"]);
    assert_eq!(stats.confirmed, 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_always_ends_in_doubt_has_its_tries_and_no_more() {
    let errors = (0..20).map(|_| SinkError::maybe_published("lost")).collect();
    let (called, stats) = relayed(errors, &RelayMetrics::new()).await;
    let tries = called.iter().filter(|call| **call == "events").count();
    assert_eq!((tries, stats.confirmed), (3, 0), "{called:?}");
}
