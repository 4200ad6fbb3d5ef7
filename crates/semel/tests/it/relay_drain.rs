//! A relay that is asked to stop has nothing left to send when another may take over.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::outbox::Event;
use semel::relay::{
    Batch, BatchCursor, Lag, OutboxLineage, OutboxReader, OutboxReaderError, Pending, Position, Pruned,
    Relay, RelayOptions, Settled,
};
use semel::sink::{DeliverySemantics, Guarantee, Published, Sink, SinkError};

type Calls = Arc<Mutex<Vec<&'static str>>>;

/// Has one batch, for ever.
struct One(Batch, Calls);

impl OutboxReader for One {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        Ok(Some(self.0.clone()))
    }
    async fn ack(&mut self, _: &[Settled]) -> Result<(), OutboxReaderError> {
        Ok(())
    }
    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        Ok(())
    }
    fn renew_after(&self) -> Duration {
        Duration::from_secs(60)
    }
    fn holds_lease(&self) -> bool {
        true
    }
    async fn prune(&mut self, _: Duration) -> Result<Pruned, OutboxReaderError> {
        Ok(Pruned::default())
    }
    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        Ok(Lag::default())
    }
    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        self.1.lock().unwrap().push("partitions given back");
        Ok(())
    }
}

/// Queues what it is given and never hears of it; the queue goes with it.
struct Queue {
    calls: Calls,
    asked: tokio::sync::mpsc::UnboundedSender<()>,
    refuses: bool,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.calls.lock().unwrap().push("queue dropped");
    }
}

impl Sink for Queue {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::AtLeastOnce,
            sentence: String::new(),
            violations: Vec::new(),
        }
    }
    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let _ = self.asked.send(());
        if self.refuses {
            return vec![Published::Failed(SinkError::fenced("another has it")); events.len()];
        }
        std::future::pending().await
    }
}

/// Runs a relay, stops it in a call that never ends, and tells what happened in which order.
async fn stopped(refuses: bool) -> Vec<&'static str> {
    let calls = Calls::default();
    let position = Position { lineage: OutboxLineage::read("here"), cursor: BatchCursor::of("1") };
    let event = Event::new("payments", "payment.completed", "1").unwrap();
    let source = One(Batch::new(position, vec![Pending::new(event)]), calls.clone());
    let (asked, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let sink = Queue { calls: calls.clone(), asked, refuses };
    let relay = Relay::new(source, sink, RelayOptions::default().drain_timeout(Duration::from_millis(10)));
    let stop = relay.stop_handle();
    let running = tokio::spawn(relay.run());
    begun.recv().await.unwrap();
    stop.stop();
    assert_eq!(running.await.unwrap().is_err(), refuses);
    calls.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_dropped_before_the_partitions_are_given_back() {
    assert_eq!(stopped(false).await, ["queue dropped", "partitions given back"]);
}

#[tokio::test(start_paused = true)]
async fn also_where_it_stops_by_itself() {
    assert_eq!(stopped(true).await, ["queue dropped", "partitions given back"]);
}
